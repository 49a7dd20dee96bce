-- +goose Up
-- +goose StatementBegin
-- Public keys of tokens, for dialects of clouds whose clients sign their calls. No reference, as the tokens of
-- `serve --token` are written anew at each start and keep their keys: package cloud removes those of other tokens.
CREATE TABLE token_keys (
    fingerprint TEXT    NOT NULL PRIMARY KEY,
    token       TEXT    NOT NULL, -- its name
    project_id  TEXT    NOT NULL, -- the token's: a name can come back in another project
    public_key  BLOB    NOT NULL, -- DER-encoded SubjectPublicKeyInfo
    created_at  INTEGER NOT NULL  -- Unix milliseconds
) STRICT;
CREATE INDEX token_keys_token ON token_keys (token);
-- +goose StatementEnd
-- +goose Down
-- +goose StatementBegin
DROP TABLE token_keys;
-- +goose StatementEnd
