package ccm

import (
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// serviceWithoutAddress is a Service whose balancer upstream has begun to build.
func serviceWithoutAddress() *corev1.Service {
	svc := serviceWithAddress()
	svc.Status = corev1.ServiceStatus{}
	return svc
}

// The cloud was down for longer than upstream's patience, and is well again: the
// Service gets its address. While it is down it is asked for it now and then.
func TestAddressRetrierAfterOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc := serviceWithoutAddress()
		w := newWatchWorld(t, svc, node("fakecloud://i-1"))
		w.cloud.instances = []api.Instance{instance(api.InstanceRunning)}
		var tries, up atomic.Int32
		w.ensureInTwoSteps(*built(t, api.LoadBalancerActive, "fakecloud://i-1"))
		builds := w.reconciler.ensure
		w.reconciler.ensure = func(svc *corev1.Service, nodes []*corev1.Node) (*corev1.LoadBalancerStatus, error) {
			if tries.Add(1); up.Load() == 0 {
				return nil, errors.New("503")
			}
			status, err := builds(svc, nodes)
			if err == nil {
				w.explain.markResolved(svc, topicLoadBalancer)
			}
			return status, err
		}
		w.explain.warnOnce(svc, topicLoadBalancer, cause{reason: contract.ReasonCloudUnavailable}, "503")
		require.Len(t, w.takeEvents(), 1)
		w.run()
		advanceTime(10 * time.Minute)
		assert.LessOrEqual(t, tries.Load(), int32(10*60/addressPause.Seconds())+1)
		assert.Positive(t, tries.Load())
		assert.Empty(t, w.takeWrites())

		up.Store(1)
		repairs := countIncrements(t, balancerRepairs, func() {
			advanceTime(addressPause + addressPeriod + time.Second)
		})
		assert.Zero(t, repairs)
		got, err := w.api.CoreV1().Services("default").Get(t.Context(), "web", metav1.GetOptions{})
		require.NoError(t, err)
		require.Len(t, got.Status.LoadBalancer.Ingress, 1)
		assert.Equal(t, "127.30.64.1", got.Status.LoadBalancer.Ingress[0].IP)
		before := tries.Load()
		advanceTime(time.Hour)
		assert.Equal(t, before, tries.Load(), "it has its address")
		assert.Empty(t, w.takeEvents())
	})
}

// Whose address is upstream's to get, or nobody's: the reconciler fails on any
// call.
func TestAddressRetrierLeavesServicesAlone(t *testing.T) {
	class := "other"
	for name, tc := range map[string]struct {
		cause  string
		change func(svc *corev1.Service)
		late   func(svc *corev1.Service) // what the informer has not seen
	}{
		"no trouble told":     {},
		"the Service's fault": {cause: contract.ReasonInvalidService},
		"a name taken":        {cause: contract.ReasonLoadBalancerNameTaken},
		"of a class": {cause: contract.ReasonCloudUnavailable, change: func(s *corev1.Service) {
			s.Spec.LoadBalancerClass = &class
		}},
		"of another type": {cause: contract.ReasonCloudUnavailable, change: func(s *corev1.Service) {
			s.Spec.Type = corev1.ServiceTypeClusterIP
		}},
		"without a finalizer": {cause: contract.ReasonCloudUnavailable, change: func(s *corev1.Service) {
			s.Finalizers = nil
		}},
		"being deleted": {cause: contract.ReasonCloudUnavailable, change: func(s *corev1.Service) {
			now := metav1.Now()
			s.DeletionTimestamp = &now
		}},
		"made anew since": {cause: contract.ReasonCloudUnavailable, late: func(s *corev1.Service) {
			s.UID = "another"
		}},
		"upstream was quicker": {cause: contract.ReasonCloudUnavailable, late: func(s *corev1.Service) {
			s.Status = serviceWithAddress().Status
		}},
		"no longer wants one": {cause: contract.ReasonCloudUnavailable, late: func(s *corev1.Service) {
			s.Spec.Type = corev1.ServiceTypeClusterIP
		}},
	} {
		t.Run(name, func(t *testing.T) {
			svc := serviceWithoutAddress()
			if tc.change != nil {
				tc.change(svc)
			}
			w := newWatchWorld(t, svc)
			if tc.late != nil {
				late := svc.DeepCopy()
				tc.late(late)
				require.NoError(t, w.api.Tracker().
					Update(corev1.SchemeGroupVersion.WithResource("services"), late, "default"))
			}
			if tc.cause != "" {
				w.explain.warnOnce(svc, topicLoadBalancer, cause{reason: tc.cause}, "told")
			}
			require.NoError(t, w.syncService(t.Context(), string(svc.UID)))
			assert.Empty(t, w.takeWrites())
		})
	}
}
