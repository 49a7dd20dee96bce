package serviceproxy

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// readyEndpoint returns an endpoint that is ready unless adjust changes that.
func (p *testProxy) readyEndpoint(host int, node string, adjust ...func(*discovery.Endpoint)) discovery.Endpoint {
	e := discovery.Endpoint{
		Addresses: []string{p.podAddress(host)}, NodeName: &node,
		Conditions: discovery.EndpointConditions{Ready: new(true), Serving: new(true), Terminating: new(false)},
	}
	for _, change := range adjust {
		change(&e)
	}
	return e
}

func notReady(e *discovery.Endpoint) {
	e.Conditions = discovery.EndpointConditions{Ready: new(false), Serving: new(false)}
}

// terminatingAndServing makes an endpoint that of a deleted pod whose readiness probe still
// succeeds.
func terminatingAndServing(e *discovery.Endpoint) {
	e.Conditions = discovery.EndpointConditions{Ready: new(false), Serving: new(true), Terminating: new(true)}
}

// terminatingNotServing makes an endpoint that of a deleted pod whose readiness probe fails.
func terminatingNotServing(e *discovery.Endpoint) {
	e.Conditions = discovery.EndpointConditions{Ready: new(false), Serving: new(false), Terminating: new(true)}
}

func withHints(zone, node string) func(*discovery.Endpoint) {
	return func(e *discovery.Endpoint) {
		e.Hints = &discovery.EndpointHints{
			ForZones: []discovery.ForZone{{Name: zone}}, ForNodes: []discovery.ForNode{{Name: node}},
		}
	}
}

func slicePort(name string, protocol v1.Protocol, number int32) discovery.EndpointPort {
	return discovery.EndpointPort{Name: &name, Protocol: &protocol, Port: &number}
}

// endpointSlice is the Service's, without ports and endpoints.
func (p *testProxy) endpointSlice() *discovery.EndpointSlice {
	return &discovery.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: "web-1", Labels: map[string]string{discovery.LabelServiceName: "web"},
		},
		AddressType: discovery.AddressTypeIPv4,
	}
}

// setEndpoints gives the Service a slice with these endpoints, instead of any other, and syncs.
func (p *testProxy) setEndpoints(ports []discovery.EndpointPort, endpoints ...discovery.Endpoint) {
	slice := p.endpointSlice()
	slice.Ports, slice.Endpoints = ports, endpoints
	p.OnEndpointSliceAdd(slice)
	p.syncPorts()
}

var onlyTCP = []discovery.EndpointPort{slicePort("", v1.ProtocolTCP, 8080)}

// fourAnswers counts the answers to four connections by their text.
func fourAnswers(t *testing.T, at string) string {
	t.Helper()
	counts := map[string]int{}
	for range 4 {
		answer, err := readAnswer(t, at)
		if errors.Is(err, syscall.ECONNRESET) {
			answer = "reset"
		} else if err != nil {
			t.Fatal(err)
		}
		counts[answer]++
	}
	return fmt.Sprint(counts)
}

func TestEndpointSelectionMatchesUpstream(t *testing.T) {
	// Pod 0 and 1 are this node's, pod 2 is another's.
	for name, test := range map[string]struct {
		subnet int
		adjust func(*v1.Service)
		pods   [3]func(*discovery.Endpoint)
		want   string
	}{
		"ready before terminating": {
			20, clusterPolicy, [3]func(*discovery.Endpoint){terminatingAndServing, nil, nil}, "map[pod-1:2 pod-2:2]",
		},
		"terminating when there are no others": {
			21, clusterPolicy,
			[3]func(*discovery.Endpoint){terminatingAndServing, terminatingNotServing, terminatingAndServing},
			"map[pod-0:2 pod-2:2]",
		},
		"none that does not serve": {
			22, clusterPolicy,
			[3]func(*discovery.Endpoint){terminatingNotServing, terminatingNotServing, terminatingNotServing},
			"map[reset:4]",
		},
		"local: ready before terminating": {
			23, localPolicy, [3]func(*discovery.Endpoint){terminatingAndServing, nil, nil}, "map[pod-1:4]",
		},
		"local: terminating here before ready there": {
			24, localPolicy, [3]func(*discovery.Endpoint){terminatingAndServing, terminatingNotServing, nil},
			"map[pod-0:4]",
		},
		"local: nowhere but here": {
			25, localPolicy, [3]func(*discovery.Endpoint){terminatingNotServing, terminatingNotServing, nil},
			"map[reset:4]",
		},
		"the node's own, if the Service prefers them": {
			26, clusterPolicy,
			[3]func(*discovery.Endpoint){withHints("a", "node-2"), withHints("b", thisNode), withHints("a", "node-3")},
			"map[pod-1:4]",
		},
		"the zone's, if no hint names the node": {
			27, clusterPolicy,
			[3]func(*discovery.Endpoint){withHints("a", "node-2"), withHints("b", "node-3"), withHints("a", "node-3")},
			"map[pod-0:2 pod-2:2]",
		},
		"all, if one has no hint": {
			28, clusterPolicy, [3]func(*discovery.Endpoint){withHints("a", thisNode), nil, terminatingNotServing},
			"map[pod-0:2 pod-1:2]",
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newTestProxy(t, test.subnet)
			p.options.Topology = func() map[string]string { return map[string]string{v1.LabelTopologyZone: "a"} }
			var endpoints []discovery.Endpoint
			for i, adjust := range test.pods {
				p.servePod(p.podAddress(i), 8080, answerWith(fmt.Sprintf("pod-%d", i)))
				e := p.readyEndpoint(i, []string{thisNode, thisNode, "node-2"}[i])
				if adjust != nil {
					adjust(&e)
				}
				endpoints = append(endpoints, e)
			}
			_, at := p.serveService(test.adjust, endpoints...)
			assert.Equal(t, test.want, fourAnswers(t, at))
		})
	}
}

func TestConnectionOutlivesTerminatingEndpoint(t *testing.T) {
	p := newTestProxy(t, 30)
	for i := range 2 {
		p.servePod(p.podAddress(i), 8080, func(c *net.TCPConn) { _, _ = io.Copy(c, c) })
	}
	_, at := p.serveService(clusterPolicy, p.readyEndpoint(0, thisNode))
	open := mustDial(t, at)
	defer open.Close()
	echo := func() {
		t.Helper()
		_, err := io.WriteString(open, "x")
		require.NoError(t, err)
		_, err = io.ReadFull(open, make([]byte, 1))
		require.NoError(t, err)
	}
	echo()
	for _, becomes := range []func(*discovery.Endpoint){terminatingAndServing, terminatingNotServing} {
		p.setEndpoints(onlyTCP, p.readyEndpoint(0, thisNode, becomes), p.readyEndpoint(1, thisNode))
		echo()
	}
	p.setEndpoints(onlyTCP, p.readyEndpoint(1, thisNode))
	echo()
}

func TestPortsOfServiceLeadToTheirTargetPorts(t *testing.T) {
	p := newTestProxy(t, 31)
	other := p.freePort()
	service, at := p.nodePortService(func(s *v1.Service) {
		s.Spec.Ports[0].Name = "web"
		s.Spec.Ports = append(s.Spec.Ports, v1.ServicePort{
			Name: "admin", Port: 81, Protocol: v1.ProtocolTCP, NodePort: int32(other), TargetPort: intstr.FromInt32(9090),
		})
	})
	p.OnServiceAdd(service)
	p.servePod(p.podAddress(0), 8080, answerWith("web"))
	p.servePod(p.podAddress(0), 9090, answerWith("admin"))
	p.setEndpoints(
		[]discovery.EndpointPort{slicePort("web", v1.ProtocolTCP, 8080), slicePort("admin", v1.ProtocolTCP, 9090)},
		p.readyEndpoint(0, thisNode),
	)
	assert.Equal(t, "map[web:4]", fourAnswers(t, at))
	assert.Equal(t, "map[admin:4]", fourAnswers(t, p.at(other)))
}

func TestChangedNodePortIsServed(t *testing.T) {
	p := newTestProxy(t, 32)
	p.servePod(p.podAddress(0), 8080, answerWith("here"))
	service, before := p.serveService(clusterPolicy, p.readyEndpoint(0, thisNode))
	assert.Equal(t, "map[here:4]", fourAnswers(t, before))
	after := p.freePort()
	p.update(service, func(s *v1.Service) { s.Spec.Ports[0].NodePort = int32(after) })
	assert.Equal(t, "map[here:4]", fourAnswers(t, p.at(after)))
	expectClosed(t, before)
}

// Two Services may have the same node port until the API server repairs that.
func TestSharedNodePortServesFirstServiceByName(t *testing.T) {
	p := newTestProxy(t, 33)
	p.servePod(p.podAddress(0), 8080, answerWith("web"))
	web, at := p.nodePortService()
	second := web.DeepCopy()
	second.Name = "a-second"
	p.OnServiceAdd(web)
	p.OnServiceAdd(second)
	p.setEndpoints(onlyTCP, p.readyEndpoint(0, thisNode))
	assert.Equal(t, "map[reset:4]", fourAnswers(t, at), "the other one has no endpoints")
	p.OnServiceDelete(second)
	p.syncPorts()
	assert.Equal(t, "map[web:4]", fourAnswers(t, at))
}

func TestDualStackServesIPv4(t *testing.T) {
	p := newTestProxy(t, 34)
	six := p.endpointSlice()
	six.Name, six.AddressType, six.Ports = "web-6", discovery.AddressTypeIPv6, onlyTCP
	six.Endpoints = []discovery.Endpoint{p.readyEndpoint(1, thisNode)}
	six.Endpoints[0].Addresses = []string{"fd00::1"}
	p.OnEndpointSliceAdd(six)
	p.servePod(p.podAddress(0), 8080, answerWith("four"))
	_, at := p.serveService(func(s *v1.Service) { s.Spec.ClusterIPs = append(s.Spec.ClusterIPs, "fd00::9") },
		p.readyEndpoint(0, thisNode))
	assert.Equal(t, "map[four:4]", fourAnswers(t, at))

	only, at := p.nodePortService(func(s *v1.Service) {
		s.Name, s.Spec.ClusterIP, s.Spec.ClusterIPs = "six", "fd00::8", []string{"fd00::8"}
	})
	p.OnServiceAdd(only)
	p.syncPorts()
	expectClosed(t, at)
}

// A terminating endpoint still serves, but a balancer must send nothing new here (KEP-1669).
func TestHealthCheckIgnoresTerminatingEndpoints(t *testing.T) {
	p := newTestProxy(t, 35)
	before := p.freePort()
	p.servePod(p.podAddress(0), 8080, answerWith("still here"))
	service, at := p.serveService(localWithHealth(before), p.readyEndpoint(0, thisNode), p.readyEndpoint(1, "node-2"))
	p.expectHealth(before, http.StatusOK, 1)
	p.setEndpoints(onlyTCP, p.readyEndpoint(0, thisNode, terminatingAndServing), p.readyEndpoint(1, "node-2"))
	p.expectHealth(before, http.StatusServiceUnavailable, 0)
	assert.Equal(t, "map[still here:4]", fourAnswers(t, at))

	after := p.freePort()
	p.update(service, localWithHealth(after))
	p.expectHealth(after, http.StatusServiceUnavailable, 0)
	expectClosed(t, p.at(before))
}

func TestSessionAffinityTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, second := netip.MustParseAddrPort("127.0.0.1:1"), netip.MustParseAddrPort("127.0.0.2:1")
		both := backends{endpoints: []netip.AddrPort{first, second}, affinity: time.Minute}
		client, other := netip.MustParseAddr("127.9.9.1"), netip.MustParseAddr("127.9.9.2")
		c := newEndpointPicker(both)
		next := func(client netip.Addr) netip.AddrPort {
			at := c.candidateEndpoints(client)[0]
			c.rememberEndpoint(client, at)
			return at
		}
		expect := func(got, want netip.AddrPort, when string) {
			t.Helper()
			assert.Equal(t, want, got, when)
		}
		expect(next(client), first, "a client")
		expect(next(other), second, "another")
		for range 3 {
			time.Sleep(time.Minute)
			expect(next(client), first, "within its time, which each connection begins anew")
		}
		time.Sleep(time.Minute + 1)
		c.nextIndex = 1
		expect(next(client), second, "after its time, whoever's turn it is")

		c.setBackends(backends{endpoints: []netip.AddrPort{first}, affinity: time.Minute})
		expect(next(client), first, "its endpoint has gone")
		c.setBackends(both)
		expect(next(client), first, "and is back")
		c.setBackends(backends{endpoints: both.endpoints})
		assert.Empty(t, c.affinities, "without affinity")
	})
}

func TestSessionAffinityIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		at := netip.MustParseAddrPort("127.0.0.1:1")
		c := newEndpointPicker(backends{endpoints: []netip.AddrPort{at}, affinity: time.Hour})
		first := netip.MustParseAddr("127.0.0.1")
		last := first
		for range maxAffinities + 1 {
			c.rememberEndpoint(last, at)
			time.Sleep(time.Millisecond)
			last = last.Next()
		}
		assert.Len(t, c.affinities, maxAffinities)
		assert.NotContains(t, c.affinities, first)
		time.Sleep(2 * time.Hour)
		c.rememberEndpoint(last, at)
		assert.Len(t, c.affinities, 1, "one is of this hour")
	})
}
