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
