package config

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func env(vars map[string]string) func(string) string {
	return func(name string) string { return vars[name] }
}

func TestEverythingWrongIsReportedAtOnce(t *testing.T) {
	_, err := Read(strings.NewReader(`
url: ftp://x
caFile: /does/not/exist
cache: perhaps
qps: fast
burst: 0.5
tokens: a
massDeletion: {share: 2, minimum: -1, window: 30, hold: 0s, wait: 1s}
nodeLabels: {tags: [team, a/b, 7], prefix: node.kubernetes.io/}
nodeAddresses: {families: [ipv4, ipv4], internalRanges: [10.0.0.0/16, 10.0.0.1]}
loadBalancer: {defaults: {drain: 1d}}
`), env(map[string]string{"FAKECLOUD_MASS_DELETION_SHARE": "33%", "FAKECLOUD_NODE_LABELS_TAGS": "team, -x"}))
	for _, want := range []string{
		`url "ftp://x": want http://host:port`, "tokenFile (or FAKECLOUD_TOKEN_FILE) is missing",
		"project (or FAKECLOUD_PROJECT) is missing", "caFile: open /does/not/exist",
		`cache: "perhaps"; want true or false`, `qps: "fast"; want a number`, `burst: 0.5; want a whole number`,
		`unknown field "tokens": there are url, tokenFile,`,
		`FAKECLOUD_MASS_DELETION_SHARE: "33%"; want a number`,
		"massDeletion.minimum -1: want a number of Nodes of 0 or more",
		"massDeletion.window: 30; want a duration with its unit", "massDeletion.hold 0s: want a duration over 0",
		`unknown field "massDeletion.wait": there are share, minimum, window, hold`,
		`nodeLabels.tags: ["team","a/b",7]; want a list of texts`,
		`nodeLabels.prefix "node.kubernetes.io/": kubernetes.io/`,
		`nodeAddresses.families ["ipv4" "ipv4"]: want ipv4, ipv6 or both`,
		`nodeAddresses.internalRanges "10.0.0.1": want CIDRs`,
		`loadBalancer.defaults: annotation fakecloud.ccmlab.io/drain is "1d"; want a duration`,
	} {
		assert.ErrorContains(t, err, want)
	}
	assert.Len(t, strings.Split(err.Error(), "\n"), 18, "each once, in a line of its own: %v", err)
}

func TestWhatCannotBeTakenForAConfig(t *testing.T) {
	for name, tc := range map[string]struct{ text, want string }{
		"a list":             {"- url: x\n", "want fields such as"},
		"no YAML":            {"url: [", "not readable as YAML"},
		"a field twice":      {"url: http://a\nurl: http://b\n", "already set"},
		"a value of none":    {"massDeletion: 5\n", "massDeletion: want fields of its own below it, not 5"},
		"fields for one":     {"url: {a: b}\n", `url: {"a":"b"}; want one value`},
		"a label's key":      {"nodeLabels: {tags: [a/b]}\n", `nodeLabels.tags "a/b": want keys of tags`},
		"a tag of two words": {"nodeLabels: {tags: 'team, a b'}\n", `nodeLabels.tags "a b": want keys of tags`},
		"a prefix of none":   {"nodeLabels: {prefix: team}\n", `nodeLabels.prefix "team": want a DNS name and a slash`},
		"endless calls":      {"qps: .inf\n", "not readable as YAML"},
		"no calls":           {"qps: -1\n", "qps -1: want calls a second"},
		"none at once":       {"burst: 0\n", "burst 0: want 1 or more"},
		"no token":           {"tokenFile: /dev/null\n", "tokenFile /dev/null is empty"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Read(strings.NewReader(tc.text), env(nil))
			assert.ErrorContains(t, err, tc.want)
		})
	}
}

// leaves are all fields of a Config that hold a value.
func leaves(v reflect.Value, prefix string) (all []field) {
	for i := range v.NumField() {
		tag := v.Type().Field(i).Tag
		name, _, _ := strings.Cut(tag.Get("json"), ",")
		if env := tag.Get("env"); env != "" {
			all = append(all, field{prefix + name, env, v.Field(i)})
		} else {
			all = append(all, leaves(v.Field(i), prefix+name+".")...)
		}
	}
	return all
}

// The example has every field and names every variable, in the same order, and
// shows the defaults.
func TestExample(t *testing.T) {
	text, err := os.ReadFile("example.yaml")
	require.NoError(t, err)
	token := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(token, []byte("secret"), 0o600))
	got, err := Read(bytes.NewReader(text), env(map[string]string{"FAKECLOUD_TOKEN_FILE": token}))
	require.NoError(t, err)
	want := Default()
	want.URL, want.TokenFile, want.Project = got.URL, token, got.Project
	assert.Equal(t, want, got)

	given, err := parseYAML(text)
	require.NoError(t, err)
	var envs []string
	for _, f := range leaves(reflect.ValueOf(got), "") {
		envs = append(envs, f.env)
		var at any = given
		for _, name := range strings.Split(f.path, ".") {
			below, ok := at.(map[string]any)
			require.True(t, ok, f.path)
			require.Contains(t, below, name)
			at = below[name]
		}
	}
	assert.Equal(t, envs, regexp.MustCompile(`FAKECLOUD_[A-Z_]+`).FindAllString(string(text), -1))
}

// Each variable sets its own field and no other.
func TestEveryFieldHasItsVariable(t *testing.T) {
	dir := t.TempDir()
	token, ca := filepath.Join(dir, "token"), filepath.Join(dir, "ca")
	require.NoError(t, os.WriteFile(token, []byte("secret"), 0o600))
	require.NoError(t, os.WriteFile(ca, []byte("secret"), 0o600)) // As a token file, it must hold something.
	base := map[string]string{"FAKECLOUD_URL": "http://a:1", "FAKECLOUD_TOKEN_FILE": token, "FAKECLOUD_PROJECT": "a"}
	values := map[string]string{
		"FAKECLOUD_URL": "http://b:2", "FAKECLOUD_TOKEN_FILE": ca, "FAKECLOUD_PROJECT": "b", "FAKECLOUD_CA_FILE": ca,
		"FAKECLOUD_CACHE": "false", "FAKECLOUD_QPS": "7.5", "FAKECLOUD_BURST": "8",
		"FAKECLOUD_MASS_DELETION_SHARE": "0.5", "FAKECLOUD_MASS_DELETION_MINIMUM": "9",
		"FAKECLOUD_MASS_DELETION_WINDOW": "1m30s", "FAKECLOUD_MASS_DELETION_HOLD": "2m0s",
		"FAKECLOUD_NODE_LABELS_TAGS": "team,pool", "FAKECLOUD_NODE_LABELS_PREFIX": "example.com/",
		"FAKECLOUD_NODE_ADDRESSES_FAMILIES": "ipv6,ipv4", "FAKECLOUD_NODE_ADDRESSES_INTERNAL_RANGES": "10.0.0.0/16,fd00::/48",
		"FAKECLOUD_LOAD_BALANCER_DEFAULTS": "drain=30s;tags=a=b,c=d",
	}
	before, err := Read(nil, env(base))
	require.NoError(t, err)
	for i, f := range leaves(reflect.ValueOf(before), "") {
		vars := maps.Clone(base)
		vars[f.env] = values[f.env]
		after, err := Read(nil, env(vars))
		require.NoError(t, err, f.env)
		changed := leaves(reflect.ValueOf(&after).Elem(), "")[i].value
		shown := fmt.Sprint(changed.Interface())
		switch v := changed.Interface().(type) {
		case []string:
			shown = strings.Join(v, ",")
		case map[string]string:
			shown = "drain=" + v["drain"] + ";tags=" + v["tags"]
		case metav1.Duration:
			shown = v.Duration.String()
		}
		assert.Equal(t, values[f.env], shown, f.env)
		changed.Set(f.value)
		assert.Equal(t, before, after, "%s changes nothing else", f.env)
	}
}

func TestTokenTellsTokensApart(t *testing.T) {
	c := Config{TokenFile: filepath.Join(t.TempDir(), "token")}
	assert.Empty(t, c.Token())
	require.NoError(t, os.WriteFile(c.TokenFile, []byte("secret"), 0o600))
	first := c.Token()
	assert.NotContains(t, first, "secret")
	require.NoError(t, os.WriteFile(c.TokenFile, []byte("secret\n"), 0o600))
	assert.Equal(t, first, c.Token(), "the same to the cloud")
	require.NoError(t, os.WriteFile(c.TokenFile, []byte("second"), 0o600))
	assert.NotEqual(t, first, c.Token())
}
