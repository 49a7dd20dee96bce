-- +goose Up
-- +goose StatementBegin
-- Secrets for a short time, which dialects of clouds with OAuth 2 grant to who shows a token's. They are valid as
-- long as that is: package cloud looks it up. No reference, as the tokens of `serve --token` are written anew at
-- each start.
CREATE TABLE access_tokens (
    hash       BLOB    NOT NULL PRIMARY KEY,
    granted_to BLOB    NOT NULL, -- the hash of the token's secret that was shown
    expires_at INTEGER NOT NULL  -- Unix milliseconds
) STRICT;
-- +goose StatementEnd
-- +goose Down
-- +goose StatementBegin
DROP TABLE access_tokens;
-- +goose StatementEnd
