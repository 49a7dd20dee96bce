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
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

// commandShell runs commands that must succeed (mustRun), or fail with a code and a text
// (mustFail).
type commandShell struct {
	*testing.T
	p *process
}

func (s commandShell) mustRun(args ...string) string {
	s.Helper()
	out, errs, code := s.p.run(s.T, args...)
	require.Zero(s, code, errs)
	return out
}

func (s commandShell) mustFail(code int, says string, args ...string) {
	s.Helper()
	_, errs, got := s.p.run(s.T, args...)
	assert.Equal(s, code, got, args)
	assert.Contains(s, errs, says)
}

func TestProjectAndTokenCommands(t *testing.T) {
	dir := t.TempDir()
	s := commandShell{t, startServe(t, dir)}
	assert.Regexp(
		t, `(?m)^team-a\s+p-\S+\s+a=b,c=d\s+\ds$`,
		s.mustRun("projects", "create", "team-a", "--default-tag", "a=b", "--default-tag", "c=d"),
	)
	assert.Regexp(t, `(?m)^default\s.*\nteam-a\s`, s.mustRun("projects", "list"))
	assert.Contains(t, s.mustRun("projects", "get", "-o", "yaml"), "role: admin\n")
	assert.Contains(t, s.mustRun("__complete", "projects", "get", "te"), "team-a\n")
	assert.Contains(t, s.mustRun("__complete", "tokens", "list", "--project", ""), "team-a\n")
	assert.Regexp(
		t, `(?m)^team-b\s+p-\S+\s+-\s`,
		s.mustRun("projects", "update", "team-a", "--name", "team-b", "--no-default-tags"),
	)
	s.mustFail(2, "nothing to update", "projects", "update", "team-b")
	s.mustFail(1, "no project is named", "projects", "get", "team-a")

	file := filepath.Join(dir, "tokens", "ci")
	out := s.mustRun(
		"tokens", "create", "ci", "--project", "team-b", "--role", "viewer", "--expires-in", "1h", "--out", file,
	)
	assert.Regexp(t, `(?m)^ci\s+viewer\s+api\s+20\S+Z\s+\ds$`, out)
	info, err := os.Stat(file)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	first, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Contains(t, s.mustRun("projects", "get", "-o", "yaml", "--token-file", s.p.token), "name: default\n")
	assert.Contains(t, s.mustRun("zones", "list", "--token-file", file), "nebula-1a")
	s.mustFail(1, "needs the role editor", "instances", "create", "--token-file", file)
	s.mustFail(1, "needs the role admin", "projects", "list", "--token-file", file)

	second := strings.TrimSpace(s.mustRun("tokens", "rotate", "ci", "--project", "team-b", "--grace", "10m"))
	assert.True(t, strings.HasPrefix(second, "fc_"), second)
	assert.Contains(t, s.mustRun("zones", "list", "--token-file", file), "nebula-1a", "in its grace")
	s.mustRun("tokens", "rotate", "ci", "--project", "team-b", "--out", file)
	third, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.NotEqual(t, first, third)
	s.mustRun("zones", "list", "--token-file", file)
	old := filepath.Join(dir, "old")
	require.NoError(t, os.WriteFile(old, []byte(second), 0o600))
	s.mustFail(1, "was rotated", "zones", "list", "--token-file", old)

	var made api.TokenWithSecret
	require.NoError(t, json.Unmarshal([]byte(s.mustRun("tokens", "create", "own", "-o", "json")), &made))
	assert.True(t, made.Token.Role == api.RoleEditor && made.Token.ExpiresAt == nil && made.Secret != "")
	assert.NotContains(t, s.mustRun("tokens", "get", "own", "-o", "yaml"), made.Secret)
	assert.Regexp(t, `(?m)^operator\s+admin\s+flag\s+-\s`, s.mustRun("tokens", "list"))
	assert.Contains(t, s.mustRun("__complete", "tokens", "delete", "o"), "own\n")
	s.mustFail(2, "choose viewer, editor or admin", "tokens", "create", "x", "--role", "owner")
	s.mustFail(2, "give one", "tokens", "create", "x", "--expires-in", "1h", "--expires-at", "2999-01-01T00:00:00Z")
	s.mustFail(2, "want a time", "tokens", "create", "x", "--expires-at", "soon")
	s.mustFail(1, "would have expired already", "tokens", "create", "x", "--expires-at", "2001-01-01T00:00:00Z")
	s.mustFail(1, "wrong-state", "tokens", "delete", "operator")
	s.mustFail(1, "wrong-state", "tokens", "rotate", "operator")
	s.mustFail(1, "rotate late --out FILE", "tokens", "create", "late", "--out", filepath.Join(old, "below-a-file"))
	s.mustRun("tokens", "delete", "own", "late")
	s.mustFail(1, "no token \"own\"", "tokens", "get", "own")

	s.mustFail(1, "your token's own", "projects", "delete", "default")
	s.mustRun("projects", "delete", "team-b")
	s.mustFail(1, "unauthenticated", "zones", "list", "--token-file", file)
}

// Tokens created through the API survive a restart. Tokens of the command line survive if they
// are given again.
func TestTokensSurviveRestart(t *testing.T) {
	dir := t.TempDir()
	viewer, made := filepath.Join(dir, "viewer"), filepath.Join(dir, "made")
	s := commandShell{t, startServe(t, dir, "--token", "watcher:viewer="+viewer)}
	s.mustRun("tokens", "create", "made", "--out", made)
	s.mustFail(1, "needs the role editor", "instances", "create", "--token-file", viewer)
	s.p.kill()
	s.p = startServe(t, dir)
	s.mustRun("instances", "create", "--token-file", made)
	s.mustFail(1, "unauthenticated", "zones", "list", "--token-file", viewer)
	s.p.kill()
	s.p = startServe(t, dir, "--token", "watcher="+viewer)
	s.mustRun("instances", "create", "--token-file", viewer) // An editor, by default.
}

func TestNetworkAndQuotaCommands(t *testing.T) {
	s := commandShell{t, startServe(t, t.TempDir())}
	assert.Regexp(t, `(?m)^default\s+n-\S+\s+127\.90\.0\.0/16\s+yes\s+\ds$`, s.mustRun("networks", "list"))
	assert.Regexp(
		t, `(?m)^backend\s+n-\S+\s+10\.1\.0\.0/24\s+no\s+\ds$`,
		s.mustRun("networks", "create", "backend", "--cidr", "10.1.0.0/24", "--tag", "a=b"),
	)
	s.mustFail(2, "needs --cidr", "networks", "create", "none")
	s.mustFail(1, "network-conflict", "networks", "create", "other", "--cidr", "10.1.0.0/16")
	assert.Contains(t, s.mustRun("instances", "create", "node-1", "--network", "backend", "--wait"), "10.1.0.1")
	assert.Contains(t, s.mustRun("__complete", "instances", "create", "--network", "b"), "backend\n")
	s.mustFail(1, "no network is named", "instances", "create", "node-2", "--network", "none")
	assert.Contains(t, s.mustRun("networks", "update", "backend", "--name", "front", "--tag", "c=d"), "front")
	assert.Contains(t, s.mustRun("networks", "get", "front", "-o", "yaml"), "c: d\n")
	s.mustFail(1, "has instances", "networks", "delete", "front")

	s.mustRun("routes", "create", "r", "--destination", "10.244.0.0/24", "--instance", "node-1")
	assert.Contains(t, s.mustRun("routes", "update", "r", "--name", "q", "--tag", "a=b"), "q ")
	assert.Contains(t, s.mustRun("instances", "update", "node-1", "--tag", "a=b", "-o", "json"), `"a": "b"`)
	assert.Contains(
		t, s.mustRun("instances", "update", "node-1", "--name", "node-2", "--no-tags", "-o", "json"), `"tags": {}`,
	)
	s.mustFail(2, "nothing to update", "instances", "update", "node-2")
	s.mustFail(2, "give one", "instances", "update", "node-2", "--tag", "a=b", "--no-tags")
	s.mustRun("routes", "delete", "q")
	s.mustRun("instances", "terminate", "node-2", "--wait")
	s.mustRun("networks", "delete", "front")

	assert.Regexp(t, `(?m)^instances\s+0\s+12000$`, s.mustRun("quotas", "get"))
	assert.Regexp(t, `(?m)^instances\s+0\s+0$`, s.mustRun("quotas", "set", "--instances", "0"))
	s.mustFail(1, "quota-exceeded", "instances", "create")
	s.mustFail(2, "nothing to set", "quotas", "set")
	s.mustRun("projects", "create", "team-a")
	assert.Regexp(t, `(?m)^networks\s+1\s+7$`, s.mustRun("quotas", "set", "--project", "team-a", "--networks", "7"))
	assert.Contains(t, s.mustRun("quotas", "get", "--project", "team-a", "-o", "yaml"), "limit: 12000\n")
	assert.Equal(t, "NAME\nnebula-1\n", s.mustRun("regions", "list"))
	assert.Regexp(t, `(?m)^medium\s+4\s+8192$`, s.mustRun("instance-types", "list"))
}

func TestChangedTokenFileReplacesToken(t *testing.T) {
	dir := t.TempDir()
	p := startServe(t, dir)
	old, err := os.ReadFile(p.token)
	require.NoError(t, err)
	p.kill()
	require.NoError(t, os.WriteFile(p.token, []byte("a-token-of-my-own-choice\n"), 0o600))
	p = startServe(t, dir)
	_, err = p.client.Project(t.Context())
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(p.token, old, 0o600))
	_, err = p.client.Project(t.Context())
	require.True(t, client.HasCode(err, api.Unauthenticated), err)
}

func TestTokensCanBeSwappedAndLeftOut(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	valid := func(p *process, file string) bool {
		c, err := client.New(client.Config{URL: p.url, TokenFile: file})
		require.NoError(t, err)
		_, err = c.Project(t.Context())
		if !client.HasCode(err, api.Unauthenticated) {
			require.NoError(t, err)
		}
		return err == nil
	}
	p := startServe(t, dir, "--token", "a="+a, "--token", "b="+b)
	assert.True(t, valid(p, a) && valid(p, b))
	p.kill()
	p = startServe(t, dir, "--token", "a="+b, "--token", "b="+a)
	assert.True(t, valid(p, a) && valid(p, b))
	p.kill()
	p = startServe(t, dir, "--token", "c="+b)
	assert.True(t, valid(p, b))
	assert.False(t, valid(p, a), "not given any more")
}
