package cli_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// shell runs commands on a cloud that must succeed, or fail with a code and a
// word.
type shell struct {
	*testing.T
	p *process
}

func (s shell) ok(args ...string) string {
	s.Helper()
	out, errs, code := s.p.run(s.T, args...)
	require.Zero(s, code, errs)
	return out
}

func (s shell) fails(code int, says string, args ...string) {
	s.Helper()
	_, errs, got := s.p.run(s.T, args...)
	assert.Equal(s, code, got, args)
	assert.Contains(s, errs, says)
}

func TestProjectAndTokenCommands(t *testing.T) {
	dir := t.TempDir()
	s := shell{t, serve(t, dir)}
	assert.Regexp(t, `(?m)^team-a\s+p-\S+\s+a=b,c=d\s+\ds$`, s.ok("projects", "create", "team-a", "--default-tag", "a=b", "--default-tag", "c=d"))
	assert.Regexp(t, `(?m)^default\s.*\nteam-a\s`, s.ok("projects", "list"))
	assert.Contains(t, s.ok("projects", "get", "-o", "yaml"), "role: admin\n")
	assert.Contains(t, s.ok("__complete", "projects", "get", "te"), "team-a\n")
	assert.Contains(t, s.ok("__complete", "tokens", "list", "--project", ""), "team-a\n")
	assert.Regexp(t, `(?m)^team-b\s+p-\S+\s+-\s`, s.ok("projects", "update", "team-a", "--name", "team-b", "--no-default-tags"))
	s.fails(2, "nothing to update", "projects", "update", "team-b")
	s.fails(1, "no project is named", "projects", "get", "team-a")

	file := filepath.Join(dir, "tokens", "ci")
	out := s.ok("tokens", "create", "ci", "--project", "team-b", "--role", "viewer", "--expires-in", "1h", "--out", file)
	assert.Regexp(t, `(?m)^ci\s+viewer\s+api\s+20\S+Z\s+\ds$`, out)
	info, err := os.Stat(file)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	first, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Contains(t, s.ok("projects", "get", "-o", "yaml", "--token-file", s.p.token), "name: default\n")
	assert.Contains(t, s.ok("zones", "list", "--token-file", file), "nebula-1a")
	s.fails(1, "needs the role editor", "instances", "create", "--token-file", file)
	s.fails(1, "needs the role admin", "projects", "list", "--token-file", file)

	second := strings.TrimSpace(s.ok("tokens", "rotate", "ci", "--project", "team-b", "--grace", "10m"))
	assert.True(t, strings.HasPrefix(second, "fc_"), second)
	assert.Contains(t, s.ok("zones", "list", "--token-file", file), "nebula-1a", "in its grace")
	s.ok("tokens", "rotate", "ci", "--project", "team-b", "--out", file)
	third, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.NotEqual(t, first, third)
	s.ok("zones", "list", "--token-file", file)
	old := filepath.Join(dir, "old")
	require.NoError(t, os.WriteFile(old, []byte(second), 0o600))
	s.fails(1, "was rotated", "zones", "list", "--token-file", old)

	var made api.TokenWithSecret
	require.NoError(t, json.Unmarshal([]byte(s.ok("tokens", "create", "own", "-o", "json")), &made))
	assert.True(t, made.Token.Role == api.RoleEditor && made.Token.ExpiresAt == nil && made.Secret != "")
	assert.NotContains(t, s.ok("tokens", "get", "own", "-o", "yaml"), made.Secret)
	assert.Regexp(t, `(?m)^operator\s+admin\s+flag\s+-\s`, s.ok("tokens", "list"))
	assert.Contains(t, s.ok("__complete", "tokens", "delete", "o"), "own\n")
	s.fails(2, "choose viewer, editor or admin", "tokens", "create", "x", "--role", "owner")
	s.fails(2, "give one", "tokens", "create", "x", "--expires-in", "1h", "--expires-at", "2999-01-01T00:00:00Z")
	s.fails(2, "want a time", "tokens", "create", "x", "--expires-at", "soon")
	s.fails(1, "would have expired already", "tokens", "create", "x", "--expires-at", "2001-01-01T00:00:00Z")
	s.fails(1, "wrong-state", "tokens", "delete", "operator")
	s.fails(1, "wrong-state", "tokens", "rotate", "operator")
	s.fails(1, "rotate late --out FILE", "tokens", "create", "late", "--out", filepath.Join(old, "below-a-file"))
	s.ok("tokens", "delete", "own", "late")
	s.fails(1, "no token \"own\"", "tokens", "get", "own")

	s.fails(1, "your token's own", "projects", "delete", "default")
	s.ok("projects", "delete", "team-b")
	s.fails(1, "unauthenticated", "zones", "list", "--token-file", file)
}

// Tokens of the API survive a restart; of those of the command line, the ones
// that are given again.
func TestTokensSurviveARestart(t *testing.T) {
	dir := t.TempDir()
	viewer, made := filepath.Join(dir, "viewer"), filepath.Join(dir, "made")
	s := shell{t, serve(t, dir, "--token", "watcher:viewer="+viewer)}
	s.ok("tokens", "create", "made", "--out", made)
	s.fails(1, "needs the role editor", "instances", "create", "--token-file", viewer)
	s.p.kill()
	s.p = serve(t, dir)
	s.ok("instances", "create", "--token-file", made)
	s.fails(1, "unauthenticated", "zones", "list", "--token-file", viewer)
	s.p.kill()
	s.p = serve(t, dir, "--token", "watcher="+viewer)
	s.ok("instances", "create", "--token-file", viewer) // An editor, unless told otherwise.
}

func TestNetworkAndQuotaCommands(t *testing.T) {
	s := shell{t, serve(t, t.TempDir())}
	assert.Regexp(t, `(?m)^default\s+n-\S+\s+127\.90\.0\.0/16\s+yes\s+\ds$`, s.ok("networks", "list"))
	assert.Regexp(t, `(?m)^backend\s+n-\S+\s+10\.1\.0\.0/24\s+no\s+\ds$`, s.ok("networks", "create", "backend", "--cidr", "10.1.0.0/24", "--tag", "a=b"))
	s.fails(2, "needs --cidr", "networks", "create", "none")
	s.fails(1, "network-conflict", "networks", "create", "other", "--cidr", "10.1.0.0/16")
	assert.Contains(t, s.ok("instances", "create", "node-1", "--network", "backend", "--wait"), "10.1.0.1")
	assert.Contains(t, s.ok("__complete", "instances", "create", "--network", "b"), "backend\n")
	s.fails(1, "no network is named", "instances", "create", "node-2", "--network", "none")
	assert.Contains(t, s.ok("networks", "update", "backend", "--name", "front", "--tag", "c=d"), "front")
	assert.Contains(t, s.ok("networks", "get", "front", "-o", "yaml"), "c: d\n")
	s.fails(1, "has instances", "networks", "delete", "front")

	s.ok("routes", "create", "r", "--destination", "10.244.0.0/24", "--instance", "node-1")
	assert.Contains(t, s.ok("routes", "update", "r", "--name", "q", "--tag", "a=b"), "q ")
	assert.Contains(t, s.ok("instances", "update", "node-1", "--tag", "a=b", "-o", "json"), `"a": "b"`)
	assert.Contains(t, s.ok("instances", "update", "node-1", "--name", "node-2", "--no-tags", "-o", "json"), `"tags": {}`)
	s.fails(2, "nothing to update", "instances", "update", "node-2")
	s.fails(2, "give one", "instances", "update", "node-2", "--tag", "a=b", "--no-tags")
	s.ok("routes", "delete", "q")
	s.ok("instances", "terminate", "node-2", "--wait")
	s.ok("networks", "delete", "front")

	assert.Regexp(t, `(?m)^instances\s+0\s+12000$`, s.ok("quotas", "get"))
	assert.Regexp(t, `(?m)^instances\s+0\s+0$`, s.ok("quotas", "set", "--instances", "0"))
	s.fails(1, "quota-exceeded", "instances", "create")
	s.fails(2, "nothing to set", "quotas", "set")
	s.ok("projects", "create", "team-a")
	assert.Regexp(t, `(?m)^networks\s+1\s+7$`, s.ok("quotas", "set", "--project", "team-a", "--networks", "7"))
	assert.Contains(t, s.ok("quotas", "get", "--project", "team-a", "-o", "yaml"), "limit: 12000\n")
	assert.Equal(t, "NAME\nnebula-1\n", s.ok("regions", "list"))
	assert.Regexp(t, `(?m)^medium\s+4\s+8192$`, s.ok("instance-types", "list"))
}
