package core

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/ccmlab/ccmlab/ccm/annotations"
	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

// withRangesAnnotation is service() with upstream's annotation for source ranges.
func withRangesAnnotation(ranges string) *corev1.Service {
	svc := service()
	svc.Annotations = map[string]string{corev1.AnnotationLoadBalancerSourceRangesKey: ranges}
	return svc
}

type invalidService struct {
	svc  *corev1.Service
	errs []string
}

// invalidServices ask for what cannot be. With each is what its error says.
func invalidServices() map[string]invalidService {
	fields := serviceWithAnnotations(annotations.ProxyProtocol, "v3")
	fields.Spec.Ports[0].Protocol, fields.Spec.Ports[1].NodePort = corev1.ProtocolSCTP, 0
	fields.Spec.LoadBalancerSourceRanges = []string{"192.0.2.0"}
	fields.Spec.LoadBalancerIP = "2001:db8::1" //nolint:staticcheck // Deprecated, and used.
	chosen := serviceWithAnnotations(annotations.Address, "web", annotations.Scheme, "internal")
	chosen.Spec.LoadBalancerIP = "127.30.64.9" //nolint:staticcheck // As above.
	network := serviceWithAnnotations(annotations.Kind, "network")
	network.Spec.IPFamilies = []corev1.IPFamily{"IPv6"}
	udp := corev1.ServicePort{Port: 53, NodePort: 30053, Protocol: corev1.ProtocolUDP}
	return map[string]invalidService{
		"many fields at once": {fields, []string{
			`proxy-protocol is "v3"; want v1 or v2`, "protocol SCTP (port 8443)", "port 8080 without a node port",
			`"192.0.2.0" is not valid`, `loadBalancerIP is "2001:db8::1"; want an IPv4`,
		}},
		"of a later release":         {serviceWithAnnotations("of-a-later-version", "x"), []string{"of-a-later-version"}},
		"IPv6 of a network balancer": {network, []string{"IPv6 with the annotation"}},
		"two addresses, and internal": {
			chosen, []string{`loadBalancerIP "127.30.64.9" too`, "takes no reserved address"},
		},
		"a cut range": {withRangesAnnotation("192.0.2.0/24,"), []string{"is not valid"}},
		"local policy and a health check": {withLocalPolicy(serviceWithAnnotations(
			annotations.HealthCheck, "tcp", annotations.HealthCheckPort, "22",
		)), []string{
			`health-check is "tcp"; externalTrafficPolicy Local`, `health-check-port is "22"; externalTrafficPolicy Local`,
		}},
		"no health check, with a port": {serviceWithAnnotations(
			annotations.HealthCheck, "none", annotations.HealthCheckPort, "22",
			annotations.HealthCheckTimeout, "1s", annotations.HealthCheckPath, "/",
		), []string{
			`health-check-port is "22"; fakecloud.ccmlab.io/health-check is none`, "health-check-timeout is",
			`health-check-path is "/"; it is for HTTP checks, and fakecloud.ccmlab.io/health-check is none`,
		}},
		"too patient": {
			serviceWithAnnotations(annotations.HealthCheck, "tcp", annotations.HealthCheckTimeout, "6s"),
			[]string{`timeout is "6s"; the interval is 5 s`},
		},
		"no port to check": {
			withPorts(serviceWithAnnotations(annotations.HealthCheck, "tcp"), udp),
			[]string{"no TCP port with a node port to check"},
		},
		"ports that are not there": {withPorts(serviceWithAnnotations(
			annotations.ProxyProtocol, "53=v1", annotations.ConnectionLimit, "54=3", annotations.Drain, "9s",
		), udp), []string{"no TCP port 53", "no port 54", `drain is "9s"; it is for TCP`}},
	}
}

// An invalid Service costs no call, and one error names all that is wrong. If it has a balancer, its targets follow
// the Nodes, and nothing else of it changes. If that is gone, it gets no other.
func TestInvalidServices(t *testing.T) {
	for name, tc := range invalidServices() {
		t.Run(name, func(t *testing.T) {
			l := (&fakeAPI{}).loadBalancers()
			_, err := l.EnsureLoadBalancer(t.Context(), clusterName, tc.svc, nodes("fakecloud://i-1"))
			assert.Equal(t, contract.ReasonInvalidService, CauseOf(err).Reason)
			for _, text := range tc.errs {
				assert.ErrorContains(t, err, text)
			}
			assert.True(t, NeedsIntervention(l.UpdateLoadBalancer(t.Context(), clusterName, tc.svc, nil)))

			tc.svc.Status = serviceWithAddress().Status
			have := built(t, api.LoadBalancerActive, "fakecloud://i-1")
			f, sent := followingTargets(t, have)
			l = f.loadBalancers()
			for range 2 {
				_, err = l.EnsureLoadBalancer(t.Context(), clusterName, tc.svc, nodes("fakecloud://i-2"))
				assert.True(t, NeedsIntervention(err), "%v", err)
			}
			err = l.UpdateLoadBalancer(t.Context(), clusterName, tc.svc, nodes("fakecloud://i-3"))
			assert.True(t, NeedsIntervention(err), "%v", err)
			assert.Equal(t, []api.Targets{{{InstanceID: "i-2"}}, {{InstanceID: "i-3"}}}, *sent)

			f.listBalancers = listReturns()
			_, err = l.EnsureLoadBalancer(t.Context(), clusterName, tc.svc, nodes("fakecloud://i-2"))
			assert.True(t, NeedsIntervention(err))
			assert.Zero(t, retryAfter(err))
		})
	}
}

// followingTargets is a cloud in which only that balancer's targets may change, and those that were sent.
func followingTargets(t *testing.T, have *api.LoadBalancer) (f *fakeAPI, sent *[]api.Targets) {
	f, sent = listing(have), new([]api.Targets)
	f.update = func(_ string, u api.LoadBalancerUpdate) (*api.LoadBalancer, error) {
		require.NotNil(t, u.Targets)
		assert.Equal(t, api.LoadBalancerUpdate{Targets: u.Targets}, u, "targets alone")
		*sent = append(*sent, *u.Targets)
		have.Targets = *u.Targets
		return have, nil
	}
	return f, sent
}

// The cloud refuses a Service that looks well: its targets follow all the same.
func TestServiceThatTheCloudRefusesFollowsItsNodes(t *testing.T) {
	addressed := serviceWithLoadBalancerIP("127.30.64.9")
	addressed.Status = serviceWithAddress().Status
	for reason, svc := range map[string]*corev1.Service{
		contract.ReasonAddressNotAvailable: addressed, contract.ReasonInvalidService: serviceWithAddress(),
	} {
		have := built(t, api.LoadBalancerActive, "fakecloud://i-1")
		have.Listeners[0].TargetPort++
		f, sent := followingTargets(t, have)
		f.addresses = func() ([]api.ReservedAddress, error) { return nil, nil }
		follow := f.update
		f.update = func(id string, u api.LoadBalancerUpdate) (*api.LoadBalancer, error) {
			if u.Listeners != nil {
				return nil, problem(400, api.InvalidRequest)
			}
			return follow(id, u)
		}
		_, err := f.loadBalancers().EnsureLoadBalancer(t.Context(), clusterName, svc, nodes("fakecloud://i-2"))
		assert.Equal(t, reason, CauseOf(err).Reason)
		assert.Equal(t, []api.Targets{{{InstanceID: "i-2"}}}, *sent)
	}
}

// What keeps the targets of a refused Service from following is tried again, and reported.
func TestTargetsOfRefusedServiceThatCannotFollow(t *testing.T) {
	svc := serviceWithAnnotations(annotations.Scheme, "x")
	svc.Status = serviceWithAddress().Status
	f := newFakeBalancers(*built(t, api.LoadBalancerUpdating))
	f.update = func(string, api.LoadBalancerUpdate) (*api.LoadBalancer, error) {
		return nil, problem(409, api.WrongState)
	}
	_, err := f.loadBalancers().EnsureLoadBalancer(t.Context(), clusterName, svc, nodes("fakecloud://i-1"))
	assert.True(t, NeedsIntervention(err))
	assert.Equal(t, failedStateRetry, retryAfter(err))

	f.listBalancers = func(client.LoadBalancerFilter) ([]api.LoadBalancer, error) { return nil, errors.New("no route") }
	err = f.loadBalancers().UpdateLoadBalancer(t.Context(), clusterName, svc, nodes("fakecloud://i-1"))
	require.ErrorContains(t, err, "want public or internal")
	require.ErrorContains(t, err, "no route")
}

// What a person wrote is cut in what they are told, and the reason is never behind it.
func TestLongValuesAreCutInErrors(t *testing.T) {
	long := strings.Repeat("a", 2000)
	var ranges []string
	for i := range 101 {
		ranges = append(ranges, fmt.Sprintf("10.%d.0.0/16", i))
	}
	lastIsWrong := append(slices.Clone(ranges), "here"+long)
	services := map[string]*corev1.Service{
		"too many source ranges":                 withSourceRanges(service(), ranges...),
		"a wrong source range":                   withSourceRanges(service(), lastIsWrong...),
		"a wrong source range in the annotation": withRangesAnnotation(strings.Join(lastIsWrong, ",")),
		"a wrong address":                        serviceWithLoadBalancerIP(long),
		"too long a path for the cloud": serviceWithAnnotations(
			annotations.HealthCheckPath, "/"+long[:1000],
		),
	}
	for _, d := range annotations.Definitions {
		services["annotation "+d.Name] = serviceWithAnnotations(d.Name, "!"+long)
	}
	for name, svc := range services {
		f := newFakeBalancers(*built(t, api.LoadBalancerActive))
		f.addresses = func() ([]api.ReservedAddress, error) { return nil, nil }
		f.update = func(string, api.LoadBalancerUpdate) (*api.LoadBalancer, error) {
			return nil, &client.Error{Status: 400, Problem: api.Problem{Code: api.InvalidRequest, Detail: "want less"}}
		}
		_, err := f.loadBalancers().EnsureLoadBalancer(t.Context(), clusterName, svc, nil)
		require.ErrorContains(t, err, "want", name)
		assert.Less(t, len(err.Error()), 600, name)
		assert.Less(t, strings.Index(err.Error(), "want"), 200, "%s: %v", name, err)
	}
}
