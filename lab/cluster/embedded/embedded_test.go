package embedded

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/ccmlab/ccmlab/lab/state"
)

func newCluster(t *testing.T) *Cluster {
	t.Helper()
	t.Setenv("CCMLAB_HOME", t.TempDir())
	lab, err := state.Create("lab")
	require.NoError(t, err)
	t.Cleanup(lab.Unlock)
	lab.Slot, lab.Profile = 30, "fast"
	for name, port := range preferredPorts {
		lab.Ports[name] = port
	}
	lab.Ports[portLock] = lockPorts[0]
	return New(lab, Binaries{Dir: "/bin-dir", Kube: "/bin-dir/kube"})
}

// Two labs that start at once get different slots.
func TestSlotsAreDisjoint(t *testing.T) {
	a, err := ClaimSlot()
	require.NoError(t, err)
	defer func() { _ = a.Lock.Close() }()
	b, err := ClaimSlot()
	require.NoError(t, err)
	defer func() { _ = b.Lock.Close() }()
	assert.NotEqual(t, a.Number, b.Number)
}

// testSlot is outside of what ClaimSlot gives, so that no lab of a test beside
// this one takes it.
func testSlot() int { return lastSlot + 1 + os.Getpid()%100 }

// A slot is free again when its lock is closed; until then a lab that comes
// back waits for it.
func TestReclaim(t *testing.T) {
	ports, err := freePorts()
	require.NoError(t, err)
	held, err := claim(testSlot(), ports, false)
	require.NoError(t, err)
	short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err = ReclaimSlot(short, testSlot(), ports, false)
	require.ErrorIs(t, err, errTaken)

	long, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	require.NoError(t, held.Lock.Close())
	again, err := ReclaimSlot(long, testSlot(), ports, false)
	require.NoError(t, err)
	require.NoError(t, again.Lock.Close())
}

// A slot in which any of the lab's ports is held belongs to somebody: a lab
// whose agent has died, for one.
func TestSlotWithAHeldPortIsTaken(t *testing.T) {
	ports, err := freePorts()
	require.NoError(t, err)
	held, err := listen(address(testSlot()), ports[portEtcd])
	require.NoError(t, err)
	defer func() { _ = held.Close() }()
	_, err = claim(testSlot(), ports, false)
	assert.ErrorIs(t, err, errTaken)
	mine, err := claim(testSlot(), ports, true)
	require.NoError(t, err, "but its own lab may come back to it")
	require.NoError(t, mine.Lock.Close())
}

// A server on 0.0.0.0 holds its port in every slot; another is taken.
func TestPortHeldOnTheWildcard(t *testing.T) {
	l, err := net.Listen("tcp4", "0.0.0.0:0")
	require.NoError(t, err)
	defer func() { _ = l.Close() }()
	port := l.Addr().(*net.TCPAddr).Port
	saved := preferredPorts[portScheduler]
	preferredPorts[portScheduler] = port
	defer func() { preferredPorts[portScheduler] = saved }()
	ports, err := freePorts()
	require.NoError(t, err)
	assert.NotEqual(t, port, ports[portScheduler])
}

func TestCredentials(t *testing.T) {
	c := newCluster(t)
	require.NoError(t, c.PrepareCredentials())
	kept, err := os.ReadFile(c.OperatorKubeconfig())
	require.NoError(t, err)
	require.NoError(t, c.PrepareCredentials())
	again, err := os.ReadFile(c.OperatorKubeconfig())
	require.NoError(t, err)
	assert.Equal(t, kept, again, "a second time changes nothing")

	t.Run("only the operator is an administrator", func(t *testing.T) {
		for user := range identities {
			cfg, err := clientcmd.LoadFromFile(c.Kubeconfig(user))
			require.NoError(t, err)
			cert, err := tls.X509KeyPair(cfg.AuthInfos[user].ClientCertificateData, cfg.AuthInfos[user].ClientKeyData)
			require.NoError(t, err)
			leaf, err := x509.ParseCertificate(cert.Certificate[0])
			require.NoError(t, err)
			assert.Equal(t, user == userOperator, len(leaf.Subject.Organization) > 0 && leaf.Subject.Organization[0] == "system:masters", user)
			assert.Equal(t, "https://127.30.0.1:6443", cfg.Clusters["lab"].Server)
			info, err := os.Stat(c.Kubeconfig(user))
			require.NoError(t, err)
			assert.Equal(t, os.FileMode(0o600), info.Mode().Perm())
		}
	})
	t.Run("a client of the API server is none of etcd", func(t *testing.T) {
		verify := func(file, ca string, usage x509.ExtKeyUsage) error {
			pair, err := tls.LoadX509KeyPair(c.pki(file+".crt"), c.pki(file+".key"))
			require.NoError(t, err)
			leaf, err := x509.ParseCertificate(pair.Certificate[0])
			require.NoError(t, err)
			pem, err := os.ReadFile(c.pki(ca + ".crt"))
			require.NoError(t, err)
			roots := x509.NewCertPool()
			require.True(t, roots.AppendCertsFromPEM(pem))
			_, err = leaf.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{usage}})
			return err
		}
		assert.NoError(t, verify("kube-apiserver", "ca", x509.ExtKeyUsageServerAuth))
		assert.NoError(t, verify("etcd-client", "etcd-ca", x509.ExtKeyUsageClientAuth))
		assert.Error(t, verify("users/operator", "etcd-ca", x509.ExtKeyUsageClientAuth))
		assert.Error(t, verify("etcd-client", "ca", x509.ExtKeyUsageClientAuth))
		assert.Error(t, verify("users/operator", "ca", x509.ExtKeyUsageServerAuth))
	})
}

// What would be run: everything on the lab's own address, in its own folder,
// and nothing that skips a check.
func TestComponents(t *testing.T) {
	c := newCluster(t)
	for _, s := range [][]string{c.etcd().Args, c.apiserver().Args, c.controllerManager().Args, c.scheduler().Args, c.ccm("/config").Args, c.Fakecloud("kubernetes-cluster=lab").Args} {
		line := strings.Join(s, "\n")
		assert.Contains(t, line, "127.30.0.1")
		for _, bad := range []string{"0.0.0.0", "127.0.0.1", "insecure", "AlwaysAllow", "skip"} {
			assert.NotContains(t, line, bad)
		}
	}
	assert.Contains(t, c.controllerManager().Args, "--cloud-provider=external")
	assert.NotContains(t, strings.Join(c.apiserver().Args, " "), "--cloud-provider", "the flag is gone")
	assert.Contains(t, c.apiserver().Args, "--authorization-mode=Node,RBAC")
	assert.Equal(t, "node/node-1@127.30.16.1#i-1", Machine{ID: "i-1", Name: "node-1", Address: "127.30.16.1"}.component())
	assert.Equal(t, c.LogFile("node/node-1"), c.LogFile("node/node-1@127.30.16.1#i-1"))
}

func TestFolderTooDeepForSockets(t *testing.T) {
	assert.NoError(t, newCluster(t).CheckFolder())
	t.Setenv("CCMLAB_HOME", filepath.Join(t.TempDir(), strings.Repeat("deep", 20)))
	lab, err := state.Create("lab")
	require.NoError(t, err)
	t.Cleanup(lab.Unlock)
	assert.ErrorContains(t, New(lab, Binaries{}).CheckFolder(), "set CCMLAB_HOME to a shorter one")
}

func TestMissingBinaries(t *testing.T) {
	dir := t.TempDir()
	missing := Binaries{Dir: dir, Kube: dir}.Missing()
	assert.Len(t, missing, 2+len(KubeBinaries))
	require.NoError(t, os.WriteFile(dir+"/etcd", nil, 0o755))
	assert.NotContains(t, Binaries{Dir: dir, Kube: dir}.Missing(), dir+"/etcd")
}
