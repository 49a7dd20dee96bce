package ccm

// Events for what upstream's controllers only log, or say again at every retry:
// why a Node stays tainted, a Service without a balancer, a route missing. One
// Event for each cause, not for each retry.

import (
	"errors"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	cloudprovider "k8s.io/cloud-provider"
	cloudproviderapi "k8s.io/cloud-provider/api"
)

// Reasons of the Events on Nodes and Services. They are for people and for
// programs, so they stay.
const (
	reasonInstanceNotFound  = "InstanceNotFound"
	reasonInstanceAmbiguous = "InstanceAmbiguous"
	reasonCloudUnavailable  = "CloudUnavailable"
)

// Topics: of one object there may be several things to explain at a time, and
// each has one cause at a time.
const (
	topicInitialization = "initialization"
	topicLoadBalancer   = "load-balancer"
	topicRoute          = "route"
)

// cause is why something is not as it should be.
type cause struct {
	reason string
	// detail tells causes of one reason apart: it is the same at every retry,
	// which a message with a request ID or a time in it is not.
	detail string
}

type about struct {
	uid   types.UID
	topic string
}

// explainer writes one Event per object, topic and cause.
type explainer struct {
	mu       sync.Mutex
	recorder record.EventRecorder
	said     map[about]cause
}

func newExplainer() *explainer { return &explainer{said: map[about]cause{}} }

func (e *explainer) use(r record.EventRecorder) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.recorder = r
}

// object is a Node or a Service.
type object interface {
	runtime.Object
	GetUID() types.UID
}

// warn tells of a cause, unless it is the one that was told last.
func (e *explainer) warn(obj object, topic string, c cause, format string, args ...any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	key := about{obj.GetUID(), topic}
	if e.recorder == nil || e.said[key] == c {
		return
	}
	e.said[key] = c
	e.recorder.Eventf(obj, corev1.EventTypeWarning, c.reason, format, args...)
}

// note tells of something that happened, once per call.
func (e *explainer) note(obj object, reason, format string, args ...any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.recorder != nil {
		e.recorder.Eventf(obj, corev1.EventTypeNormal, reason, format, args...)
	}
}

// resolved says that the last cause is gone: should it come again, it is told
// again.
func (e *explainer) resolved(obj object, topic string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.said, about{obj.GetUID(), topic})
}

// troubled tells whether a cause was told that is not resolved.
func (e *explainer) troubled(obj object, topic string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	_, said := e.said[about{obj.GetUID(), topic}]
	return said
}

// forget drops what is remembered of an object that is gone.
func (e *explainer) forget(uid types.UID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for key := range e.said {
		if key.uid == uid {
			delete(e.said, key)
		}
	}
}

// node tells why a Node stays uninitialised, or, with nil, that the cause is
// gone. Of a Node that is initialised there is nothing to tell: the controller
// asks again for its addresses every few minutes.
func (e *explainer) node(node *corev1.Node, err error) {
	if err == nil || !uninitialized(node) {
		e.resolved(node, topicInitialization)
		return
	}
	e.warn(node, topicInitialization, causeOf(err), "Node stays uninitialized: %v", err)
}

func uninitialized(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool {
		return t.Key == cloudproviderapi.TaintExternalCloudProvider
	})
}

// causeOf is the one place where an error becomes a reason.
func causeOf(err error) cause {
	var ambiguous *ambiguousError
	switch {
	case errors.Is(err, cloudprovider.InstanceNotFound), errors.Is(err, errNoSuchName):
		return cause{reason: reasonInstanceNotFound}
	case errors.As(err, &ambiguous):
		return cause{reason: reasonInstanceAmbiguous}
	default:
		return cause{reason: reasonCloudUnavailable}
	}
}
