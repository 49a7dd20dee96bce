// Package integration tests what the conformance suite cannot see of our CCM, as a process beside a
// genuine API server and the cloud: the reason and the words of each Event, and the page about
// leader migration.
package integration

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/lab/kubediff"
	"github.com/ccmlab/ccmlab/lab/testbed"
)

// bound is how long anything may take that must happen: much longer than it
// does, for machines that are busy.
const bound = 90 * time.Second

// world is a bed, and what tests do in it.
type world struct {
	*testbed.Bed
	t   *testing.T
	ctx context.Context
}

func newWorld(t *testing.T, o testbed.Options) *world {
	t.Helper()
	return &world{Bed: testbed.ForTest(t, o), t: t, ctx: t.Context()}
}

// outlast is a context for what is done after the test.
func (w *world) outlast() context.Context { return context.WithoutCancel(w.ctx) }

// in returns the same world for a part of the test.
func (w *world) in(t *testing.T) *world { return &world{Bed: w.Bed, t: t, ctx: t.Context()} }

func (w *world) startCCM(o testbed.CCMOptions) *testbed.CCM {
	w.t.Helper()
	ccm, err := w.StartCCM(w.ctx, o)
	require.NoError(w.t, err)
	return ccm
}

// await polls until ok says nil; what it said last is told when it never does.
func (w *world) await(what string, ok func() error) {
	w.t.Helper()
	var last error
	err := wait.PollUntilContextTimeout(w.ctx, 50*time.Millisecond, bound, true, func(context.Context) (bool, error) {
		last = ok()
		return last == nil, nil
	})
	require.NoError(w.t, err, "%s: %v", what, last)
}

// addNode makes an instance and its Node, and waits until it is initialised.
func (w *world) addNode(name string) (instance api.Instance) {
	w.t.Helper()
	made, err := w.CreateInstances(w.ctx, name)
	require.NoError(w.t, err)
	require.NoError(w.t, w.RegisterNodes(w.ctx, nil, name))
	w.awaitInitialized(name)
	return made[0]
}

// registerNode makes a Node without an instance, and returns its UID.
func (w *world) registerNode(name string, edit func(int, *corev1.Node)) (uid string) {
	w.t.Helper()
	require.NoError(w.t, w.RegisterNodes(w.ctx, edit, name))
	return w.nodeUID(name)
}

func (w *world) awaitInitialized(name string) {
	w.t.Helper()
	w.await("node "+name+" to be initialised", func() error {
		n, err := w.Admin().CoreV1().Nodes().Get(w.ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if n.Spec.ProviderID == "" || kubediff.IsUninitialized(n) {
			return fmt.Errorf("provider ID %q, taints %v", n.Spec.ProviderID, n.Spec.Taints)
		}
		return nil
	})
}

func (w *world) awaitNodeGone(name string) {
	w.t.Helper()
	w.await("node "+name+" to be gone", func() error {
		_, err := w.Admin().CoreV1().Nodes().Get(w.ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return nil
		case err == nil:
			return errors.New("it is there")
		}
		return err
	})
}

func (w *world) nodeExists(name string) {
	w.t.Helper()
	_, err := w.Admin().CoreV1().Nodes().Get(w.ctx, name, metav1.GetOptions{})
	require.NoError(w.t, err, "node %s must not be deleted", name)
}

// service is one that wants a balancer on that port.
func service(name string, port int32) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: metav1.NamespaceDefault},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, Selector: map[string]string{"app": name},
			Ports: []corev1.ServicePort{{Name: "http", Port: port, Protocol: corev1.ProtocolTCP}},
		},
	}
}

func (w *world) create(svc *corev1.Service) *corev1.Service {
	w.t.Helper()
	made, err := w.Admin().CoreV1().Services(svc.Namespace).Create(w.ctx, svc, metav1.CreateOptions{})
	require.NoError(w.t, err)
	return made
}

// awaitAddress returns the Service's address, once it has another one than not.
func (w *world) awaitAddress(svc *corev1.Service, not string) (address string) {
	w.t.Helper()
	w.await("an address of service "+svc.Name, func() error {
		now, err := w.Admin().CoreV1().Services(svc.Namespace).Get(w.ctx, svc.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if in := now.Status.LoadBalancer.Ingress; len(in) == 0 || in[0].IP == not {
			return fmt.Errorf("ingress is %v", in)
		}
		address = now.Status.LoadBalancer.Ingress[0].IP
		return nil
	})
	return address
}

// balancers are those that say they are the Service's, whatever their cluster.
func (w *world) balancers(svc *corev1.Service) []api.LoadBalancer {
	w.t.Helper()
	found, err := w.Cloud().ListLoadBalancers(
		w.ctx, client.LoadBalancerFilter{Tags: []string{contract.TagServiceUID + "=" + string(svc.UID)}},
	)
	require.NoError(w.t, err)
	return found
}

func (w *world) awaitNoBalancer(svc *corev1.Service) {
	w.t.Helper()
	w.await("the balancer of "+svc.Name+" to be gone", func() error {
		if found := w.balancers(svc); len(found) > 0 {
			return fmt.Errorf("%d are there; the first is %s (%s)", len(found), found[0].ID, found[0].State)
		}
		return nil
	})
}

// createService creates a Service with a port of its own, and returns its UID.
func (w *world) createService(name string, edit func(*corev1.Service)) (uid string) {
	w.t.Helper()
	svc := service(name, 8080)
	if edit != nil {
		edit(svc)
	}
	return string(w.create(svc).UID)
}

// awaitBalancer returns the Service's balancer, once the Service has its address.
func (w *world) awaitBalancer(name, uid string) api.LoadBalancer {
	w.t.Helper()
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: metav1.NamespaceDefault, UID: types.UID(uid)}}
	w.awaitAddress(svc, "")
	return w.balancers(svc)[0]
}

// fault breaks the CCM's calls, or life cycles, until the test has ended.
func (w *world) fault(f api.FaultCreate) {
	w.t.Helper()
	if f.Match.Kinds == nil { // It is about calls, and not about life cycles.
		f.Match.Token = "ccm"
	}
	made, err := w.Cloud().CreateFault(w.ctx, f)
	require.NoError(w.t, err)
	w.t.Cleanup(func() { assert.NoError(w.t, w.Cloud().DeleteFault(w.outlast(), made.ID)) })
}

// events are those on an object with that reason.
func (w *world) events(uid, reason string) []corev1.Event {
	w.t.Helper()
	list, err := w.Admin().CoreV1().Events(metav1.NamespaceAll).
		List(w.ctx, metav1.ListOptions{FieldSelector: "reason=" + reason})
	require.NoError(w.t, err)
	var found []corev1.Event
	for _, e := range list.Items {
		if string(e.InvolvedObject.UID) == uid {
			found = append(found, e)
		}
	}
	return found
}

// awaitEvent waits for an Event with that reason whose message has all parts.
func (w *world) awaitEvent(uid, reason string, parts ...string) {
	w.t.Helper()
	w.await("an Event "+reason, func() error {
		found := w.events(uid, reason)
		for _, e := range found {
			if containsAll(e.Message, parts) {
				return nil
			}
		}
		return fmt.Errorf("there are %d of that reason, none with %q", len(found), parts)
	})
}

func containsAll(s string, parts []string) bool {
	for _, p := range parts {
		if !strings.Contains(s, p) {
			return false
		}
	}
	return true
}

func (w *world) nodeUID(name string) string {
	w.t.Helper()
	n, err := w.Admin().CoreV1().Nodes().Get(w.ctx, name, metav1.GetOptions{})
	require.NoError(w.t, err)
	return string(n.UID)
}
