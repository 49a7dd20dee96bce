package suite

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/ccmlab/ccmlab/fakecloud/identity"
	"github.com/ccmlab/ccmlab/lab/conformance"
	"github.com/ccmlab/ccmlab/lab/conformance/profiles"
	"github.com/ccmlab/ccmlab/lab/conformance/program"
	"github.com/ccmlab/ccmlab/lab/dialects"
)

func TestPresetComesBeforeWhatAPersonAdds(t *testing.T) {
	token := filepath.Join(t.TempDir(), "ccm.token")
	require.NoError(t, os.WriteFile(token, []byte("secret\n"), 0o600))
	key := filepath.Join(filepath.Dir(token), "key.pem")
	require.NoError(t, os.WriteFile(key, []byte("-----BEGIN PRIVATE KEY-----\nMII\n-----END PRIVATE KEY-----\n"), 0o600))
	want := map[string][]string{
		"oci": {`OCI_REGION_METADATA={"realmKey":"fc1","realmDomainComponent":"x@127.30.0.1:8471",` +
			`"regionKey":"neb","regionIdentifier":"nebula-1"}`},
		"hcloud":    {"HCLOUD_ENDPOINT=http://127.30.0.1:8471/v1", "HCLOUD_NETWORK_ROUTES_ENABLED=true"},
		"brightbox": {"BRIGHTBOX_API_URL=http://127.30.0.1:8471/", "BRIGHTBOX_CLIENT_SECRET=secret"},
		"oxide":     {"OXIDE_HOST=http://127.30.0.1:8471", "OXIDE_TOKEN=secret"},
	}
	for _, name := range dialects.Names() {
		p, _, err := withPreset(&program.CCM{Path: "/bin/true", Args: []string{"-v=4"}, Env: []string{"A={{.Port}}"}}, name)
		require.NoError(t, err)
		require.NoError(t, p.Check(), "every text is a template that can be filled in")
		assert.Equal(t, "-v=4", p.Args[len(p.Args)-1])
		assert.Equal(t, "A={{.Port}}", p.Env[len(p.Env)-1])
		p.Values = program.Values{
			DialectURL: "http://127.30.0.1:8471", NeedsRoutes: "true", Port: 10258, TokenFile: token,
			DialectHost: "127.30.0.1:8471", Project: "lab", KeyFile: key, KeyFingerprint: "aa:bb", NetworkCode: "00001",
			CloudConfig: filepath.Join(t.TempDir(), "config.yaml"),
		}
		spec, err := p.Spec()
		require.NoError(t, err)
		assert.Subset(t, spec.Env, append(want[name], "A=10258"))
		if name != "oci" {
			continue
		}
		content, err := os.ReadFile(p.Values.CloudConfig)
		require.NoError(t, err)
		var config struct {
			Auth map[string]string
			VCN  string
		}
		require.NoError(t, yaml.Unmarshal(content, &config))
		assert.Equal(t, map[string]string{
			"region": "nebula-1", "tenancy": "ocid1.tenancy.fc1..lab", "compartment": "ocid1.tenancy.fc1..lab",
			"user": "ocid1.user.fc1..ccm", "fingerprint": "aa:bb",
			"key": "-----BEGIN PRIVATE KEY-----\nMII\n-----END PRIVATE KEY-----",
		}, config.Auth)
		assert.Equal(t, "ocid1.vcn.fc1.neb.00001", config.VCN)
	}
	given, _, err := withPreset(&program.CCM{ConfigTemplate: "mine"}, "oci")
	require.NoError(t, err)
	assert.Equal(t, "mine", given.ConfigTemplate, "what a person gives wins")
	_, _, err = withPreset(&program.CCM{}, "nimbus")
	require.Error(t, err)
}

// What a preset says of the suite are capabilities and features that the suite has.
func TestPresetsAreJudged(t *testing.T) {
	var known []string
	for _, f := range conformance.AllFeatures() {
		known = append(known, string(f))
	}
	for _, test := range profiles.All() {
		known = append(known, string(test.Capability))
	}
	for _, name := range dialects.Names() {
		o := Options{
			Program: &program.CCM{Path: "/bin/true"},
			Options: conformance.Options{Implementation: conformance.Implementation{
				Unsupported: conformance.Unsupported{"udp": "said by a person"},
			}},
		}
		preset, err := dialects.Named(name)
		require.NoError(t, err)
		for _, text := range preset.Client {
			require.NoError(t, program.CheckTemplate(text), text)
		}
		if !slices.Contains(identity.Dialects(), name) {
			require.ErrorContains(t, o.UseDialect(name), "there is nothing to judge")
			continue
		}
		require.NoError(t, o.UseDialect(name))
		require.NoError(t, o.Program.Check())
		assert.Equal(t, name, o.CCMNames.Dialect)
		assert.NotEmpty(t, o.CCMNames.ServiceTag+o.CCMNames.AddressPrefix)
		assert.Equal(t, "said by a person", o.Implementation.Unsupported["udp"])
		for what, why := range o.Implementation.Unsupported {
			assert.Contains(t, known, what)
			assert.NotEmpty(t, why, what)
		}
		for _, c := range o.Implementation.Claims {
			assert.Contains(t, known, string(c))
		}
	}
}
