package embedded

import (
	"context"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/process"
)

const bound = 10 * time.Second

func TestWithoutCloudProvider(t *testing.T) {
	c := newCluster(t)
	named := func() []string {
		t.Helper()
		all, err := c.Components(t.Context())
		require.NoError(t, err)
		var names []string
		for _, component := range all {
			names = append(names, component.Name)
		}
		return names
	}
	for provider, want := range map[string]string{
		"": "external", cluster.ProviderExternal: "external", cluster.ProviderNone: "",
	} {
		c.Lab.CloudProvider = provider
		flags := slices.DeleteFunc(slices.Clone(c.controllerManagerSpec().Args), func(arg string) bool {
			return arg != "--cloud-provider="+want
		})
		assert.Len(t, flags, 1, "provider %q", provider)
		assert.Equal(t, want == "", c.Traits().NoCloudProvider)
		assert.Equal(t, want != "", slices.Contains(named(), "ccm"), "provider %q", provider)
	}
}

// Flags are those of the processes that run, not those that one would start.
func TestFlagsAreSeen(t *testing.T) {
	c := newCluster(t)
	flags, err := c.ProviderFlags()
	require.NoError(t, err)
	assert.Empty(t, flags, "nothing runs")

	start := func(component string, args ...string) {
		t.Helper()
		// The shell itself waits, with its arguments, for the end of its input.
		r, w, err := os.Pipe()
		require.NoError(t, err)
		p, err := c.Host.Start(process.Spec{
			Component: component, Path: "/bin/sh", Args: append([]string{"-c", "read line <&3", "sh"}, args...),
			LogFile: c.Lab.Path("log"), Inherit: []*os.File{r},
		})
		require.NoError(t, err)
		require.NoError(t, r.Close())
		t.Cleanup(func() {
			assert.NoError(t, w.Close())
			ctx, cancel := context.WithTimeout(context.Background(), bound) // The test's own has ended.
			defer cancel()
			assert.NoError(t, p.Wait(ctx))
		})
	}
	start("node/node-1@127.30.16.1#i-1", "--cloud-provider=", "--name=node-1")
	start(cluster.ComponentKCM, "--cloud-provider=external")
	start("kube-scheduler", "--cloud-provider=no-business-of-its")
	require.Eventually(t, func() bool {
		flags, err = c.ProviderFlags()
		return err == nil && len(flags) == 2
	}, bound, 10*time.Millisecond)
	assert.Equal(t, map[string]string{cluster.ComponentKubelet: "", cluster.ComponentKCM: "external"}, flags)
}
