package manifests_test

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/ccmlab/ccmlab/ccm"
	"github.com/ccmlab/ccmlab/manifests"
)

// kustomize is the output of `kubectl kustomize` for a folder of ccm/ or classroom/. That needs no
// cluster.
func kustomize(t *testing.T, of, dir string) []byte {
	t.Helper()
	kubectl, err := filepath.Abs(
		filepath.Join(cmp.Or(os.Getenv("LAB_KUBE_BIN"), filepath.Join("..", "bin", "kube")), "kubectl"),
	)
	require.NoError(t, err)
	require.FileExists(t, kubectl, "`make build` makes it")
	// `go test` caches results by the files that the test itself reads, so it reads what kubectl
	// reads.
	require.NoError(t, fs.WalkDir(os.DirFS(of), ".", func(file string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			_, err = os.ReadFile(filepath.Join(of, file))
		}
		return err
	}))
	cmd := exec.CommandContext(t.Context(), kubectl, "kustomize", filepath.Join(of, dir))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err, "%s", &stderr)
	assert.Empty(t, stderr.String(), "deprecations and the like")
	return out
}

// decodeObjects reads documents as strictly as the API server: with known types and fields only.
func decodeObjects(t *testing.T, files ...[]byte) []runtime.Object {
	t.Helper()
	strict := scheme.Codecs.UniversalDeserializer()
	var objects []runtime.Object
	for _, file := range files {
		docs := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(file)))
		for {
			doc, err := docs.Read()
			if errors.Is(err, io.EOF) {
				break
			}
			require.NoError(t, err)
			obj, _, err := strict.Decode(doc, nil, nil)
			require.NoError(t, err, "%s", doc)
			objects = append(objects, obj)
		}
	}
	return objects
}

// onlyObject is the only object of its type.
func onlyObject[T runtime.Object](t *testing.T, objects []runtime.Object) T {
	t.Helper()
	var found []T
	for _, o := range objects {
		if typed, ok := o.(T); ok {
			found = append(found, typed)
		}
	}
	require.Len(t, found, 1)
	return found[0]
}

// Labs apply the same objects as a person who applies the kustomize base.
func TestLabsApplyTheBase(t *testing.T) {
	assert.ElementsMatch(
		t, decodeObjects(t, kustomize(t, "ccm", "base")),
		decodeObjects(t, manifests.CCM, manifests.CCMDeployment, manifests.CCMDisruptionBudget),
	)
	assert.ElementsMatch(
		t, decodeObjects(t, kustomize(t, "ccm", "overlays/outside")),
		decodeObjects(t, manifests.CCM, manifests.CCMUser),
	)
}

// A CCM outside the cluster has the same roles as its service account.
func TestUserHasTheServiceAccountsRights(t *testing.T) {
	roles := map[bool][]rbacv1.RoleRef{}
	for _, user := range []bool{false, true} {
		file := manifests.CCM
		if user {
			file = manifests.CCMUser
		}
		for _, o := range decodeObjects(t, file) {
			switch o := o.(type) {
			case *rbacv1.ClusterRoleBinding:
				roles[user] = append(roles[user], o.RoleRef)
			case *rbacv1.RoleBinding:
				assert.Equal(t, "kube-system", o.Namespace)
				roles[user] = append(roles[user], o.RoleRef)
			}
		}
	}
	assert.Len(t, roles[false], 5)
	assert.ElementsMatch(t, roles[false], roles[true])
}

// Each overlay has a workload that the API server accepts, with flags that ccm
// accepts, and all other objects that it needs.
func TestOverlays(t *testing.T) {
	for dir, tc := range map[string]struct {
		replicas            int32
		cidr, routes, cidrs string
	}{
		"overlays/example": {replicas: 2, routes: "false", cidrs: "false"},
		"overlays/routes":  {replicas: 2, routes: "true", cidrs: "true", cidr: "10.244.0.0/16"},
		"overlays/dev":     {replicas: 1, routes: "false", cidrs: "false"},
	} {
		t.Run(path.Base(dir), func(t *testing.T) {
			objects := decodeObjects(t, kustomize(t, "ccm", dir))
			d := onlyObject[*appsv1.Deployment](t, objects)
			assert.Equal(t, tc.replicas, *d.Spec.Replicas)
			assert.Equal(t, map[string]string{"app": d.Name}, d.Spec.Selector.MatchLabels, "final in the cluster")
			pod := d.Spec.Template.Spec
			require.Len(t, pod.Containers, 1)
			c := pod.Containers[0]
			assert.Equal(t, "registry.example.com/ccmlab/ccm:v0.0.0", c.Image)

			cmd, err := ccm.NewCommand()
			require.NoError(t, err)
			require.NoError(t, cmd.ParseFlags(c.Args))
			for flag, want := range map[string]string{
				"cluster-name": "example", "cluster-cidr": tc.cidr, "configure-cloud-routes": tc.routes,
				"allocate-node-cidrs": tc.cidrs,
				"bind-address":        c.ReadinessProbe.HTTPGet.Host,
				"secure-port":         c.ReadinessProbe.HTTPGet.Port.String(),
			} {
				assert.Equal(t, want, cmd.Flag(flag).Value.String(), flag)
			}
			assert.EqualValues(t, c.ReadinessProbe.HTTPGet.Port.IntValue(), c.Ports[0].HostPort)
			assert.Equal(t, c.ReadinessProbe.HTTPGet.Path, c.LivenessProbe.HTTPGet.Path)

			config, secret := onlyObject[*corev1.ConfigMap](t, objects), onlyObject[*corev1.Secret](t, objects)
			assert.Contains(t, config.Data, path.Base(cmd.Flag("cloud-config").Value.String()))
			assert.Equal(
				t, config.Name, pod.Volumes[0].ConfigMap.Name,
				"with the hash, so that another configuration makes other pods",
			)
			assert.Equal(
				t, policyRules(decodeObjects(t, manifests.CCM)), policyRules(objects),
				"kustomize leaves the lease's name alone",
			)
			assert.Equal(t, secret.Name, pod.Volumes[1].Secret.SecretName)
			for _, e := range c.Env {
				_, inConfig := config.Data[path.Base(e.Value)]
				_, inSecret := secret.Data[path.Base(e.Value)]
				assert.True(t, inConfig || inSecret, e.Name)
			}
			assert.Equal(t, d.Namespace, config.Namespace)
			assert.Equal(t, d.Namespace, secret.Namespace)
			assert.Equal(t, d.Namespace, onlyObject[*corev1.ServiceAccount](t, objects).Namespace)
		})
	}
}

// The DaemonSet has the Deployment's pod, on control-plane nodes.
func TestDaemonSetOverlay(t *testing.T) {
	objects := decodeObjects(t, kustomize(t, "ccm", "overlays/daemonset"))
	deployment := onlyObject[*appsv1.Deployment](t, decodeObjects(t, kustomize(t, "ccm", "overlays/example")))
	d := onlyObject[*appsv1.DaemonSet](t, objects)
	for _, o := range objects {
		assert.NotContains(t, []string{"Deployment", "PodDisruptionBudget"}, o.GetObjectKind().GroupVersionKind().Kind)
	}
	assert.Equal(t, deployment.Spec.Selector, d.Spec.Selector)
	assert.Equal(t, deployment.Spec.Template.Labels, d.Spec.Template.Labels)
	assert.Equal(t, 1, d.Spec.UpdateStrategy.RollingUpdate.MaxUnavailable.IntValue())
	assert.Zero(t, d.Spec.UpdateStrategy.RollingUpdate.MaxSurge, "a second has no port")

	want, pod := deployment.Spec.Template.Spec, d.Spec.Template.Spec
	assert.Equal(t, map[string]string{"node-role.kubernetes.io/control-plane": ""}, pod.NodeSelector)
	assert.True(t, pod.HostNetwork)
	for _, toleration := range want.Tolerations {
		assert.Equal(t, toleration.Effect == corev1.TaintEffectNoSchedule, slices.Contains(pod.Tolerations, toleration),
			"%s: it stays as long as its node does", toleration.Key)
	}
	want.Tolerations, want.Affinity, want.NodeSelector = pod.Tolerations, nil, pod.NodeSelector
	assert.Equal(t, want, pod, "all else is the Deployment's")
}

// Every object says by the recommended labels what it belongs to, also what kustomize makes.
func TestRecommendedLabels(t *testing.T) {
	for _, dir := range []string{"base", "overlays/example", "overlays/daemonset", "overlays/outside"} {
		for _, o := range decodeObjects(t, kustomize(t, "ccm", dir)) {
			object, err := meta.Accessor(o)
			require.NoError(t, err)
			labels := object.GetLabels()
			what := dir + ": " + o.GetObjectKind().GroupVersionKind().Kind + " " + object.GetName()
			assert.Equal(t, "cloud-controller-manager", labels["app.kubernetes.io/name"], what)
			assert.Equal(t, "ccmlab", labels["app.kubernetes.io/part-of"], what)
		}
	}
}

func policyRules(objects []runtime.Object) (roles []rbacv1.PolicyRule) {
	for _, o := range objects {
		switch o := o.(type) {
		case *rbacv1.ClusterRole:
			roles = append(roles, o.Rules...)
		case *rbacv1.Role:
			roles = append(roles, o.Rules...)
		}
	}
	slices.SortFunc(roles, func(a, b rbacv1.PolicyRule) int { return strings.Compare(a.String(), b.String()) })
	return roles
}

// Two replicas never run on the same host. They tolerate the taints of new nodes, and have no
// privileges on their host.
func TestCCMDeploymentPlacementAndSecurity(t *testing.T) {
	d := onlyObject[*appsv1.Deployment](t, decodeObjects(t, manifests.CCMDeployment))
	pod := d.Spec.Template.Spec
	c := pod.Containers[0]

	assert.EqualValues(t, 2, *d.Spec.Replicas)
	apart := pod.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	require.Len(t, apart, 1)
	assert.Equal(t, corev1.LabelHostname, apart[0].TopologyKey)
	assert.Equal(t, d.Spec.Selector.MatchLabels, apart[0].LabelSelector.MatchLabels)
	assert.Subset(t, d.Spec.Template.Labels, d.Spec.Selector.MatchLabels)
	assert.Zero(t, d.Spec.Strategy.RollingUpdate.MaxSurge.IntValue(), "a third has no host with its port free")
	assert.True(t, pod.HostNetwork)
	assert.Equal(t, corev1.DNSDefault, pod.DNSPolicy)
	assert.Equal(t, "system-cluster-critical", pod.PriorityClassName)
	for _, taint := range []corev1.Taint{
		{Key: "node.cloudprovider.kubernetes.io/uninitialized", Value: "true", Effect: corev1.TaintEffectNoSchedule},
		{Key: "node-role.kubernetes.io/control-plane", Effect: corev1.TaintEffectNoSchedule},
		{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule},
		{Key: corev1.TaintNodeNetworkUnavailable, Effect: corev1.TaintEffectNoSchedule},
	} {
		assert.True(t, isTolerated(pod.Tolerations, taint), taint.Key)
	}
	assert.False(t, isTolerated(
		pod.Tolerations,
		corev1.Taint{Key: "node.cloudprovider.kubernetes.io/shutdown", Effect: corev1.TaintEffectNoSchedule},
	))

	assert.True(t, *pod.SecurityContext.RunAsNonRoot)
	assert.NotZero(t, *pod.SecurityContext.RunAsUser)
	assert.Equal(t, corev1.SeccompProfileTypeRuntimeDefault, pod.SecurityContext.SeccompProfile.Type)
	assert.True(t, *c.SecurityContext.ReadOnlyRootFilesystem)
	assert.False(t, *c.SecurityContext.AllowPrivilegeEscalation)
	assert.Equal(t, []corev1.Capability{"ALL"}, c.SecurityContext.Capabilities.Drop)
	assert.NotEmpty(t, c.Resources.Requests)
	assert.Contains(t, c.Resources.Limits, corev1.ResourceMemory)
	assert.NotContains(t, c.Resources.Limits, corev1.ResourceCPU, "a throttled leader loses its lease")

	// The user that it runs as reads the token through the group.
	mounts := map[string]string{}
	for _, m := range c.VolumeMounts {
		assert.True(t, m.ReadOnly, m.Name)
		mounts[m.MountPath] = m.Name
	}
	for _, e := range c.Env {
		assert.Contains(t, mounts, path.Dir(e.Value), e.Name)
	}
	assert.EqualValues(t, 0o440, *pod.Volumes[1].Secret.DefaultMode)
	assert.Equal(t, pod.SecurityContext.RunAsGroup, pod.SecurityContext.FSGroup)

	budget := onlyObject[*policyv1.PodDisruptionBudget](t, decodeObjects(t, manifests.CCMDisruptionBudget))
	assert.Equal(t, d.Spec.Selector, budget.Spec.Selector)
	assert.Equal(t, 1, budget.Spec.MaxUnavailable.IntValue())
}

func isTolerated(tolerations []corev1.Toleration, taint corev1.Taint) bool {
	return slices.ContainsFunc(tolerations, func(tol corev1.Toleration) bool {
		return tol.Key == taint.Key && tol.Operator == corev1.TolerationOpExists && tol.Effect == taint.Effect
	})
}
