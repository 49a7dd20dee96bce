-- name: Clock :one
SELECT * FROM clock;

-- name: StartVirtualClock :one
INSERT INTO clock (one, virtual, now, starts) VALUES (1, 1, @now, 0)
ON CONFLICT (one) DO UPDATE SET virtual = 1, starts = clock.starts + 1,
  now = CASE clock.virtual WHEN 1 THEN clock.now ELSE max(clock.now, excluded.now) END
RETURNING now, starts;

-- name: EndVirtualClock :exec
UPDATE clock SET virtual = 0;

-- name: AdvanceClock :exec
UPDATE clock SET now = @now WHERE now < @now;

-- name: DueBy :many
SELECT id, version FROM instances WHERE instances.due_at <= CAST(@now AS INTEGER)
UNION ALL
SELECT id, version FROM load_balancers WHERE load_balancers.due_at <= CAST(@now AS INTEGER);

-- name: DueAfter :one
SELECT CAST(coalesce(min(due_at), 0) AS INTEGER) AS due_at FROM (
    SELECT min(i.due_at) AS due_at FROM instances AS i WHERE i.due_at > CAST(@now AS INTEGER)
    UNION ALL
    SELECT min(b.due_at) AS due_at FROM load_balancers AS b WHERE b.due_at > CAST(@now AS INTEGER)
);

-- name: CheckedLoadBalancers :many
SELECT id, name FROM load_balancers WHERE health_check IS NOT NULL ORDER BY id LIMIT 3;
