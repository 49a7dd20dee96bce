package e2e

// A cluster that somebody has already, with a cloud and a CCM added to it: an
// embedded lab without a CCM plays the cluster.

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/lab/process"
	"github.com/ccmlab/ccmlab/lab/status"
)

// beside is another lab with the same home.
func (f *fixture) beside() *fixture {
	second := &fixture{t: f.t, name: f.name + "-x", home: f.home, bin: f.bin}
	f.t.Cleanup(func() {
		if f.t.Failed() {
			second.printLogs()
		}
		out, err := second.try("down")
		assert.NoError(f.t, err, out)
	})
	return second
}

func TestExternalCluster(t *testing.T) {
	host := newFixture(t)
	host.lab("up", "--without-ccm", "--nodes", "2", "--profile", "instant")
	guest := host.beside()
	// As in a cluster that never had a CCM; the rights of the host's own eyes
	// stay.
	out, err := host.command(
		"kube/kubectl", "--kubeconfig", host.dir("kubeconfig", "operator.yaml"), "delete", "--kustomize",
		"../../manifests/ccm/overlays/outside",
	).CombinedOutput()
	require.NoError(t, err, string(out))

	t.Run("what is missing is named, and nothing is left of the attempt", guest.externalMistakes)
	t.Run("what somebody has by the same names is left alone", func(*testing.T) { guest.respects(host) })
	guest.lab(
		"up", "--cluster", "external", "--kubeconfig", host.dir("kubeconfig", "operator.yaml"), "--profile", "instant",
	)
	t.Run("the guest's cloud and CCM initialise the host's nodes", func(*testing.T) { guest.nodesAreGuests(host) })
	t.Run("status, env, logs and up again work the same", func(*testing.T) { guest.looksAlike(host) })
	t.Run("the CCM is stopped and started", guest.ccmIsKept)
	t.Run("a Service gets an address of the guest's cloud", func(t *testing.T) {
		guest.eventually("the demo's Service to have an address", func(st status.Status) bool {
			return len(st.Services) == 1 && st.Services[0].State == "active" &&
				net.ParseIP(st.Services[0].Address) != nil
		})
	})
	t.Run("after down the cluster is as it was", func(*testing.T) { guest.leaves(host) })
	t.Run("but for the provider IDs, which a new cloud cannot take over", func(t *testing.T) {
		out, err := guest.try("up", "--cluster", "external", "--kubeconfig", host.dir("kubeconfig", "operator.yaml"))
		assert.Error(t, err)
		assert.Contains(t, out, "nodes are instances of a cloud that is no more: node-1 (fakecloud://i-")
	})
}

func (f *fixture) externalMistakes(t *testing.T) {
	dead := filepath.Join(t.TempDir(), "dead.yaml")
	require.NoError(t, os.WriteFile(dead, []byte(`apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
users: [{name: u, user: {token: t}}]
current-context: c
`), 0o600))
	empty := filepath.Join(t.TempDir(), "empty.yaml")
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	for want, args := range map[string][]string{
		"needs --kubeconfig FILE":                     nil,
		"no such file or directory":                   {"--kubeconfig", "/does/not/exist.yaml"},
		"the cluster of " + dead + " does not answer": {"--kubeconfig", dead},
		"no configuration has been provided":          {"--kubeconfig", empty},
		"an external cluster has the nodes it has":    {"--kubeconfig", dead, "--nodes", "3"},
	} {
		out, err := f.try(append([]string{"up", "--cluster", "external"}, args...)...)
		assert.Error(t, err)
		assert.Contains(t, out, want)
		assert.NoDirExists(t, f.dir())
	}
}

// respects meets a ServiceAccount and a ClusterRole of somebody's.
func (f *fixture) respects(host *fixture) {
	t, kube := f.t, host.kube("operator")
	const name = "cloud-controller-manager"
	accounts, roles := kube.CoreV1().ServiceAccounts(metav1.NamespaceSystem), kube.RbacV1().ClusterRoles()
	meta := metav1.ObjectMeta{Name: name}
	account, err := accounts.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: meta}, metav1.CreateOptions{})
	require.NoError(t, err)
	role, err := roles.Create(t.Context(), &rbacv1.ClusterRole{
		ObjectMeta: meta,
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get"}}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)

	out, err := f.try("up", "--cluster", "external", "--kubeconfig", host.dir("kubeconfig", "operator.yaml"))
	assert.Error(t, err)
	assert.Contains(
		t, out,
		"applying ClusterRole cloud-controller-manager: somebody has one by that name that says something else, and it is left alone",
	)
	f.lab("down")

	sameAccount, err := accounts.Get(t.Context(), name, metav1.GetOptions{})
	require.NoError(t, err)
	assert.Equal(t, account, sameAccount)
	sameRole, err := roles.Get(t.Context(), name, metav1.GetOptions{})
	require.NoError(t, err)
	assert.Equal(t, role, sameRole)
	require.NoError(t, accounts.Delete(t.Context(), name, metav1.DeleteOptions{}))
	require.NoError(t, roles.Delete(t.Context(), name, metav1.DeleteOptions{}))
}

func (f *fixture) nodesAreGuests(host *fixture) {
	st := f.status()
	assert.Equal(f.t, "external", st.Cluster)
	assert.Equal(f.t, "running", st.State, st.Problems)
	instances, err := f.api().ListInstances(f.t.Context(), client.InstanceFilter{})
	require.NoError(f.t, err)
	require.Len(f.t, instances, 2)
	require.Len(f.t, st.Nodes, 2)
	zones := map[string]bool{}
	for _, i := range instances {
		n := nodeNamed(st, i.Name)
		require.NotNil(f.t, n, i.Name)
		assert.False(f.t, n.Tainted)
		assert.Equal(f.t, "fakecloud://"+i.ID, n.ProviderID)
		assert.Equal(f.t, i.Zone, n.Zone)
		assert.Equal(f.t, f.name, i.Tags["kubernetes-cluster"])
		zones[i.Zone] = true
	}
	assert.Len(f.t, zones, 2)
	theirs, err := host.api().ListInstances(f.t.Context(), client.InstanceFilter{})
	require.NoError(f.t, err)
	require.Len(f.t, theirs, 2)
	for _, i := range theirs {
		assert.NotEqual(f.t, i.ID, nodeNamed(st, i.Name).InstanceID)
	}
}

func (f *fixture) looksAlike(host *fixture) {
	assert.Contains(f.t, f.lab("env"), "KUBECONFIG='"+host.dir("kubeconfig", "operator.yaml")+"'")
	assert.Contains(f.t, f.lab("logs", "ccm"), "Successfully initialized node node-1")
	assert.Contains(f.t, f.lab("logs", "fakecloud"), "fakecloud is ready")
	assert.Contains(f.t, f.lab("watch", "--follow=false"), "initialized")
	before := f.status()
	f.lab("up")
	after := f.status()
	assert.Equal(f.t, before.Nodes, after.Nodes)
	names := func(st status.Status) (names []string) {
		for _, c := range st.Components {
			names = append(names, c.Name)
		}
		return names
	}
	assert.Equal(f.t, []string{"lab-agent", "fakecloud", "ccm"}, names(after))
}

// leaves takes the guest down, which takes its rights out of the host's
// cluster, and no one else's.
func (f *fixture) leaves(host *fixture) {
	t := f.t
	running, err := process.Host{Lab: f.dir()}.Running()
	require.NoError(t, err)
	f.lab("down")
	for name, p := range running {
		assert.False(t, p.Alive(), name)
	}
	assert.NoDirExists(t, f.dir())

	kube := host.kube("operator")
	rbac, system := kube.RbacV1(), metav1.NamespaceSystem
	account, err1 := kube.CoreV1().ServiceAccounts(system).
		Get(t.Context(), "cloud-controller-manager", metav1.GetOptions{})
	role, err2 := rbac.ClusterRoles().Get(t.Context(), "cloud-controller-manager", metav1.GetOptions{})
	binding, err3 := rbac.ClusterRoleBindings().Get(t.Context(), "cloud-controller-manager", metav1.GetOptions{})
	delegator, err4 := rbac.ClusterRoleBindings().
		Get(t.Context(), "cloud-controller-manager:auth-delegator", metav1.GetOptions{})
	leases, err5 := rbac.Roles(system).Get(t.Context(), "cloud-controller-manager", metav1.GetOptions{})
	for i, err := range []error{err1, err2, err3, err4, err5} {
		assert.True(t, apierrors.IsNotFound(err), "%v: %+v", err, []any{account, role, binding, delegator, leases}[i])
	}
	theirs, err := rbac.ClusterRoles().Get(t.Context(), "ccmlab:observer", metav1.GetOptions{})
	require.NoError(t, err, "the host has applied it too")
	assert.NotEmpty(t, theirs.Rules)
	assert.False(t, slices.ContainsFunc(theirs.ManagedFields, func(e metav1.ManagedFieldsEntry) bool {
		return strings.Contains(e.Manager, f.name)
	}))
	st := host.status()
	assert.Equal(t, "running", st.State, st.Problems)
	assert.Len(t, st.Nodes, 2)
}
