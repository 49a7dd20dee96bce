package integration

// Leader migration, as the page about it teaches: another controller manager holds the lease
// that it shares with the CCM.

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/testbed"
)

const sharedLease = "cloud-provider-extraction-migration"

var (
	fenced   = regexp.MustCompile("(?ms)^ *```(\\w+)\\n(.*?)^ *```")
	indented = regexp.MustCompile(`(?m)^   `)
)

// followMigrationPage types the page's commands, and returns the flags of the CCM.
func (w *world) followMigrationPage() []string {
	w.t.Helper()
	page, err := os.ReadFile("../lessons/site/pages/migration.md")
	require.NoError(w.t, err)
	blocks := map[string]string{}
	for _, m := range fenced.FindAllStringSubmatch(string(page), -1) {
		blocks[m[1]] = indented.ReplaceAllString(m[2], "")
	}
	bin, err := cluster.FindBinaries("../../bin", "")
	require.NoError(w.t, err)
	require.NoError(w.t, bin.Need(nil, []string{"kubectl"}))
	shell := exec.CommandContext(w.t.Context(), "sh", "-ec", blocks["sh"])
	kube, err := filepath.Abs(bin.Kube)
	require.NoError(w.t, err)
	shell.Env = append(os.Environ(), "PATH="+kube+":"+os.Getenv("PATH"), "KUBECONFIG="+w.Cluster().Kubeconfig())
	out, err := shell.CombinedOutput()
	require.NoError(w.t, err, "%s", out)
	config := filepath.Join(w.t.TempDir(), "migration.yaml")
	require.NoError(w.t, os.WriteFile(config, []byte(blocks["yaml"]), 0o600))
	return []string{"--enable-leader-migration", "--leader-migration-config=" + config}
}

// holdSharedLease makes another controller manager the holder of the shared lease.
func (w *world) holdSharedLease() {
	w.t.Helper()
	now := metav1.NowMicro()
	_, err := w.Admin().CoordinationV1().Leases(metav1.NamespaceSystem).Create(w.ctx, &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: sharedLease},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: ptr.To("kube-controller-manager"), LeaseDurationSeconds: ptr.To(int32(time.Hour / time.Second)),
			AcquireTime: &now, RenewTime: &now,
		},
	}, metav1.CreateOptions{})
	require.NoError(w.t, err)
}

// releaseSharedLease has nobody hold it any more.
func (w *world) releaseSharedLease() {
	w.t.Helper()
	leases := w.Admin().CoordinationV1().Leases(metav1.NamespaceSystem)
	lease, err := leases.Get(w.ctx, sharedLease, metav1.GetOptions{})
	require.NoError(w.t, err)
	require.Equal(w.t, "kube-controller-manager", *lease.Spec.HolderIdentity, "it was not taken from its holder")
	lease.Spec.HolderIdentity = ptr.To("")
	_, err = leases.Update(w.ctx, lease, metav1.UpdateOptions{})
	require.NoError(w.t, err)
}

// While another controller manager holds the shared lease, nothing that the migrated controllers do is
// done, by the cloud watch neither; what the controller does that is not migrated, is done. With the
// lease the CCM does all of it.
func TestLeaderMigration(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testbed.Options{})
	before := w.startCCM(testbed.CCMOptions{})
	gone := w.addNode("node-1")
	require.NoError(t, w.SetReady(w.ctx, corev1.ConditionTrue, "node-1"))
	svc := w.create(service("web", 8080))
	w.awaitAddress(svc, "")
	w.awaitEvent(string(svc.UID), "EnsuredLoadBalancer") // The recorder sends it later than the address.
	lost := w.balancers(svc)[0]
	require.NoError(t, before.Kill())
	leases := w.Admin().CoordinationV1().Leases(metav1.NamespaceSystem)
	require.NoError(t, leases.Delete(w.ctx, "cloud-controller-manager", metav1.DeleteOptions{}), "it need not expire")

	w.holdSharedLease()
	ccm := w.startCCM(testbed.CCMOptions{Flags: w.followMigrationPage()})
	w.addNode("node-2") // So it leads, and follows the cloud's events.
	_, err := w.Cloud().DeleteLoadBalancer(w.ctx, lost.ID)
	require.NoError(t, err)
	_, err = w.Cloud().TerminateInstance(w.ctx, gone.ID)
	require.NoError(t, err)
	w.awaitNoBalancer(svc)
	w.addNode("node-3") // Its events come after those.
	deleted := time.Now()
	w.await("the CCM to lead for longer than a change out of band must last", func() error {
		lease, err := leases.Get(w.ctx, "cloud-controller-manager", metav1.GetOptions{})
		if err == nil && lease.Spec.RenewTime.Before(&metav1.MicroTime{Time: deleted.Add(3 * time.Second)}) {
			err = fmt.Errorf("it renewed its lease at %s", lease.Spec.RenewTime)
		}
		return err
	})
	_, err = ccm.Get(w.ctx, "/healthz")
	require.NoError(t, err)
	assert.Empty(t, w.balancers(svc))
	assert.Empty(t, w.events(string(svc.UID), contract.ReasonLoadBalancerRepaired))
	w.nodeExists("node-1")

	w.releaseSharedLease()
	w.awaitNodeGone("node-1")
	w.await("upstream's controller to have ensured the balancer", func() error {
		if ensured := w.events(string(svc.UID), "EnsuredLoadBalancer"); len(ensured) < 2 { // One of each CCM.
			return fmt.Errorf("%d Events say so", len(ensured))
		}
		return nil
	})
	lease, err := leases.Get(w.ctx, sharedLease, metav1.GetOptions{})
	require.NoError(t, err)
	made := w.balancers(svc)[0]
	assert.True(t, made.CreatedAt.After(lease.Spec.AcquireTime.Time),
		"made at %s, and the lease was taken at %s", made.CreatedAt, lease.Spec.AcquireTime)
	_, err = w.Cloud().DeleteLoadBalancer(w.ctx, made.ID)
	require.NoError(t, err)
	w.awaitEvent(string(svc.UID), contract.ReasonLoadBalancerRepaired)
}
