package kind

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/state"
)

func TestCCMCommand(t *testing.T) {
	st := state.InDir("/labs/x", "x")
	st.Kind = &state.Kind{Subnet: "10.123.16.0/20", PodNetwork: Routes}
	command := (&Cluster{lab: st, bin: cluster.Binaries{Dir: "/bin"}}).CCMCommand()
	assert.Equal(t, "127.123.16.1", command.Address, "no other lab's, and this machine's")
	assert.Contains(t, command.Args, "--bind-address=127.123.16.1")
	assert.Contains(t, command.Args, "--cluster-name=x")
	assert.Equal(
		t, "--configure-cloud-routes=true", lastValue(command.Args, "--configure-cloud-routes="),
		"pods need the cloud's routes",
	)
	st.Kind.PodNetwork = Kindnet
	command = (&Cluster{lab: st, bin: cluster.Binaries{Dir: "/bin"}}).CCMCommand()
	assert.Equal(t, "--configure-cloud-routes=false", lastValue(command.Args, "--configure-cloud-routes="))
	assert.NotEqual(
		t, loopbackOf(netip.MustParsePrefix("10.123.0.0/20")), loopbackOf(netip.MustParsePrefix("10.123.16.0/20")),
	)
}

// lastValue is the argument that counts.
func lastValue(args []string, flag string) (found string) {
	for _, a := range args {
		if len(a) > len(flag) && a[:len(flag)] == flag {
			found = a
		}
	}
	return found
}
