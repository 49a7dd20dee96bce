package core

import (
	"cmp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ccmlab/ccmlab/ccm/annotations"
	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// removableOptions are changes of a Service that can be taken back: every annotation with its example and with the
// values of otherValues, and the fields that say something of a balancer.
func removableOptions() map[string]func(svc *corev1.Service) {
	options := map[string]func(svc *corev1.Service){
		"source ranges": func(svc *corev1.Service) { withSourceRanges(svc, "10.0.0.0/8") },
		"source ranges of both families": func(svc *corev1.Service) {
			withSourceRanges(svc, "2001:db8::1/32", "0.0.0.0/0")
		},
		"source ranges in upstream's annotation": func(svc *corev1.Service) {
			annotate(svc, corev1.AnnotationLoadBalancerSourceRangesKey, "192.0.2.7/24")
		},
		"session affinity": func(svc *corev1.Service) { withAffinity(svc, nil) },
		"traffic policy":   func(svc *corev1.Service) { withLocalPolicy(svc) },
		"a third port": func(svc *corev1.Service) {
			third := corev1.ServicePort{Port: 53, NodePort: 30053, Protocol: corev1.ProtocolUDP}
			withPorts(svc, append(svc.Spec.Ports, third)...)
		},
		"other ports": func(svc *corev1.Service) {
			withPorts(svc, corev1.ServicePort{Port: 8080, NodePort: 30081}, corev1.ServicePort{Port: 80, NodePort: 30080})
		},
		"another node port": func(svc *corev1.Service) { svc.Spec.Ports[0].NodePort = 30999 },
		"a protocol":        func(svc *corev1.Service) { svc.Spec.Ports[0].Protocol = corev1.ProtocolUDP },
	}
	otherValues := map[string][]string{
		annotations.HealthCheck: {"none", "http"}, annotations.OnDelete: {"refuse", "delete"},
		annotations.Algorithm: {"source-hash"}, annotations.IPMode: {"Proxy"}, annotations.Tags: {"team=red"},
		annotations.Address: {"two"}, annotations.Drain: {"0"},
		annotations.ConnectionLimit: {"8080=5"}, annotations.ProxyProtocol: {"v1"}, annotations.HealthCheckTimeout: {"1s"},
	}
	examples := map[string]string{
		annotations.Address:      "one",     // which startPropertyCloud reserves
		annotations.NodeSelector: "!absent", // which selects all
		// The examples are for ports that service() does not have.
		annotations.ProxyProtocol: "v2", annotations.ConnectionLimit: "8443=200",
	}
	for _, d := range annotations.Definitions {
		for _, value := range append(otherValues[d.Name], cmp.Or(examples[d.Name], d.Example)) {
			options[d.Name+": "+value] = func(svc *corev1.Service) { annotate(svc, annotations.Prefix+d.Name, value) }
		}
	}
	return options
}

func annotate(svc *corev1.Service, key, value string) {
	metav1.SetMetaDataAnnotation(&svc.ObjectMeta, key, value)
}

// balancerAndStatus is what a Service has got in the cloud and in its status.
type balancerAndStatus struct {
	balancer api.LoadBalancer
	status   corev1.LoadBalancerStatus
}

// withoutIdentity leaves out what no two balancers share. An address is kept when it is not asked for
// any more: clients know it.
func withoutIdentity(lb api.LoadBalancer, status *corev1.LoadBalancerStatus) balancerAndStatus {
	lb.ID, lb.Serial, lb.Version, lb.CreatedAt, lb.UpdatedAt = "", 0, 0, time.Time{}, time.Time{}
	lb.Address, lb.AddressID, lb.StateReason = "", "", "" // The reason names the address.
	for i := range status.Ingress {
		status.Ingress[i].IP = ""
	}
	return balancerAndStatus{lb, *status}
}

// TestRemovedOptionGoesBackToDefault takes each option away again, and finds the balancer equal to
// one that never had it. Nothing is left that keeps it from being deleted.
func TestRemovedOptionGoesBackToDefault(t *testing.T) {
	cloud := startPropertyCloud(t)
	newBalancers := func(defaults map[string]string) *loadBalancers { // as a CCM that was started anew
		return &loadBalancers{api: cloud, cluster: testCluster("k-1"), defaults: defaults}
	}
	ensure := func(t *testing.T, l *loadBalancers, svc *corev1.Service) balancerAndStatus {
		t.Helper()
		status, err := cloud.ensure(l, svc, nodes(cloud.instances[0]))
		require.NoError(t, err)
		all := cloud.awaitBalancers()
		require.Len(t, all, 1)
		return withoutIdentity(all[0], status)
	}
	remove := func(t *testing.T) {
		require.NoError(t, newBalancers(nil).EnsureLoadBalancerDeleted(t.Context(), clusterName, service()))
		require.Empty(t, cloud.awaitBalancers())
	}
	plain := ensure(t, newBalancers(nil), service())
	remove(t)
	for name, give := range removableOptions() {
		svc, defaults := service(), map[string]string{}
		give(svc)
		for key, value := range svc.Annotations {
			defaults[strings.TrimPrefix(key, annotations.Prefix)] = value
		}
		for way, first := range map[string]func(t *testing.T){
			" of the Service":       func(t *testing.T) { ensure(t, newBalancers(nil), svc) },
			" in the configuration": func(t *testing.T) { ensure(t, newBalancers(defaults), service()) },
		} {
			t.Run(name+way, func(t *testing.T) {
				cloud.removeBalancers(t)
				first(t)
				assert.Equal(t, plain, ensure(t, newBalancers(nil), service()))
				remove(t)
			})
		}
		t.Run(name+", and the Service goes at once", func(t *testing.T) {
			cloud.removeBalancers(t)
			ensure(t, newBalancers(nil), svc)
			remove(t)
		})
	}
}
