package kind

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/ccmlab/ccmlab/ccm"
)

// The Deployment is that of manifests/ccm with the lab's image, times, name and
// pod network, and rolls when what it runs on changes.
func TestCCMDeployment(t *testing.T) {
	for network, routed := range map[string]struct{ routes, cidr string }{
		Routes:  {routes: "true", cidr: podSubnet},
		Kindnet: {routes: "false"},
	} {
		t.Run(network, func(t *testing.T) {
			c := newCluster(t, runs)
			c.lab.Kind.PodNetwork = network
			made := func(config string) (d appsv1.Deployment) {
				file, err := c.ccmDeployment([]byte(config))
				require.NoError(t, err)
				require.NoError(t, yaml.UnmarshalStrict(file, &d))
				return d
			}
			d := made("url: here")
			assert.EqualValues(t, ccmReplicas, *d.Spec.Replicas)
			assert.Equal(t, ccmName, d.Name)
			program := d.Spec.Template.Spec.Containers[0]
			assert.Equal(t, ccmImage, program.Image)
			assert.Equal(t, corev1.PullNever, program.ImagePullPolicy)
			assert.Equal(t, d, made("url: here"))
			assert.NotEqual(t, d.Spec.Template.Annotations, made("url: there").Spec.Template.Annotations)

			cmd, err := ccm.NewCommand()
			require.NoError(t, err)
			require.NoError(t, cmd.ParseFlags(program.Args))
			for flag, want := range map[string]string{
				"cloud-provider": "fakecloud", "cluster-name": "lab", "leader-elect-lease-duration": "4s",
				"configure-cloud-routes": routed.routes, "allocate-node-cidrs": routed.routes, "cluster-cidr": routed.cidr,
			} {
				assert.Equal(t, want, cmd.Flag(flag).Value.String(), flag)
			}
		})
	}
}
