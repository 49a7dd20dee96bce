package ccm

// Events for what upstream's controllers only log: why a Node stays tainted.

import (
	"errors"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	cloudprovider "k8s.io/cloud-provider"
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

// node tells of err, or, with nil, that the cause is gone.
func (e *explainer) node(node *corev1.Node, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err == nil {
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

func nodeReason(err error) string {
	var ambiguous *ambiguousError
	switch {
	case errors.Is(err, cloudprovider.InstanceNotFound):
		return reasonInstanceNotFound
	case errors.As(err, &ambiguous):
		return reasonInstanceAmbiguous
	default:
		return reasonCloudUnavailable
	}
}
