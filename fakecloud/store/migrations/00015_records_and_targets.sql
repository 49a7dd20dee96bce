-- Operations have what a dialect of another cloud calls them. Listeners can have targets of their own, and targets can
-- be addresses instead of instances. Faults are as in the API.

-- +goose Up
ALTER TABLE operations ADD COLUMN records TEXT NOT NULL DEFAULT '{}';

-- +goose StatementBegin
DROP TRIGGER targets_made;
DROP TRIGGER targets_changed;
CREATE VIEW targeted_instances AS
SELECT resources.id AS load_balancer_id, json_extract(t.value, '$.instanceId') AS instance_id
FROM resources, json_each(document, '$.targets') AS t
WHERE kind = 'load-balancer' AND json_type(t.value, '$.instanceId') = 'text'
UNION
SELECT resources.id, json_extract(t.value, '$.instanceId')
FROM resources, json_each(document, '$.listeners') AS l, json_each(document, l.fullkey || '.targets') AS t
WHERE kind = 'load-balancer' AND json_type(t.value, '$.instanceId') = 'text';

CREATE TRIGGER targets_made AFTER INSERT ON resources WHEN NEW.kind = 'load-balancer' BEGIN
    INSERT INTO load_balancer_targets (load_balancer_id, instance_id)
    SELECT load_balancer_id, instance_id FROM targeted_instances WHERE load_balancer_id = NEW.id;
END;
-- Of a thousand targets, one that goes is one row.
CREATE TRIGGER targets_changed AFTER UPDATE OF document ON resources
WHEN NEW.kind = 'load-balancer' AND (
    json_extract(NEW.document, '$.targets') IS NOT json_extract(OLD.document, '$.targets')
    OR json_extract(NEW.document, '$.listeners') IS NOT json_extract(OLD.document, '$.listeners')
) BEGIN
    DELETE FROM load_balancer_targets WHERE load_balancer_id = NEW.id AND instance_id NOT IN (
        SELECT instance_id FROM targeted_instances WHERE load_balancer_id = NEW.id
    );
    INSERT OR IGNORE INTO load_balancer_targets (load_balancer_id, instance_id)
    SELECT load_balancer_id, instance_id FROM targeted_instances WHERE load_balancer_id = NEW.id;
END;

DROP VIEW load_balancers;
CREATE VIEW load_balancers AS SELECT
    id, project_id, name, json_extract(document, '$.region') AS region, address,
    json_extract(document, '$.addressId') AS address_id, json_extract(document, '$.ipv6Address') AS address6, state,
    coalesce(json_extract(document, '$.stateReason'), '') AS state_reason,
    coalesce(json_extract(document, '$.stateReasonCode'), '') AS state_reason_code,
    json_extract(document, '$.scheme') AS scheme, json_extract(document, '$.algorithm') AS algorithm,
    json_extract(document, '$.listeners') AS listeners,
    (SELECT json_group_array(coalesce(json_extract(value, '$.instanceId'), json_extract(value, '$.ip')))
        FROM json_each(document, '$.targets')) AS targets,
    json_extract(document, '$.sourceRanges') AS source_ranges,
    CAST(json_extract(document, '$.clientAffinitySeconds') * 1000 AS INTEGER) AS affinity,
    CAST(json_extract(document, '$.idleTimeoutSeconds') * 1000 AS INTEGER) AS idle_timeout,
    CAST(json_extract(document, '$.drainSeconds') * 1000 AS INTEGER) AS drain,
    json_extract(document, '$.healthCheck') AS health_check, due_at, json_extract(document, '$.tags') AS tags,
    version, json_extract(document, '$.createdAt') AS created_at,
    json_extract(document, '$.updatedAt') AS updated_at, document
FROM resources WHERE kind = 'load-balancer';
-- +goose StatementEnd

-- +goose StatementBegin
-- Fault rules are stored as the API shows them: not in nanoseconds. There are no scenarios any more.
DELETE FROM fault_instances WHERE fault_id IN (SELECT id FROM faults WHERE json_extract(spec, '$.scenario') <> '');
DELETE FROM faults WHERE json_extract(spec, '$.scenario') <> '';
UPDATE faults SET spec = json_patch(spec, json_object('effect', json_object(
    'delayMilliseconds', json_extract(spec, '$.effect.delay') / 1000000, 'delay', NULL,
    'jitterMilliseconds', json_extract(spec, '$.effect.jitter') / 1000000, 'jitter', NULL,
    'retryAfterSeconds', json_extract(spec, '$.effect.retryAfter') / 1000000000, 'retryAfter', NULL)))
WHERE json_type(spec, '$.effect') = 'object';
-- +goose StatementEnd
