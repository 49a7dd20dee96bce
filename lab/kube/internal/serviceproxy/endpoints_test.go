package serviceproxy

// Which endpoints get what is new, which keep what is there, and for how long a
// client stays with one.

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

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// endpoint is a ready one, until it is adjusted.
func (l *lab) endpoint(host int, node string, adjust ...func(*discovery.Endpoint)) discovery.Endpoint {
	yes, no := true, false
	e := discovery.Endpoint{
		Addresses:  []string{l.pod(host)},
		NodeName:   &node,
		Conditions: discovery.EndpointConditions{Ready: &yes, Serving: &yes, Terminating: &no},
	}
	for _, change := range adjust {
		change(&e)
	}
	return e
}

// terminating is what a pod that is being deleted is while its readiness probe
// still succeeds.
func terminating(e *discovery.Endpoint) {
	yes, no := true, false
	e.Conditions = discovery.EndpointConditions{Ready: &no, Serving: &yes, Terminating: &yes}
}

// ending is what it is when the probe does no longer.
func ending(e *discovery.Endpoint) {
	yes, no := true, false
	e.Conditions = discovery.EndpointConditions{Ready: &no, Serving: &no, Terminating: &yes}
}

func hinted(zone, node string) func(*discovery.Endpoint) {
	return func(e *discovery.Endpoint) {
		e.Hints = &discovery.EndpointHints{ForZones: []discovery.ForZone{{Name: zone}}, ForNodes: []discovery.ForNode{{Name: node}}}
	}
}

func slicePort(name string, protocol v1.Protocol, number int32) discovery.EndpointPort {
	return discovery.EndpointPort{Name: &name, Protocol: &protocol, Port: &number}
}

// know has the proxy know these endpoints and no others, by a slice of all ports.
func (l *lab) know(ports []discovery.EndpointPort, endpoints ...discovery.Endpoint) {
	slice := l.slice(0)
	slice.Ports, slice.Endpoints = ports, endpoints
	l.OnEndpointSliceAdd(slice)
	l.sync()
}

var onlyTCP = []discovery.EndpointPort{slicePort("", v1.ProtocolTCP, 8080)}

// answers are who answers four connections, or why nobody does.
func answers(t *testing.T, at string) string {
	t.Helper()
	seen := map[string]int{}
	for range 4 {
		answer, err := ask(t, at)
		if errors.Is(err, syscall.ECONNRESET) {
			answer = "reset"
		} else if err != nil {
			t.Fatal(err)
		}
		seen[answer]++
	}
	return fmt.Sprint(seen)
}

func TestEndpointsAreChosenAsUpstreamDoes(t *testing.T) {
	// Pod 0 and 1 are this node's, pod 2 is another's.
	for name, test := range map[string]struct {
		subnet int
		adjust func(*v1.Service)
		pods   [3]func(*discovery.Endpoint)
		want   string
	}{
		"ready before terminating":                    {20, cluster, [3]func(*discovery.Endpoint){terminating, nil, nil}, "map[pod-1:2 pod-2:2]"},
		"terminating when there are no others":        {21, cluster, [3]func(*discovery.Endpoint){terminating, ending, terminating}, "map[pod-0:2 pod-2:2]"},
		"none that does not serve":                    {22, cluster, [3]func(*discovery.Endpoint){ending, ending, ending}, "map[reset:4]"},
		"local: ready before terminating":             {23, local, [3]func(*discovery.Endpoint){terminating, nil, nil}, "map[pod-1:4]"},
		"local: terminating here before ready there":  {24, local, [3]func(*discovery.Endpoint){terminating, ending, nil}, "map[pod-0:4]"},
		"local: nowhere but here":                     {25, local, [3]func(*discovery.Endpoint){ending, ending, nil}, "map[reset:4]"},
		"the node's own, if the Service prefers them": {26, cluster, [3]func(*discovery.Endpoint){hinted("a", "node-2"), hinted("b", thisNode), hinted("a", "node-3")}, "map[pod-1:4]"},
		"the zone's, if no hint names the node":       {27, cluster, [3]func(*discovery.Endpoint){hinted("a", "node-2"), hinted("b", "node-3"), hinted("a", "node-3")}, "map[pod-0:2 pod-2:2]"},
		"all, if one has no hint":                     {28, cluster, [3]func(*discovery.Endpoint){hinted("a", thisNode), nil, ending}, "map[pod-0:2 pod-1:2]"},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, test.subnet)
			l.options.Topology = func() map[string]string { return map[string]string{v1.LabelTopologyZone: "a"} }
			service, at := l.service(test.adjust)
			l.OnServiceAdd(service)
			var endpoints []discovery.Endpoint
			for i, adjust := range test.pods {
				l.serve(l.pod(i), 8080, says(fmt.Sprintf("pod-%d", i)))
				e := l.endpoint(i, []string{thisNode, thisNode, "node-2"}[i])
				if adjust != nil {
					adjust(&e)
				}
				endpoints = append(endpoints, e)
			}
			l.know(onlyTCP, endpoints...)
			if got := answers(t, at); got != test.want {
				t.Errorf("answers came from %s, want %s", got, test.want)
			}
		})
	}
}

func cluster(service *v1.Service) {
	service.Spec.ExternalTrafficPolicy = v1.ServiceExternalTrafficPolicyCluster
}

func TestConnectionStaysWithAnEndpointThatEnds(t *testing.T) {
	l := newLab(t, 30)
	service, at := l.service()
	l.OnServiceAdd(service)
	for i := range 2 {
		l.serve(l.pod(i), 8080, func(c *net.TCPConn) { _, _ = io.Copy(c, c) })
	}
	l.know(onlyTCP, l.endpoint(0, thisNode))
	open := dial(t, at)
	defer open.Close()
	echo := func() {
		t.Helper()
		if _, err := io.WriteString(open, "x"); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(open, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
	}
	echo()
	for _, becomes := range []func(*discovery.Endpoint){terminating, ending} {
		l.know(onlyTCP, l.endpoint(0, thisNode, becomes), l.endpoint(1, thisNode))
		echo()
	}
	l.know(onlyTCP, l.endpoint(1, thisNode))
	echo()
}

func TestEachPortOfAServiceLeadsToItsOwn(t *testing.T) {
	l := newLab(t, 31)
	other := l.freePort()
	service, at := l.service(func(s *v1.Service) {
		s.Spec.Ports[0].Name = "web"
		s.Spec.Ports = append(s.Spec.Ports, v1.ServicePort{Name: "admin", Port: 81, Protocol: v1.ProtocolTCP, NodePort: int32(other), TargetPort: intstr.FromInt32(9090)})
	})
	l.OnServiceAdd(service)
	l.serve(l.pod(0), 8080, says("web"))
	l.serve(l.pod(0), 9090, says("admin"))
	l.know([]discovery.EndpointPort{slicePort("web", v1.ProtocolTCP, 8080), slicePort("admin", v1.ProtocolTCP, 9090)}, l.endpoint(0, thisNode))
	if got := answers(t, at); got != "map[web:4]" {
		t.Error(got)
	}
	if got := answers(t, fmt.Sprintf("%s:%d", l.options.Address, other)); got != "map[admin:4]" {
		t.Error(got)
	}
}

func TestNodePortThatBecomesAnotherIsServedThere(t *testing.T) {
	l := newLab(t, 32)
	service, before := l.service()
	l.OnServiceAdd(service)
	l.serve(l.pod(0), 8080, says("here"))
	l.know(onlyTCP, l.endpoint(0, thisNode))
	if got := answers(t, before); got != "map[here:4]" {
		t.Fatal(got)
	}
	moved, after := service.DeepCopy(), l.freePort()
	moved.Spec.Ports[0].NodePort = int32(after)
	l.OnServiceUpdate(service, moved)
	l.sync()
	if got := answers(t, fmt.Sprintf("%s:%d", l.options.Address, after)); got != "map[here:4]" {
		t.Error(got)
	}
	if _, err := ask(t, before); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("the port that it had: %v", err)
	}
}

// Two Services have one node port for as long as the API server takes to see it.
func TestNodePortOfTwoServicesIsTheFirstByName(t *testing.T) {
	l := newLab(t, 33)
	web, at := l.service()
	second := web.DeepCopy()
	second.Name = "a-second"
	l.serve(l.pod(0), 8080, says("web"))
	l.OnServiceAdd(web)
	l.OnServiceAdd(second)
	l.know(onlyTCP, l.endpoint(0, thisNode))
	if got := answers(t, at); got != "map[reset:4]" {
		t.Errorf("%s, but the other one has no endpoints", got)
	}
	l.OnServiceDelete(second)
	l.sync()
	if got := answers(t, at); got != "map[web:4]" {
		t.Error(got)
	}
}

func TestOfTwoFamiliesIPv4IsServed(t *testing.T) {
	l := newLab(t, 34)
	service, at := l.service(func(s *v1.Service) { s.Spec.ClusterIPs = append(s.Spec.ClusterIPs, "fd00::9") })
	l.OnServiceAdd(service)
	six := l.slice(8080, backend{"fd00::1", thisNode, true})
	six.Name, six.AddressType = "web-6", discovery.AddressTypeIPv6
	l.OnEndpointSliceAdd(six)
	l.serve(l.pod(0), 8080, says("four"))
	l.know(onlyTCP, l.endpoint(0, thisNode))
	if got := answers(t, at); got != "map[four:4]" {
		t.Error(got)
	}

	only, at := l.service(func(s *v1.Service) {
		s.Name, s.Spec.ClusterIP, s.Spec.ClusterIPs = "six", "fd00::8", []string{"fd00::8"}
	})
	l.OnServiceAdd(only)
	l.sync()
	if _, err := ask(t, at); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a Service of IPv6 only: %v", err)
	}
}

// What ends serves on, but a balancer is to send no more here (KEP-1669).
func TestHealthCheckNodePortCountsNoneThatEnds(t *testing.T) {
	l := newLab(t, 35)
	health := l.freePort()
	service, at := l.service(local, func(s *v1.Service) { s.Spec.HealthCheckNodePort = int32(health) })
	l.OnServiceAdd(service)
	l.serve(l.pod(0), 8080, says("still here"))
	url := fmt.Sprintf("http://%s:%d/", l.options.Address, health)
	l.know(onlyTCP, l.endpoint(0, thisNode), l.endpoint(1, "node-2"))
	expectHealth(t, url, http.StatusOK, 1)
	l.know(onlyTCP, l.endpoint(0, thisNode, terminating), l.endpoint(1, "node-2"))
	expectHealth(t, url, http.StatusServiceUnavailable, 0)
	if got := answers(t, at); got != "map[still here:4]" {
		t.Error(got)
	}

	moved, after := service.DeepCopy(), l.freePort()
	moved.Spec.HealthCheckNodePort = int32(after)
	l.OnServiceUpdate(service, moved)
	l.sync()
	expectHealth(t, fmt.Sprintf("http://%s:%d/", l.options.Address, after), http.StatusServiceUnavailable, 0)
	if _, err := ask(t, fmt.Sprintf("%s:%d", l.options.Address, health)); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("the port that it had: %v", err)
	}
}

func TestClientStaysForAsLongAsTheServiceSays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, second := netip.MustParseAddrPort("127.0.0.1:1"), netip.MustParseAddrPort("127.0.0.2:1")
		both := backends{endpoints: []netip.AddrPort{first, second}, affinity: time.Minute}
		client, other := netip.MustParseAddr("127.9.9.1"), netip.MustParseAddr("127.9.9.2")
		c := newChoice(both)
		next := func(client netip.Addr) netip.AddrPort {
			at := c.candidates(client)[0]
			c.chosen(client, at)
			return at
		}
		expect := func(got, want netip.AddrPort, when string) {
			t.Helper()
			if got != want {
				t.Errorf("%s: %s, want %s", when, got, want)
			}
		}
		expect(next(client), first, "a client")
		expect(next(other), second, "another")
		for range 3 {
			time.Sleep(time.Minute)
			expect(next(client), first, "within its time, which each connection begins anew")
		}
		time.Sleep(time.Minute + 1)
		c.turn = 1
		expect(next(client), second, "after its time, whoever's turn it is")

		c.change(backends{endpoints: []netip.AddrPort{first}, affinity: time.Minute})
		expect(next(client), first, "its endpoint has gone")
		c.change(both)
		expect(next(client), first, "and is back")
		c.change(backends{endpoints: both.endpoints})
		if len(c.sticky) != 0 {
			t.Errorf("without affinity %d clients are remembered", len(c.sticky))
		}
	})
}

func TestClientsAreRememberedUpToABound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		at := netip.MustParseAddrPort("127.0.0.1:1")
		c := newChoice(backends{endpoints: []netip.AddrPort{at}, affinity: time.Hour})
		first := netip.MustParseAddr("127.0.0.1")
		last := first
		for range maxSticky + 1 {
			c.chosen(last, at)
			time.Sleep(time.Millisecond)
			last = last.Next()
		}
		if _, known := c.sticky[first]; known || len(c.sticky) != maxSticky {
			t.Errorf("%d clients are remembered, the first of them: %v", len(c.sticky), known)
		}
		time.Sleep(2 * time.Hour)
		c.chosen(last, at)
		if len(c.sticky) != 1 {
			t.Errorf("%d clients are remembered, of which one is of this hour", len(c.sticky))
		}
	})
}
