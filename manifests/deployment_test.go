package manifests_test

import (
	"bytes"
	"path"
	"testing"
	"text/template"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/ccmlab/ccmlab/ccm"
	"github.com/ccmlab/ccmlab/manifests"
)

type values struct {
	Cluster, ClusterCIDR, Image, ConfigHash string
	Replicas                                int
}

func render(t *testing.T, v values) appsv1.Deployment {
	t.Helper()
	tmpl, err := template.New("").Option("missingkey=error").Parse(manifests.CCMDeployment)
	require.NoError(t, err)
	var out bytes.Buffer
	require.NoError(t, tmpl.Execute(&out, v))
	var d appsv1.Deployment
	require.NoError(t, yaml.UnmarshalStrict(out.Bytes(), &d))
	return d
}

// The workload is one that the API server knows, with flags that ccm knows.
func TestCCMDeployment(t *testing.T) {
	for name, tc := range map[string]struct {
		cidr, routes string
	}{
		"with routes":    {cidr: "10.30.0.0/16", routes: "true"},
		"without routes": {routes: "false"},
	} {
		t.Run(name, func(t *testing.T) {
			// A hash of digits alone is a string too.
			d := render(t, values{Cluster: "lab", ClusterCIDR: tc.cidr, Image: "ccmlab/ccm:dev", ConfigHash: "0123", Replicas: 2})
			assert.EqualValues(t, 2, *d.Spec.Replicas)
			assert.Equal(t, "0123", d.Spec.Template.Annotations["ccmlab.io/config-hash"])
			pod := d.Spec.Template.Spec
			require.Len(t, pod.Containers, 1)
			c := pod.Containers[0]
			assert.Equal(t, "ccmlab/ccm:dev", c.Image)

			cmd, err := ccm.NewCommand()
			require.NoError(t, err)
			require.NoError(t, cmd.ParseFlags(c.Args))
			for flag, want := range map[string]string{
				"cluster-name": "lab", "cluster-cidr": tc.cidr, "configure-cloud-routes": tc.routes,
				"bind-address": c.ReadinessProbe.HTTPGet.Host, "secure-port": c.ReadinessProbe.HTTPGet.Port.String(),
			} {
				assert.Equal(t, want, cmd.Flag(flag).Value.String(), flag)
			}
			assert.EqualValues(t, c.ReadinessProbe.HTTPGet.Port.IntValue(), c.Ports[0].HostPort)
		})
	}
}

// Two replicas never meet on one host, run where nothing else can yet, and can
// do nothing to their host.
func TestCCMDeploymentIsPlacedAndConfined(t *testing.T) {
	d := render(t, values{Cluster: "lab", Image: "ccmlab/ccm:dev", Replicas: 2})
	pod := d.Spec.Template.Spec
	c := pod.Containers[0]

	apart := pod.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	require.Len(t, apart, 1)
	assert.Equal(t, corev1.LabelHostname, apart[0].TopologyKey)
	assert.Equal(t, d.Spec.Template.Labels, apart[0].LabelSelector.MatchLabels)
	assert.Equal(t, d.Spec.Template.Labels, d.Spec.Selector.MatchLabels)
	for _, taint := range []corev1.Taint{
		{Key: "node.cloudprovider.kubernetes.io/uninitialized", Value: "true", Effect: corev1.TaintEffectNoSchedule},
		{Key: "node-role.kubernetes.io/control-plane", Effect: corev1.TaintEffectNoSchedule},
		{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule},
		{Key: corev1.TaintNodeNetworkUnavailable, Effect: corev1.TaintEffectNoSchedule},
	} {
		assert.Condition(t, func() bool { return tolerated(pod.Tolerations, taint) }, taint.Key)
	}

	assert.Equal(t, corev1.PullNever, c.ImagePullPolicy)
	assert.True(t, *pod.SecurityContext.RunAsNonRoot)
	assert.NotZero(t, *pod.SecurityContext.RunAsUser)
	assert.True(t, *c.SecurityContext.ReadOnlyRootFilesystem)
	assert.Equal(t, []corev1.Capability{"ALL"}, c.SecurityContext.Capabilities.Drop)

	// The user that it runs as reads the token through the group.
	mounts := map[string]string{}
	for _, m := range c.VolumeMounts {
		mounts[m.MountPath] = m.Name
	}
	for _, e := range c.Env {
		assert.Contains(t, mounts, path.Dir(e.Value), e.Name)
	}
	assert.EqualValues(t, 0o440, *pod.Volumes[1].Secret.DefaultMode)
	assert.Equal(t, pod.SecurityContext.RunAsGroup, pod.SecurityContext.FSGroup)
}

func tolerated(tolerations []corev1.Toleration, taint corev1.Taint) bool {
	for _, tol := range tolerations {
		if tol.Key == taint.Key && tol.Operator == corev1.TolerationOpExists && tol.Effect == taint.Effect {
			return true
		}
	}
	return false
}
