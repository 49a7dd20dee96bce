package embedded

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/cluster/local"
	"github.com/ccmlab/ccmlab/lab/process"
	"github.com/ccmlab/ccmlab/lab/state"
)

func newCluster(t *testing.T) *Cluster {
	t.Helper()
	t.Setenv("CCMLAB_HOME", t.TempDir())
	lab, err := state.Create("lab")
	require.NoError(t, err)
	t.Cleanup(lab.Unlock)
	lab.Slot, lab.Profile = 30, "fast"
	lab.Ports = map[string]int{
		local.PortCloud: 8470, local.PortEtcd: 2379, local.PortEtcdPeer: 2380, local.PortAPIServer: 6443,
		local.PortKCM: 10257, local.PortCCM: 10258, local.PortScheduler: 10259,
	}
	return New(lab, cluster.Binaries{Dir: "/bin-dir", Kube: "/bin-dir/kube"})
}

func TestCredentials(t *testing.T) {
	c := newCluster(t)
	require.NoError(t, c.prepareCredentials())
	kept, err := os.ReadFile(c.Kubeconfig())
	require.NoError(t, err)
	require.NoError(t, c.prepareCredentials())
	again, err := os.ReadFile(c.Kubeconfig())
	require.NoError(t, err)
	assert.Equal(t, kept, again, "a second time changes nothing")

	t.Run("only the operator is an administrator", func(t *testing.T) {
		for user := range identities {
			cfg, err := clientcmd.LoadFromFile(c.kubeconfigOf(user))
			require.NoError(t, err)
			cert, err := tls.X509KeyPair(cfg.AuthInfos[user].ClientCertificateData, cfg.AuthInfos[user].ClientKeyData)
			require.NoError(t, err)
			leaf, err := x509.ParseCertificate(cert.Certificate[0])
			require.NoError(t, err)
			assert.Equal(t, user == userOperator, len(leaf.Subject.Organization) > 0 &&
				leaf.Subject.Organization[0] == "system:masters", user)
			assert.Equal(t, "https://127.30.0.1:6443", cfg.Clusters["lab"].Server)
			info, err := os.Stat(c.kubeconfigOf(user))
			require.NoError(t, err)
			assert.Equal(t, os.FileMode(0o600), info.Mode().Perm())
		}
	})
	t.Run("a client of the API server is none of etcd", func(t *testing.T) {
		verify := func(file, ca string, usage x509.ExtKeyUsage) error {
			pair, err := tls.LoadX509KeyPair(c.pkiPath(file+".crt"), c.pkiPath(file+".key"))
			require.NoError(t, err)
			leaf, err := x509.ParseCertificate(pair.Certificate[0])
			require.NoError(t, err)
			pem, err := os.ReadFile(c.pkiPath(ca + ".crt"))
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
	c.AuditPolicy = auditPolicy
	for _, s := range [][]string{
		c.etcdSpec().Args, c.apiserverSpec().Args, c.controllerManagerSpec().Args,
		c.schedulerSpec().Args, c.ccmSpec().Args, c.Fakecloud("kubernetes-cluster=lab").Args,
	} {
		line := strings.Join(s, "\n")
		assert.Contains(t, line, "127.30.0.1")
		for _, bad := range []string{"0.0.0.0", "127.0.0.1", "insecure", "AlwaysAllow", "skip"} {
			assert.NotContains(t, line, bad)
		}
	}
	assert.Contains(t, c.controllerManagerSpec().Args, "--cloud-provider=external")
	assert.NotContains(t, strings.Join(c.apiserverSpec().Args, " "), "--cloud-provider", "the flag is gone")
	assert.Contains(t, c.apiserverSpec().Args, "--authorization-mode=Node,RBAC")
	for _, args := range [][]string{c.apiserverSpec().Args, c.controllerManagerSpec().Args} {
		assert.Contains(t, args, "--service-cluster-ip-range=10.30.0.0/17,fd00:10:1e::/112")
	}
	assert.Equal(
		t, "node/node-1@127.30.16.1#i-1",
		componentOfMachine(cluster.Machine{ID: "i-1", Name: "node-1", Address: "127.30.16.1"}),
	)
	assert.Equal(t, c.LogFile("node/node-1"), c.LogFile("node/node-1@127.30.16.1#i-1"))
}

func TestFolderTooDeepForSockets(t *testing.T) {
	assert.NoError(t, newCluster(t).CheckFolder())
	t.Setenv("CCMLAB_HOME", filepath.Join(t.TempDir(), strings.Repeat("deep", 20)))
	lab, err := state.Create("lab")
	require.NoError(t, err)
	t.Cleanup(lab.Unlock)
	assert.ErrorContains(t, New(lab, cluster.Binaries{}).CheckFolder(), "set CCMLAB_HOME to a shorter one")
}

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
