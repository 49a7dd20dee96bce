-- Resources are stored as the API shows them, in the API's own types. First routes.

-- +goose Up
-- +goose StatementBegin
UPDATE resources SET document = json_remove(json_set(document, '$.networkId', json_extract(document, '$.network'),
    '$.instanceId', json_extract(document, '$.instance')), '$.network', '$.instance') WHERE kind = 'route';
UPDATE events SET body = json_remove(json_set(body, '$.networkId', json_extract(body, '$.network'),
    '$.instanceId', json_extract(body, '$.instance')), '$.network', '$.instance') WHERE resource = 'route';
UPDATE idempotency_keys SET result = json_remove(json_set(result, '$.networkId', json_extract(result, '$.network'),
    '$.instanceId', json_extract(result, '$.instance')), '$.network', '$.instance')
WHERE json_extract(result, '$.destination') IS NOT NULL;

-- Firewalls.
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

-- Reserved addresses.
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
-- Load balancers: seconds instead of nanoseconds, targets as objects, and no field left out that has a default.
DROP TRIGGER targets_made;
DROP TRIGGER targets_changed;
CREATE TABLE balancers (place TEXT NOT NULL, key TEXT NOT NULL, document TEXT NOT NULL, PRIMARY KEY (place, key));
INSERT INTO balancers SELECT 'resource', id, document FROM resources WHERE kind = 'load-balancer';
INSERT INTO balancers SELECT 'event', seq, body FROM events WHERE resource = 'load-balancer';
INSERT INTO balancers SELECT 'result', project_id || ' ' || key, result FROM idempotency_keys
WHERE json_type(result, '$.listeners') IS NOT NULL;
-- A null in a patch removes what it names.
UPDATE balancers SET document = json_patch(document, json_object(
    'ipFamilies', json(CASE WHEN json_extract(document, '$.address6') <> '' THEN '["ipv4","ipv6"]' ELSE '["ipv4"]' END),
    'ipv6Address', nullif(json_extract(document, '$.address6'), ''), 'address6', NULL,
    'networkId', json_extract(document, '$.network'), 'network', NULL,
    'attachedAddresses', json(json_extract(document, '$.attached')), 'attached', NULL,
    'type', coalesce(nullif(json_extract(document, '$.type'), ''), 'unlimited'),
    'kind', coalesce(nullif(json_extract(document, '$.kind'), ''), 'proxy'),
    'scheme', coalesce(nullif(json_extract(document, '$.scheme'), ''), 'public'),
    'algorithm', coalesce(nullif(json_extract(document, '$.algorithm'), ''), 'round-robin'),
    'sourceRanges', json(coalesce(json_extract(document, '$.sourceRanges'), '[]')),
    'clientAffinitySeconds', coalesce(json_extract(document, '$.affinity'), 0) / 1e9, 'affinity', NULL,
    'idleTimeoutSeconds', coalesce(json_extract(document, '$.idleTimeout'), 0) / 1e9, 'idleTimeout', NULL,
    'drainSeconds', coalesce(json_extract(document, '$.drain'), 0) / 1e9, 'drain', NULL,
    'deletionProtection', json(iif(json_extract(document, '$.deletionProtection'), 'true', 'false')),
    'targets', json((SELECT json_group_array(json_object('instanceId', value)) FROM json_each(document, '$.targets') WHERE type = 'text')),
    'healthCheck', json(CASE json_type(document, '$.healthCheck') WHEN 'object' THEN json_object(
        'intervalSeconds', json_extract(document, '$.healthCheck.interval') / 1e9, 'interval', NULL,
        'timeoutSeconds', json_extract(document, '$.healthCheck.timeout') / 1e9, 'timeout', NULL) END),
    'listeners', json((SELECT json_group_array(json(CASE json_type(value, '$.healthCheck') WHEN 'object' THEN json_patch(value, json_object('healthCheck', json_object(
        'intervalSeconds', json_extract(value, '$.healthCheck.interval') / 1e9, 'interval', NULL,
        'timeoutSeconds', json_extract(value, '$.healthCheck.timeout') / 1e9, 'timeout', NULL))) ELSE value END))
        FROM json_each(document, '$.listeners') WHERE type = 'object'))));
UPDATE resources SET document = (SELECT b.document FROM balancers AS b WHERE b.place = 'resource' AND b.key = resources.id)
WHERE kind = 'load-balancer';
UPDATE events SET body = (SELECT b.document FROM balancers AS b WHERE b.place = 'event' AND b.key = CAST(events.seq AS TEXT))
WHERE resource = 'load-balancer';
UPDATE idempotency_keys SET result = (
    SELECT b.document FROM balancers AS b
    WHERE b.place = 'result' AND b.key = idempotency_keys.project_id || ' ' || idempotency_keys.key)
WHERE json_type(result, '$.listeners') IS NOT NULL;
DROP TABLE balancers;

CREATE TRIGGER targets_made AFTER INSERT ON resources WHEN NEW.kind = 'load-balancer' BEGIN
    INSERT INTO load_balancer_targets (load_balancer_id, instance_id)
    SELECT NEW.id, json_extract(value, '$.instanceId') FROM json_each(NEW.document, '$.targets') WHERE type = 'object';
END;
-- Of a thousand targets, one that goes is one row.
CREATE TRIGGER targets_changed AFTER UPDATE OF document ON resources
WHEN NEW.kind = 'load-balancer' AND json_extract(NEW.document, '$.targets') IS NOT json_extract(OLD.document, '$.targets') BEGIN
    DELETE FROM load_balancer_targets WHERE load_balancer_id = NEW.id AND instance_id NOT IN (
        SELECT json_extract(value, '$.instanceId') FROM json_each(NEW.document, '$.targets') WHERE type = 'object'
    );
    INSERT OR IGNORE INTO load_balancer_targets (load_balancer_id, instance_id)
    SELECT NEW.id, json_extract(value, '$.instanceId') FROM json_each(NEW.document, '$.targets') WHERE type = 'object';
END;
DROP VIEW load_balancers;
CREATE VIEW load_balancers AS SELECT
    id, project_id, name, json_extract(document, '$.region') AS region, address,
    json_extract(document, '$.addressId') AS address_id, json_extract(document, '$.ipv6Address') AS address6, state,
    coalesce(json_extract(document, '$.stateReason'), '') AS state_reason,
    coalesce(json_extract(document, '$.stateReasonCode'), '') AS state_reason_code,
    json_extract(document, '$.scheme') AS scheme, json_extract(document, '$.algorithm') AS algorithm,
    json_extract(document, '$.listeners') AS listeners,
    (SELECT json_group_array(json_extract(value, '$.instanceId')) FROM json_each(document, '$.targets')) AS targets,
    json_extract(document, '$.sourceRanges') AS source_ranges,
    CAST(json_extract(document, '$.clientAffinitySeconds') * 1000 AS INTEGER) AS affinity,
    CAST(json_extract(document, '$.idleTimeoutSeconds') * 1000 AS INTEGER) AS idle_timeout,
    CAST(json_extract(document, '$.drainSeconds') * 1000 AS INTEGER) AS drain,
    json_extract(document, '$.healthCheck') AS health_check, due_at, json_extract(document, '$.tags') AS tags,
    version, json_extract(document, '$.createdAt') AS created_at,
    json_extract(document, '$.updatedAt') AS updated_at, document
FROM resources WHERE kind = 'load-balancer';

DROP VIEW routes;
CREATE VIEW routes AS SELECT
    id, project_id, name, json_extract(document, '$.networkId') AS network_id,
    json_extract(document, '$.destination') AS destination, first_address,
    json_extract(document, '$.instanceId') AS instance_id, state,
    coalesce(json_extract(document, '$.stateReason'), '') AS state_reason, json_extract(document, '$.tags') AS tags, version,
    json_extract(document, '$.createdAt') AS created_at, json_extract(document, '$.updatedAt') AS updated_at, document
FROM resources WHERE kind = 'route';
-- +goose StatementEnd

-- +goose StatementBegin
-- Private keys are beside their certificates' documents, which are answers and events.
CREATE TABLE certificate_keys (
    project_id TEXT NOT NULL REFERENCES projects (id) ON DELETE CASCADE,
    fingerprint TEXT NOT NULL, -- the certificate's
    private_key TEXT NOT NULL, -- PEM
    PRIMARY KEY (project_id, fingerprint)
) STRICT, WITHOUT ROWID;
-- +goose StatementEnd
