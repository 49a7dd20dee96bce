package integration

import (
	"fmt"
	"net"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/lab/testbed"
)

const algorithm = "fakecloud.ccmlab.io/algorithm"

// TestEvents causes each thing that the CCM tells people, one after the other, and waits for the
// Event with its exact reason: programs look for these.
func TestEvents(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testbed.Options{})
	w.startCCM(testbed.CCMOptions{Flags: []string{
		"--configure-cloud-routes=true", "--cluster-cidr=10.200.0.0/16", "--route-reconciliation-period=1s",
	}})
	w.addNode("node-1")
	for _, tc := range []struct {
		name, reason string
		// cause brings the Event about on the object of that UID. The message has the parts.
		cause func(w *world) (uid string, parts []string)
	}{
		{"no instance", contract.ReasonInstanceNotFound, func(w *world) (string, []string) {
			return w.registerNode("late", nil), []string{"late"}
		}},
		{"a stopped instance", contract.ReasonInstanceStopped, func(w *world) (string, []string) {
			instance := w.addNode("stops")
			_, err := w.Cloud().StopInstance(w.ctx, instance.ID)
			require.NoError(w.t, err)
			return w.nodeUID("stops"), []string{instance.ID}
		}},
		{"a terminated instance", contract.ReasonNodeRemoved, func(w *world) (string, []string) {
			instance := w.addNode("ends")
			uid := w.nodeUID("ends")
			_, err := w.Cloud().TerminateInstance(w.ctx, instance.ID)
			require.NoError(w.t, err)
			return uid, []string{instance.ID}
		}},
		{"an address that the cloud does not name", contract.ReasonProvidedNodeIP, func(w *world) (string, []string) {
			made, err := w.CreateInstances(w.ctx, "elsewhere")
			require.NoError(w.t, err)
			return w.registerNode("elsewhere", func(_ int, n *corev1.Node) {
				n.Annotations = map[string]string{"alpha.kubernetes.io/provided-node-ip": "192.0.2.1"}
			}), []string{"192.0.2.1", made[0].Addresses[0].IP}
		}},
		{"another cloud's Node", contract.ReasonForeignProviderID, func(w *world) (string, []string) {
			return w.registerNode("foreign", func(_ int, n *corev1.Node) {
				n.Spec.ProviderID = "aws:///eu/i-1"
			}), []string{"aws:///eu/i-1"}
		}},
		{"a throttled Node", contract.ReasonCloudThrottled, func(w *world) (string, []string) {
			w.fault(api.FaultCreate{Effect: api.FaultEffect{Status: 429, RetryAfterSeconds: 2}})
			return w.registerNode("throttled", nil), nil
		}},
		{"a Node without access", contract.ReasonCloudAccessDenied, func(w *world) (string, []string) {
			w.fault(api.FaultCreate{Effect: api.FaultEffect{Status: 403}})
			return w.registerNode("denied", nil), nil
		}},
		{"a Service of a cloud that is away", contract.ReasonCloudUnavailable, func(w *world) (string, []string) {
			w.fault(api.FaultCreate{Effect: api.FaultEffect{Status: 503}})
			return w.createService("unavailable", nil), nil
		}},
		{"another project's token", contract.ReasonWrongProject, func(w *world) (string, []string) {
			w.useOthersToken()
			return w.registerNode("swapped", nil), []string{"other"}
		}},
		{"another's route", contract.ReasonRouteConflict, func(w *world) (string, []string) {
			made, err := w.CreateInstances(w.ctx, "routed")
			require.NoError(w.t, err)
			_, err = w.Cloud().CreateRoute(w.ctx, api.RouteCreate{
				Name: "somebodys", Destination: "10.200.1.0/24", InstanceID: made[0].ID,
			})
			require.NoError(w.t, err)
			return w.registerNode("routed", func(_ int, n *corev1.Node) {
				n.Spec.PodCIDR, n.Spec.PodCIDRs = "10.200.1.0/24", []string{"10.200.1.0/24"}
			}), []string{"somebodys"}
		}},
		{"a quota", contract.ReasonQuotaExceeded, func(w *world) (string, []string) {
			w.setQuota(0)
			w.t.Cleanup(func() { w.setQuota(100) })
			return w.createService("quota", nil), nil
		}},
		{"a balancer that failed", contract.ReasonLoadBalancerFailed, func(w *world) (string, []string) {
			w.fault(api.FaultCreate{
				Match:  api.FaultMatch{Kinds: []api.ResourceKind{api.ResourceLoadBalancer}},
				Effect: api.FaultEffect{Fail: "no capacity in this region"},
			})
			return w.createService("failed", nil), []string{"no capacity in this region"}
		}},
		{"a port in use", contract.ReasonPortCannotBeBound, func(w *world) (string, []string) {
			// Whoever listens on all addresses keeps everybody off the port.
			busy, err := net.Listen("tcp", "0.0.0.0:0")
			require.NoError(w.t, err)
			w.t.Cleanup(func() { _ = busy.Close() })
			port := busy.Addr().(*net.TCPAddr).Port
			return w.createService("bound", func(s *corev1.Service) {
				s.Spec.Ports[0].Port = int32(port)
			}), []string{fmt.Sprint(port)}
		}},
		{"SCTP", contract.ReasonInvalidService, func(w *world) (string, []string) {
			return w.createService("sctp", func(s *corev1.Service) {
				s.Spec.Ports[0].Protocol = corev1.ProtocolSCTP
			}), []string{"SCTP"}
		}},
		{"annotations, all at once", contract.ReasonInvalidService, func(w *world) (string, []string) {
			return w.createService("annotated", func(s *corev1.Service) {
				s.Annotations = map[string]string{algorithm: "coin-toss", "fakecloud.ccmlab.io/idle-timeout": "soon"}
			}), []string{"coin-toss", "soon"}
		}},
		{"an address that is not reserved", contract.ReasonAddressNotAvailable, func(w *world) (string, []string) {
			return w.createService("address", func(s *corev1.Service) {
				s.Spec.LoadBalancerIP = "127.99.99.99" //nolint:staticcheck // Deprecated, and still in use.
			}), []string{"127.99.99.99"}
		}},
		{"a deleted balancer", contract.ReasonLoadBalancerRepaired, func(w *world) (string, []string) {
			uid := w.createService("deleted", nil)
			_, err := w.Cloud().DeleteLoadBalancer(w.ctx, w.awaitBalancer("deleted", uid).ID)
			require.NoError(w.t, err)
			return uid, nil
		}},
		{"a stranger's balancer", contract.ReasonLoadBalancerNameTaken, func(w *world) (string, []string) {
			// Nobody knows the name before the UID, so it is the second that collides.
			uid := w.createService("stranger", nil)
			lb := w.awaitBalancer("stranger", uid)
			_, err := w.Cloud().UpdateLoadBalancer(w.ctx, lb.ID, api.LoadBalancerUpdate{Tags: &api.Tags{"owner": "x"}})
			require.NoError(w.t, err)
			return uid, []string{lb.Name}
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := w.in(t)
			uid, parts := tc.cause(w)
			w.awaitEvent(uid, tc.reason, parts...)
			assert.Len(t, w.events(uid, tc.reason), 1, "once per cause, not per retry")
		})
	}
}

// useOthersToken gives the CCM the token of another project until the test ends.
func (w *world) useOthersToken() {
	w.t.Helper()
	own, err := os.ReadFile(w.CCMToken)
	require.NoError(w.t, err)
	other, err := w.Cloud().CreateProject(w.ctx, api.ProjectCreate{Name: "other"})
	require.NoError(w.t, err)
	token, err := w.Cloud().CreateToken(w.ctx, other.ID, api.TokenCreate{Name: "ccm-of-other", Role: api.RoleEditor})
	require.NoError(w.t, err)
	require.NoError(w.t, os.WriteFile(w.CCMToken, []byte(token.Secret+"\n"), 0o600))
	w.t.Cleanup(func() { assert.NoError(w.t, os.WriteFile(w.CCMToken, own, 0o600)) })
}

func (w *world) setQuota(balancers api.QuotaLimit) {
	project, err := w.Cloud().Project(w.outlast())
	require.NoError(w.t, err)
	_, err = w.Cloud().UpdateProjectQuotas(w.outlast(), project.ID, api.QuotasUpdate{LoadBalancers: &balancers})
	require.NoError(w.t, err)
}

// TestMassDeletionIsConfirmed has a person do what the Event on the guard's ConfigMap says.
func TestMassDeletionIsConfirmed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testbed.Options{})
	names := []string{"gone-1", "gone-2", "gone-3", "gone-4", "gone-5", "gone-6"}
	made, err := w.CreateInstances(w.ctx, names...)
	require.NoError(t, err)
	require.NoError(t, w.RegisterNodes(w.ctx, func(i int, n *corev1.Node) {
		n.Spec.ProviderID, n.Spec.Taints = contract.ProviderID(made[i].ID), nil
		n.Status.Conditions[0].Status = corev1.ConditionUnknown
	}, names...))
	for _, instance := range made {
		_, err := w.Cloud().TerminateInstance(w.ctx, instance.ID)
		require.NoError(t, err)
	}
	w.startCCM(testbed.CCMOptions{Env: []string{"FAKECLOUD_MASS_DELETION_MINIMUM=1"}})

	configMaps := w.Admin().CoreV1().ConfigMaps(contract.GuardNamespace)
	var guard *corev1.ConfigMap
	w.await("the guard's ConfigMap", func() (err error) {
		guard, err = configMaps.Get(w.ctx, contract.GuardConfigMap, metav1.GetOptions{})
		return err
	})
	w.awaitEvent(string(guard.UID), contract.ReasonMassDeletionStopped, fmt.Sprintf(
		"kubectl -n kube-system annotate --overwrite configmap %s %s=1",
		contract.GuardConfigMap, contract.AnnotationConfirmMassDeletion))
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"1"}}}`, contract.AnnotationConfirmMassDeletion)
	_, err = configMaps.Patch(w.ctx, contract.GuardConfigMap, types.MergePatchType, patch, metav1.PatchOptions{})
	require.NoError(t, err)
	for _, name := range names {
		w.awaitNodeGone(name)
	}
	w.awaitEvent(string(guard.UID), contract.ReasonMassDeletionConfirmed, "Trip 1 was confirmed")
}
