package kind

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/pki"
)

var machine = cluster.Machine{ID: "i-1", Name: "node-1", Address: "10.123.20.0"}

// A worker's container is a copy of the control plane's: testdata/inspect.json
// is what docker said of one.
func TestWorkerArgs(t *testing.T) {
	canned, err := filepath.Abs("testdata/inspect.json")
	require.NoError(t, err)
	c := newCluster(t, `while read -r line; do echo "$line"; done <`+canned)
	found, err := c.engine.inspectContainers(t.Context(), c.controlPlaneContainer())
	require.NoError(t, err)
	require.Len(t, found, 1)
	args := c.workerArgs(found[0], c.workerContainer(machine.Name), machine)
	require.Equal(t, "run", args[0])
	require.Equal(t, BuiltImage, args[len(args)-1])
	// One flag a line, in no order: engines keep some of it as a set.
	var flags []string
	for _, arg := range args[1 : len(args)-1] {
		if strings.HasPrefix(arg, "--") {
			flags = append(flags, arg)
		} else {
			flags[len(flags)-1] += " " + arg
		}
	}
	slices.Sort(flags)
	told := strings.ReplaceAll(strings.Join(flags, "\n"), c.lab.Path(), "LAB") + "\n"
	assert.NotContains(t, told, "KUBECONFIG=")
	assert.NotContains(t, told, "41234", "the API server's port is not the workers'")
	assertGolden(t, "worker.flags", told)

	present, err := c.Present(t.Context())
	require.NoError(t, err)
	assert.Equal(t, []cluster.Machine{{Name: "ccmlab-lab-control-plane", Address: "10.123.16.16"}}, present)
	assert.Equal(t, "ccmlab-lab-control-plane", c.containerOf(cluster.Machine{ID: "i-cp", Name: "whatever"}))
	assert.Equal(t, "ccmlab-lab.node-1", c.containerOf(machine))
}

// A join is given the control plane's CA by the hash of its key, as kubeadm
// wants it, and a token.
func TestJoinConfig(t *testing.T) {
	dir := t.TempDir()
	_, err := pki.LoadOrCreate(dir, "ca")
	require.NoError(t, err)
	files := pki.PairAt(dir, "ca")
	c := newCluster(t, `case "$*" in
  "exec ccmlab-lab-control-plane cat /etc/kubernetes/pki/ca.crt") while read -r line; do echo "$line"; done <`+
		files.Cert+`;;
  "exec ccmlab-lab-control-plane kubeadm token create --ttl 10m") echo abcdef.0123456789abcdef;;
  *) echo "unexpected: $*" >&2; exit 1;;
esac`)
	var out bytes.Buffer
	require.NoError(t, c.writeJoinConfig(t.Context(), machine, "", &out))
	var join struct {
		Kind             string
		NodeRegistration struct {
			Name             string
			KubeletExtraArgs []struct{ Name, Value string }
		}
		Discovery struct {
			BootstrapToken struct {
				APIServerEndpoint, Token string
				CACertHashes             []string
			}
		}
	}
	require.NoError(t, yaml.Unmarshal(out.Bytes(), &join), out.String())
	assert.Equal(t, "JoinConfiguration", join.Kind)
	assert.Equal(t, "node-1", join.NodeRegistration.Name)
	assert.Contains(t, join.NodeRegistration.KubeletExtraArgs, struct{ Name, Value string }{"node-ip", "10.123.20.0"})
	assert.Contains(
		t, join.NodeRegistration.KubeletExtraArgs, struct{ Name, Value string }{"cloud-provider", "external"},
	)
	assert.NotContains(t, out.String(), "provider-id")
	var named bytes.Buffer
	require.NoError(t, c.writeJoinConfig(t.Context(), machine, "mine://i-1", &named))
	withID := strings.Replace(
		out.String(), "cloud-provider, value: external}\n",
		"cloud-provider, value: external}\n  - {name: provider-id, value: \"mine://i-1\"}\n", 1,
	)
	assert.Equal(t, withID, named.String())
	assert.Equal(t, "ccmlab-lab-control-plane:6443", join.Discovery.BootstrapToken.APIServerEndpoint)
	assert.Equal(t, "abcdef.0123456789abcdef", join.Discovery.BootstrapToken.Token)
	pair, err := tls.LoadX509KeyPair(files.Cert, files.Key)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(pair.Certificate[0])
	require.NoError(t, err)
	hash := sha256.Sum256(cert.RawSubjectPublicKeyInfo)
	assert.Equal(t, []string{"sha256:" + hex.EncodeToString(hash[:])}, join.Discovery.BootstrapToken.CACertHashes)

	assert.ErrorContains(t, newCluster(t, "echo nonsense").
		writeJoinConfig(t.Context(), machine, "", &out), "is no PEM file")
}

func TestControlPlaneGone(t *testing.T) {
	c := newCluster(t, `echo "No such container: $3" >&2; exit 1`)
	_, err := c.Boot(t.Context(), machine, cluster.Size{}, "")
	assert.ErrorContains(t, err, "`lab down --name lab`")
}

func render(t *testing.T, routes ...cluster.Route) string {
	t.Helper()
	script, err := connectionScript(routes)
	require.NoError(t, err)
	return script.String()
}

func TestConnectScript(t *testing.T) {
	assertGolden(t, "connect.sh", render(
		t, cluster.Route{Destination: "10.244.1.0/24", Via: "10.123.20.1"},
		cluster.Route{Destination: "10.244.2.0/24", Via: "10.123.20.2"},
	))
	assertGolden(t, "connect-none.sh", render(t))
}

// The script at work, in a network namespace of its own: routes of ours come,
// change and go, and others' stay. nft is a stand-in that keeps what it was fed.
func TestConnect(t *testing.T) {
	if out, err := exec.Command(
		"unshare", "--user", "--map-root-user", "--net", "ip", "link", "add", "eth0", "type", "bridge",
	).CombinedOutput(); err != nil {
		t.Skipf("no network namespace with an interface in it is to be had: %v: %s", err, out)
	}
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "nft"), []byte("#!/bin/sh\nexec cat >"+dir+"/rules\n"), 0o755))
	one := cluster.Route{Destination: "10.244.1.0/24", Via: "10.123.20.1"}
	moved := cluster.Route{Destination: "10.244.1.0/24", Via: "10.123.20.9"}
	two := cluster.Route{Destination: "10.244.2.0/24", Via: "10.123.20.2"}
	single := cluster.Route{Destination: "10.244.3.7/32", Via: "10.123.20.3"}
	steps := []string{
		"set -eu; ip link add eth0 type bridge; ip address add 10.123.20.0/20 dev eth0; ip link set eth0 up; ip route add 10.9.0.0/16 via 10.123.20.5",
		render(t, one, two), render(t, one, two), render(t, moved, single), render(t),
	}
	cmd := exec.Command(
		"unshare", "--user", "--map-root-user", "--net", "sh", "-euc",
		`for step; do sh -c "$step"; echo "--"; ip -4 route show; done`, "sh",
	)
	cmd.Args = append(cmd.Args, steps...)
	cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	var tables [][]string
	for _, table := range strings.Split(string(out), "--\n")[1:] {
		var routes []string
		for line := range strings.Lines(table) {
			if fields := strings.Fields(line); len(fields) > 2 && fields[1] == "via" {
				routes = append(routes, fields[0]+" "+fields[2])
			}
		}
		tables = append(tables, routes)
	}
	const others = "10.9.0.0/16 10.123.20.5"
	both := []string{others, "10.244.1.0/24 10.123.20.1", "10.244.2.0/24 10.123.20.2"}
	require.Len(t, tables, len(steps))
	assert.Equal(t, []string{others}, tables[0])
	assert.ElementsMatch(t, both, tables[1])
	assert.ElementsMatch(t, both, tables[2], "a second time changes nothing")
	assert.ElementsMatch(t, []string{others, "10.244.1.0/24 10.123.20.9", "10.244.3.7 10.123.20.3"}, tables[3])
	assert.Equal(t, []string{others}, tables[4])
	rules, err := os.ReadFile(filepath.Join(dir, "rules"))
	require.NoError(t, err)
	assert.Contains(t, string(rules), "ip saddr 10.244.0.0/16 ip daddr != 10.244.0.0/16 masquerade")
}
