-- name: InsertCertificateKey :exec
INSERT INTO certificate_keys (project_id, fingerprint, private_key) VALUES (?, ?, ?) ON CONFLICT DO NOTHING;

-- name: CertificateKey :one
SELECT private_key FROM certificate_keys WHERE project_id = ? AND fingerprint = ?;

-- The key stays while another certificate of the project is the same.
-- name: DeleteCertificateKey :exec
DELETE FROM certificate_keys WHERE certificate_keys.project_id = @project_id AND certificate_keys.fingerprint = @fingerprint
    AND NOT EXISTS (SELECT 1 FROM resources AS r
        WHERE r.kind = 'certificate' AND r.project_id = @project_id AND r.id <> CAST(@certificate AS TEXT)
          AND json_extract(r.document, '$.fingerprint') = certificate_keys.fingerprint);

-- name: BalancerOfCertificate :one
SELECT r.id FROM resources AS r, json_each(r.document, '$.listeners') AS l, json_each(l.value, '$.certificateIds') AS c
WHERE r.kind = 'load-balancer' AND r.project_id = @project_id AND r.state <> 'deleting'
  AND c.value = CAST(@certificate AS TEXT) LIMIT 1;
