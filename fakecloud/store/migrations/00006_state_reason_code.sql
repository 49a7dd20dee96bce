-- A load balancer's reason has a code beside its sentence.

-- +goose Up
-- +goose StatementBegin
ALTER TABLE load_balancers ADD COLUMN state_reason_code TEXT NOT NULL DEFAULT ''; -- empty: the reason has none
-- +goose StatementEnd
-- +goose Down
-- +goose StatementBegin
ALTER TABLE load_balancers DROP COLUMN state_reason_code;
-- +goose StatementEnd
