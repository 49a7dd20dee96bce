-- name: CountResources :many
SELECT CAST('instance' AS TEXT) AS resource, state, count(*) AS count FROM instances GROUP BY state
UNION ALL
SELECT 'load-balancer', state, count(*) FROM load_balancers GROUP BY state
UNION ALL
SELECT 'route', state, count(*) FROM routes GROUP BY state
UNION ALL
SELECT 'address', state, count(*) FROM addresses GROUP BY state
UNION ALL
SELECT 'network', '', count(*) FROM networks;
