-- Routes, firewalls and addresses are stored as the API shows them, in the API's own types.

-- +goose Up
-- +goose StatementBegin
UPDATE resources SET document = json_remove(json_set(document, '$.networkId', json_extract(document, '$.network'),
    '$.instanceId', json_extract(document, '$.instance')), '$.network', '$.instance') WHERE kind = 'route';
UPDATE events SET body = json_remove(json_set(body, '$.networkId', json_extract(body, '$.network'),
    '$.instanceId', json_extract(body, '$.instance')), '$.network', '$.instance') WHERE resource = 'route';
UPDATE idempotency_keys SET result = json_remove(json_set(result, '$.networkId', json_extract(result, '$.network'),
    '$.instanceId', json_extract(result, '$.instance')), '$.network', '$.instance')
WHERE json_extract(result, '$.destination') IS NOT NULL;

UPDATE resources SET document = json_remove(json_set(
    document, '$.instanceIds', json(coalesce(json_extract(document, '$.instances'), '[]')),
    '$.rules', json(coalesce(json_extract(document, '$.rules'), '[]'))), '$.instances') WHERE kind = 'firewall';
UPDATE events SET body = json_remove(json_set(
    body, '$.instanceIds', json(coalesce(json_extract(body, '$.instances'), '[]')),
    '$.rules', json(coalesce(json_extract(body, '$.rules'), '[]'))), '$.instances') WHERE resource = 'firewall';
UPDATE idempotency_keys SET result = json_remove(json_set(
    result, '$.instanceIds', json(coalesce(json_extract(result, '$.instances'), '[]')),
    '$.rules', json(coalesce(json_extract(result, '$.rules'), '[]'))), '$.instances')
WHERE json_type(result, '$.rules') IS NOT NULL;

UPDATE resources SET document = json_remove(document, '$.holder')
WHERE kind = 'address' AND json_extract(document, '$.holder.id') = '';
UPDATE events SET body = json_remove(body, '$.holder')
WHERE resource = 'address' AND json_extract(body, '$.holder.id') = '';
UPDATE idempotency_keys SET result = json_remove(result, '$.holder') WHERE json_extract(result, '$.holder.id') = '';

DROP VIEW addresses;
CREATE VIEW addresses AS SELECT
    id, project_id, name, json_extract(document, '$.region') AS region, json_extract(document, '$.ip') AS ip,
    state, coalesce(json_extract(document, '$.holder.kind'), '') AS holder_kind,
    coalesce(json_extract(document, '$.holder.id'), '') AS holder_id, json_extract(document, '$.tags') AS tags, version,
    json_extract(document, '$.createdAt') AS created_at, json_extract(document, '$.updatedAt') AS updated_at, document
FROM resources WHERE kind = 'address';
DROP VIEW routes;
CREATE VIEW routes AS SELECT
    id, project_id, name, json_extract(document, '$.networkId') AS network_id,
    json_extract(document, '$.destination') AS destination, first_address,
    json_extract(document, '$.instanceId') AS instance_id, state,
    coalesce(json_extract(document, '$.stateReason'), '') AS state_reason, json_extract(document, '$.tags') AS tags, version,
    json_extract(document, '$.createdAt') AS created_at, json_extract(document, '$.updatedAt') AS updated_at, document
FROM resources WHERE kind = 'route';
-- +goose StatementEnd
