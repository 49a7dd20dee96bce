package kind

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/identity"
)

// The cloud's container listens where the lab says that each dialect is spoken.
func TestCloudSpeaksDialects(t *testing.T) {
	said := filepath.Join(t.TempDir(), "args")
	c := newCluster(t, `for a in "$@"; do echo "$a"; done >`+said)
	require.NoError(t, c.createCloud(t.Context(), netip.MustParsePrefix(c.lab.Kind.Subnet), "tag"))
	args, err := os.ReadFile(said)
	require.NoError(t, err)
	assert.Equal(t, "https://10.123.16.2:8471", c.Cloud().Dialects["hcloud"])
	for _, dialect := range identity.Dialects() {
		address := strings.TrimPrefix(c.Cloud().Dialects[dialect], "https://")
		assert.Contains(t, strings.Split(string(args), "\n"), "--dialect="+dialect+"="+address)
	}
}
