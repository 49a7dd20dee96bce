package dataplane_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
	"github.com/ccmlab/ccmlab/fakecloud/dataplane"
)

// BenchmarkNetworkBalancers measures what the kernel is told for 300 balancers of 100 targets each: a balancer
// that is new, a target that leaves them all, a look at all counters, a balancer that goes.
func BenchmarkNetworkBalancers(b *testing.B) {
	if !runInNamespace(b) {
		return
	}
	newTestNetwork(b).plug(netip.MustParseAddr("10.9.0.1"))
	plane := dataplane.New(dataplane.Options{Interface: "eth0"})
	b.Cleanup(plane.Close)
	if err := plane.CanForward(api.KindNetwork); err != nil {
		b.Skip(err)
	}
	all := make([]cloud.Forwarding, 300)
	for i := range all {
		all[i] = cloud.Forwarding{
			ID: fmt.Sprintf("lb-%d", i), Kind: api.KindNetwork, Algorithm: api.AlgorithmFlowHash, Targets: 100,
			Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 9, 128 + byte(i>>8), byte(i)})},
			Listeners: []cloud.Listener{
				{Protocol: api.ProtocolTCP, Port: 80, TargetPort: 80}, {Protocol: api.ProtocolUDP, Port: 80, TargetPort: 80},
			},
		}
		for n := range all[i].Targets {
			all[i].Backends = append(all[i].Backends, cloud.Backend{
				Target: fmt.Sprintf("i-%d", n), Address: netip.AddrFrom4([4]byte{10, 9, 1, byte(n + 1)}),
			})
		}
	}
	forEach := func(metric string, do func(cloud.Forwarding)) {
		begin := time.Now()
		for _, f := range all {
			do(f)
		}
		b.ReportMetric(float64(time.Since(begin).Microseconds())/1000/float64(len(all)), metric)
	}
	for b.Loop() {
		forEach("ms/create", func(f cloud.Forwarding) { require.NoError(b, plane.Apply(f)) })
		forEach("ms/target-leaves", func(f cloud.Forwarding) {
			f.Backends = f.Backends[1:]
			require.NoError(b, plane.Apply(f))
		})
		begin := time.Now()
		require.Len(b, plane.Stats(all[0].ID).Targets, len(all[0].Backends)-1)
		b.ReportMetric(float64(time.Since(begin).Milliseconds()), "ms/counters")
		forEach("ms/delete", func(f cloud.Forwarding) { plane.Remove(f.ID) })
	}
}
