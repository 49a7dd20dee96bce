-- An operation has what a dialect of another cloud calls it.

-- +goose Up
ALTER TABLE operations ADD COLUMN records TEXT NOT NULL DEFAULT '{}';
