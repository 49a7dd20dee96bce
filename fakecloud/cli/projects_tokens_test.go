package cli_test

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
)

func TestProjectAndTokenCommands(t *testing.T) {
	dir := t.TempDir()
	p := startServe(t, dir)
	ok, fails := p.commandRunners(t)
	assert.Regexp(
		t, `(?m)^team-a\s+p-\S+\s+a=b,c=d\s+\ds$`,
		ok("projects", "create", "team-a", "--default-tag", "a=b", "--default-tag", "c=d"),
	)
	assert.Regexp(t, `(?m)^default\s.*\nteam-a\s`, ok("projects", "list"))
	assert.Contains(t, ok("projects", "get", "-o", "yaml"), "role: admin\n")
	assert.Contains(t, ok("__complete", "projects", "get", "te"), "team-a\n")
	assert.Contains(t, ok("__complete", "tokens", "list", "--project", ""), "team-a\n")
	assert.Regexp(
		t, `(?m)^team-b\s+p-\S+\s+-\s`,
		ok("projects", "update", "team-a", "--name", "team-b", "--no-default-tags"),
	)
	fails(2, "nothing to update", "projects", "update", "team-b")
	fails(1, "no project is named", "projects", "get", "team-a")

	file := filepath.Join(dir, "tokens", "ci")
	out := ok(
		"tokens", "create", "ci", "--project", "team-b", "--role", "viewer", "--expires-in", "1h", "--out", file,
	)
	assert.Regexp(t, `(?m)^ci\s+viewer\s+api\s+20\S+Z\s+\ds$`, out)
	info := must.Do(os.Stat(file))(t)
	assert.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	first := must.Do(os.ReadFile(file))(t)
	assert.Contains(t, ok("projects", "get", "-o", "yaml", "--token-file", p.token), "name: default\n")
	assert.Contains(t, ok("zones", "list", "--token-file", file), "nebula-1a")

	second := strings.TrimSpace(ok("tokens", "rotate", "ci", "--project", "team-b", "--grace", "10m"))
	assert.Regexp(t, "^[a-z0-9]{64}$", second)
	ok("tokens", "rotate", "ci", "--project", "team-b", "--out", file)
	third := must.Do(os.ReadFile(file))(t)
	assert.NotEqual(t, first, third)
	ok("zones", "list", "--token-file", file)

	var made api.TokenWithSecret
	require.NoError(t, json.Unmarshal([]byte(ok("tokens", "create", "own", "-o", "json")), &made))
	assert.True(t, made.Token.Role == api.RoleEditor && made.Token.ExpiresAt == nil && made.Secret != "")
	assert.NotContains(t, ok("tokens", "get", "own", "-o", "yaml"), made.Secret)
	assert.Regexp(t, `(?m)^operator\s+admin\s+flag\s+-\s`, ok("tokens", "list"))
	assert.Contains(t, ok("__complete", "tokens", "delete", "o"), "own\n")
	fails(2, "choose viewer, editor or admin", "tokens", "create", "x", "--role", "owner")
	fails(2, "give one", "tokens", "create", "x", "--expires-in", "1h", "--expires-at", "2999-01-01T00:00:00Z")
	fails(2, "want a time", "tokens", "create", "x", "--expires-at", "soon")
	fails(1, "rotate late --out FILE", "tokens", "create", "late", "--out", filepath.Join(file, "below-a-file"))
	ok("tokens", "delete", "own", "late")
	fails(1, "no token \"own\"", "tokens", "get", "own")

	ok("projects", "delete", "team-b")
	fails(1, "unauthenticated", "zones", "list", "--token-file", file)
}

// Tokens of the command line have the role that it gives, or editor, and end unless they are given again.
func TestTokensOfTheCommandLine(t *testing.T) {
	dir := t.TempDir()
	viewer := filepath.Join(dir, "viewer")
	p := startServe(t, dir, "--token", "watcher:viewer="+viewer)
	_, fails := p.commandRunners(t)
	fails(1, "needs the role editor", "instances", "create", "--token-file", viewer)
	p.kill()
	p = startServe(t, dir)
	_, fails = p.commandRunners(t)
	fails(1, "unauthenticated", "zones", "list", "--token-file", viewer)
	p.kill()
	ok, _ := startServe(t, dir, "--token", "watcher="+viewer).commandRunners(t)
	ok("instances", "create", "--token-file", viewer)
}

// writeKeyPair writes files as openssl does.
func writeKeyPair(t *testing.T, private, public string) {
	t.Helper()
	key := must.Do(rsa.GenerateKey(rand.Reader, 2048))(t)
	for file, block := range map[string]pem.Block{
		private: {Type: "PRIVATE KEY", Bytes: must.Do(x509.MarshalPKCS8PrivateKey(key))(t)},
		public:  {Type: "PUBLIC KEY", Bytes: must.Do(x509.MarshalPKIXPublicKey(&key.PublicKey))(t)},
	} {
		require.NoError(t, os.WriteFile(file, pem.EncodeToMemory(&block), 0o600))
	}
}

func TestTokenKeyCommands(t *testing.T) {
	dir := t.TempDir()
	ok, fails := startServe(t, dir).commandRunners(t)
	private, public := filepath.Join(dir, "key.pem"), filepath.Join(dir, "key.pub.pem")
	writeKeyPair(t, private, public)
	fails(2, "needs --file", "tokens", "keys", "add", "operator")
	fails(2, "no such file", "tokens", "keys", "add", "operator", "--file", private+"2")
	fails(1, "is a private key", "tokens", "keys", "add", "operator", "--file", private)
	fails(1, `no token "none"`, "tokens", "keys", "add", "none", "--file", public)
	row := regexp.MustCompile(`(?m)^((?:[0-9a-f]{2}:){15}[0-9a-f]{2})\s+\ds$`)
	added := row.FindStringSubmatch(ok("tokens", "keys", "add", "operator", "--file", public))
	require.NotNil(t, added)
	assert.Equal(t, added[1], row.FindStringSubmatch(ok("tokens", "keys", "list", "operator"))[1])
	assert.Contains(t, ok("__complete", "tokens", "keys", "list", "o"), "operator\n")
	ok("tokens", "keys", "delete", "operator", added[1])
	fails(1, "has no key", "tokens", "keys", "delete", "operator", added[1])
	assert.Contains(t, ok("tokens", "keys", "list", "operator", "-o", "json"), `"items": []`)
}

func TestNetworkAndQuotaCommands(t *testing.T) {
	ok, fails := startServe(t, t.TempDir()).commandRunners(t)
	assert.Regexp(t, `(?m)^default\s+n-\S+\s+127\.90\.0\.0/16\s+yes\s+\ds$`, ok("networks", "list"))
	assert.Regexp(
		t, `(?m)^backend\s+n-\S+\s+10\.1\.0\.0/24\s+no\s+\ds$`,
		ok("networks", "create", "backend", "--cidr", "10.1.0.0/24", "--tag", "a=b"),
	)
	fails(2, "needs --cidr", "networks", "create", "none")
	assert.Contains(t, ok("instances", "create", "node-1", "--network", "backend", "--wait",
		"--secondary-address", "10.1.0.9", "--secondary-address", "fd00:16::1"), "10.1.0.1,10.1.0.9,fd00:16::1")
	assert.Contains(t, ok("__complete", "instances", "create", "--network", "b"), "backend\n")
	fails(1, "no network is named", "instances", "create", "node-2", "--network", "none")
	assert.Contains(t, ok("networks", "update", "backend", "--name", "front", "--tag", "c=d"), "front")
	assert.Contains(t, ok("networks", "get", "front", "-o", "yaml"), "c: d\n")

	ok("routes", "create", "r", "--destination", "10.244.0.0/24", "--instance", "node-1")
	assert.Contains(t, ok("routes", "update", "r", "--name", "q", "--tag", "a=b"), "q ")
	assert.Contains(t, ok("instances", "update", "node-1", "--tag", "a=b", "-o", "json"), `"a": "b"`)
	assert.Contains(
		t, ok("instances", "update", "node-1", "--name", "node-2", "--no-tags", "-o", "json"), `"tags": {}`,
	)
	fails(2, "nothing to update", "instances", "update", "node-2")
	fails(2, "give one", "instances", "update", "node-2", "--tag", "a=b", "--no-tags")
	ok("routes", "delete", "q")
	ok("instances", "terminate", "node-2", "--wait")
	ok("networks", "delete", "front")

	assert.Regexp(t, `(?m)^instances\s+0\s+12000$`, ok("quotas", "get"))
	assert.Regexp(t, `(?m)^instances\s+0\s+0$`, ok("quotas", "set", "--instances", "0"))
	fails(2, "nothing to set", "quotas", "set")
	ok("projects", "create", "team-a")
	assert.Regexp(t, `(?m)^networks\s+1\s+7$`, ok("quotas", "set", "--project", "team-a", "--networks", "7"))
	assert.Contains(t, ok("quotas", "get", "--project", "team-a", "-o", "yaml"), "limit: 12000\n")
	assert.Equal(t, "NAME\nnebula-1\n", ok("regions", "list"))
	assert.Regexp(t, `(?m)^medium\s+4\s+8192$`, ok("instance-types", "list"))
}

func TestChangedTokenFileReplacesToken(t *testing.T) {
	dir := t.TempDir()
	p := startServe(t, dir)
	old := must.Do(os.ReadFile(p.token))(t)
	p.kill()
	require.NoError(t, os.WriteFile(p.token, []byte("a-token-of-my-own-choice\n"), 0o600))
	p = startServe(t, dir)
	_, err := p.client.Project(t.Context())
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(p.token, old, 0o600))
	_, err = p.client.Project(t.Context())
	require.True(t, client.HasCode(err, api.Unauthenticated), err)
}
