package status

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/lab"
	"github.com/ccmlab/ccmlab/lab/state"
)

// What a Service without its balancer is said to wait for.
func TestStateOfServices(t *testing.T) {
	service := func(name string, addresses ...string) corev1.Service {
		s := corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: name, UID: "u-x"},
			Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer},
		}
		for _, a := range addresses {
			s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: a})
		}
		return s
	}
	reason := "no quota"
	balancer := api.LoadBalancer{
		Metadata: api.Metadata{ID: "lb-1", Tags: api.Tags{contract.TagServiceUID: "u-x"}}, State: api.LoadBalancerError, StateReason: reason,
	}
	attached := []api.ReservedAddress{
		{IP: "192.0.2.1"}, {IP: "192.0.2.2", Holder: &api.AddressHolder{Kind: api.HolderInstance, ID: "i-1"}},
	}
	for name, tc := range map[string]struct {
		service   corev1.Service
		balancers []api.LoadBalancer
		listed    bool
		want      Service
	}{
		"its balancer's": {
			service("s", "192.0.2.1"), []api.LoadBalancer{balancer}, true,
			Service{Name: "s", Address: "192.0.2.1", BalancerID: "lb-1", State: "error", Reason: reason},
		},
		"no balancer yet": {service("s"), nil, true, Service{Name: "s", State: "pending"}},
		"an attached address": {
			service("s", "192.0.2.2"), nil, true, Service{Name: "s", Address: "192.0.2.2", State: "attached"},
		},
		"no balancer any more": {
			service("s", "192.0.2.1"), nil, true, Service{Name: "s", Address: "192.0.2.1", State: "gone"},
		},
		"nobody knows": {
			service("s", "192.0.2.1"), nil, false, Service{Name: "s", Address: "192.0.2.1", State: "unknown"},
		},
		"nobody knows, no address": {service("s"), nil, false, Service{Name: "s", State: "unknown"}},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, []Service{tc.want}, servicesOf([]corev1.Service{tc.service, {}}, tc.balancers, attached, tc.listed))
		})
	}
}

// An API server that does not answer is asked once, and said to be slow in plain
// words.
func TestStatusOfASilentCluster(t *testing.T) {
	kube := fake.NewClientset()
	ctx, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	limiter := rate.NewLimiter(0.001, 1)
	require.True(t, limiter.Allow())
	kube.PrependReactor("list", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, fmt.Errorf("client rate limiter Wait returned an error: %w", limiter.Wait(ctx))
	})
	err := (&Status{}).addCluster(ctx, &lab.Lab{State: &state.Lab{}}, kube)
	require.EqualError(t, err, "nodes: no answer in time")
	assert.Len(t, kube.Actions(), 1)

	soon, cancelSoon := context.WithTimeout(t.Context(), time.Second)
	defer cancelSoon()
	early := limiter.Wait(soon)
	require.Error(t, early)
	assert.EqualError(
		t, sayNoAnswerInTime(soon, fmt.Errorf("client rate limiter Wait returned an error: %w", early)),
		"no answer in time", "the limiter sees that it would be too late",
	)
	refused := errors.New("connection refused")
	assert.Equal(t, refused, sayNoAnswerInTime(soon, refused))
}
