package ccm

// Events for what upstream's controllers only log: why a Node stays tainted.

import (
	"errors"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	cloudprovider "k8s.io/cloud-provider"
	cloudproviderapi "k8s.io/cloud-provider/api"
)

// Reasons of the Events on Nodes.
const (
	reasonInstanceNotFound  = "InstanceNotFound"
	reasonInstanceAmbiguous = "InstanceAmbiguous"
	reasonCloudUnavailable  = "CloudUnavailable"
)

// explainer writes one Event per Node and cause, not one per retry.
type explainer struct {
	mu       sync.Mutex
	recorder record.EventRecorder
	said     map[types.UID]string
}

func newExplainer() *explainer { return &explainer{said: map[types.UID]string{}} }

func (e *explainer) use(r record.EventRecorder) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.recorder = r
}

// node tells why a Node stays uninitialised, or, with nil, that the cause is
// gone. Of a Node that is initialised there is nothing to tell: the controller
// asks again for its addresses every few minutes.
func (e *explainer) node(node *corev1.Node, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err == nil || !uninitialized(node) {
		delete(e.said, node.UID)
		return
	}
	reason := nodeReason(err)
	if e.recorder == nil || e.said[node.UID] == reason {
		return
	}
	e.said[node.UID] = reason
	e.recorder.Eventf(node, corev1.EventTypeWarning, reason, "Node stays uninitialized: %v", err)
}

func uninitialized(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool {
		return t.Key == cloudproviderapi.TaintExternalCloudProvider
	})
}

func nodeReason(err error) string {
	var ambiguous *ambiguousError
	switch {
	case errors.Is(err, cloudprovider.InstanceNotFound), errors.Is(err, errNoSuchName):
		return reasonInstanceNotFound
	case errors.As(err, &ambiguous):
		return reasonInstanceAmbiguous
	default:
		return reasonCloudUnavailable
	}
}
