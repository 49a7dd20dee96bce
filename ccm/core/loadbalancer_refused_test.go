package core

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	cloudproviderapi "k8s.io/cloud-provider/api"

	"github.com/ccmlab/ccmlab/ccm/annotations"
	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

// refusedServices are Services with an address that ask for what cannot be.
func refusedServices() map[string]*corev1.Service {
	services := map[string]*corev1.Service{
		"unknown annotation": serviceWithAnnotations("of-a-later-version", "x"),
		"invalid annotation": serviceWithAnnotations(annotations.Scheme, "x"),
		"protocol":           service(), "no node port": service(), "source range": service(),
		"health check port": service(), "address": serviceWithLoadBalancerIP("127.30.64.9"),
	}
	services["protocol"].Spec.Ports[0].Protocol = corev1.ProtocolSCTP
	services["no node port"].Spec.Ports[0].NodePort = 0
	services["source range"].Spec.LoadBalancerSourceRanges = []string{"everybody"}
	services["health check port"].Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	for _, svc := range services {
		svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "127.30.64.1"}}
	}
	return services
}

// Whatever else is wrong with a Service, its balancer's targets follow the Nodes, and nothing
// else of it changes. The error stays, and is one Event.
func TestRefusedServiceFollowsItsNodes(t *testing.T) {
	for name, svc := range refusedServices() {
		t.Run(name, func(t *testing.T) {
			have := built(t, api.LoadBalancerActive, "fakecloud://i-1")
			f := listing(t, have)
			f.addresses = func() ([]api.ReservedAddress, error) { return nil, nil }
			var sent []api.Targets
			f.update = func(_ string, u api.LoadBalancerUpdate) (*api.LoadBalancer, error) {
				require.NotNil(t, u.Targets)
				assert.Equal(t, api.LoadBalancerUpdate{Targets: u.Targets}, u, "targets alone")
				sent = append(sent, *u.Targets)
				have.Targets = *u.Targets
				return have, nil
			}
			l := f.loadBalancers()
			for range 2 {
				_, err := l.EnsureLoadBalancer(t.Context(), clusterName, svc, nodes("fakecloud://i-2"))
				assert.True(t, IsRefusal(err), "%v", err)
			}
			err := l.UpdateLoadBalancer(t.Context(), clusterName, svc, nodes("fakecloud://i-2", "fakecloud://i-3"))
			assert.Equal(t, name != "address", IsRefusal(err), "%v", err)
			assert.Equal(t, []api.Targets{
				{{InstanceID: "i-2"}}, {{InstanceID: "i-2"}, {InstanceID: "i-3"}},
			}, sent)
		})
	}
}

// The cloud refuses a Service that looks well: its targets follow all the same.
func TestServiceThatTheCloudRefusesFollowsItsNodes(t *testing.T) {
	have := built(t, api.LoadBalancerActive, "fakecloud://i-1")
	have.Listeners[0].TargetPort++
	f := newFakeBalancers(t, *have)
	f.update = func(_ string, u api.LoadBalancerUpdate) (*api.LoadBalancer, error) {
		if u.Listeners != nil {
			return nil, problem(400, api.InvalidRequest, ourProject)
		}
		have.Targets = *u.Targets
		return have, nil
	}
	_, err := f.loadBalancers().
		EnsureLoadBalancer(t.Context(), clusterName, serviceWithAddress(), nodes("fakecloud://i-2"))
	assert.Equal(t, contract.ReasonInvalidService, CauseOf(err).Reason)
	assert.Equal(t, api.Targets{{InstanceID: "i-2"}}, have.Targets)
}

// A Service that was refused from the beginning costs no call of the cloud, and a refused one
// whose balancer is gone gets no other.
func TestRefusedServiceWithoutBalancer(t *testing.T) {
	svc := serviceWithAnnotations(annotations.Scheme, "x")
	l := newLoadBalancers(&fakeAPI{t: t})
	_, err := l.EnsureLoadBalancer(t.Context(), clusterName, svc, nodes("fakecloud://i-1"))
	assert.True(t, IsRefusal(err))
	assert.True(t, IsRefusal(l.UpdateLoadBalancer(t.Context(), clusterName, svc, nodes("fakecloud://i-1"))))

	svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "127.30.64.1"}}
	l = newLoadBalancers(&fakeAPI{t: t, listBalancers: listReturns()})
	_, err = l.EnsureLoadBalancer(t.Context(), clusterName, svc, nodes("fakecloud://i-1"))
	assert.True(t, IsRefusal(err))
	var retry *cloudproviderapi.RetryError
	assert.False(t, errors.As(err, &retry))
}

// What keeps the targets of a refused Service from following is tried again, and reported.
func TestTargetsOfRefusedServiceThatCannotFollow(t *testing.T) {
	svc := refusedServices()["invalid annotation"]
	f := &fakeAPI{t: t, listBalancers: listReturns(*built(t, api.LoadBalancerUpdating))}
	f.update = func(string, api.LoadBalancerUpdate) (*api.LoadBalancer, error) {
		return nil, problem(409, api.WrongState, ourProject)
	}
	_, err := newLoadBalancers(f).EnsureLoadBalancer(t.Context(), clusterName, svc, nodes("fakecloud://i-1"))
	assert.True(t, IsRefusal(err))
	var retry *cloudproviderapi.RetryError
	require.ErrorAs(t, err, &retry)
	assert.Equal(t, failedStateRetry, retry.RetryAfter())

	f.listBalancers = func(client.LoadBalancerFilter) ([]api.LoadBalancer, error) { return nil, errors.New("no route") }
	err = newLoadBalancers(f).UpdateLoadBalancer(t.Context(), clusterName, svc, nodes("fakecloud://i-1"))
	require.ErrorContains(t, err, "want public or internal")
	require.ErrorContains(t, err, "no route")
}
