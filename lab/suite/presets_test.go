package suite

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/lab/conformance/program"
	"github.com/ccmlab/ccmlab/lab/dialects"
)

func TestPresetComesBeforeWhatAPersonAdds(t *testing.T) {
	for _, name := range dialects.Names() {
		p, err := withPreset(&program.CCM{Path: "/bin/true", Args: []string{"-v=4"}, Env: []string{"A={{.Port}}"}}, name)
		require.NoError(t, err)
		require.NoError(t, p.Check(), "every text is a template that can be filled in")
		assert.Equal(t, "-v=4", p.Args[len(p.Args)-1])
		assert.Equal(t, "A={{.Port}}", p.Env[len(p.Env)-1])
		p.Values = program.Values{DialectURL: "http://127.30.0.1:8471", Port: 10258}
		env, err := p.Values.Fill(p.Env)
		require.NoError(t, err)
		assert.Contains(t, env, "HCLOUD_ENDPOINT=http://127.30.0.1:8471/v1")
		assert.Contains(t, env, "A=10258")
	}
	_, err := withPreset(&program.CCM{}, "nimbus")
	require.Error(t, err)
}
