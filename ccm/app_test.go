package ccm

import (
	"io"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/cloud-provider/options"
)

// Whether the route controller runs, by the flags given. Without a range it
// would end the process.
func TestRoutesNeedCIDR(t *testing.T) {
	for name, tc := range map[string]struct {
		args []string
		want bool
	}{
		"nothing said":         {},
		"asked for, no range":  {args: []string{"--configure-cloud-routes=true"}},
		"a range of blanks":    {args: []string{"--cluster-cidr= "}},
		"a range":              {args: []string{"--cluster-cidr=10.244.0.0/16"}, want: true},
		"a range, but told no": {args: []string{"--cluster-cidr=10.244.0.0/16", "--configure-cloud-routes=false"}},
	} {
		t.Run(name, func(t *testing.T) {
			opts, err := options.NewCloudControllerManagerOptions()
			require.NoError(t, err)
			flags := new(cobra.Command).Flags()
			opts.KubeCloudShared.AddFlags(flags)
			require.NoError(t, flags.Parse(tc.args))
			disableRoutesWithoutCIDR(opts.KubeCloudShared.KubeCloudSharedConfiguration)
			assert.Equal(t, tc.want, opts.KubeCloudShared.ConfigureCloudRoutes)
		})
	}
}

func TestClusterNameWarning(t *testing.T) {
	opts, err := options.NewCloudControllerManagerOptions()
	require.NoError(t, err)
	assert.Contains(t, clusterNameWarning(opts.KubeCloudShared.ClusterName), "its own name", "upstream's default")
	assert.Empty(t, clusterNameWarning("blue"))
}

// Service accounts for each controller would end the process again and again. The command line is refused instead.
func TestServiceAccountCredentialsAreRefused(t *testing.T) {
	cmd, err := NewCommand()
	require.NoError(t, err)
	cmd.SetArgs([]string{"--use-service-account-credentials", "--kubeconfig=/nonexistent", "--secure-port=0"})
	cmd.SetErr(io.Discard)
	assert.ErrorContains(t, cmd.Execute(), "--use-service-account-credentials is not supported")
}
