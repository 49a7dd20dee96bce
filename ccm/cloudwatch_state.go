package ccm

// The state of a Node's instance, as Events on the Node.

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

const (
	reasonInstanceStopped = "InstanceStopped"
	reasonInstanceInError = "InstanceInError"
)

const topicInstance = "instance"

// state has an Event for each time that an instance ceased to run.
func (e *explainer) state(node *corev1.Node, instance *api.Instance) {
	switch instance.State {
	case api.InstanceStopped:
		e.warn(node, topicInstance, cause{reason: reasonInstanceStopped}, "Instance %s is stopped", instance.ID)
	case api.InstanceError:
		why := "the cloud gives no reason"
		if r := instance.StateReason; r != nil && *r != "" {
			why = *r
		}
		e.warn(node, topicInstance, cause{reason: reasonInstanceInError, detail: why}, "Instance %s is in error: %s", instance.ID, why)
	default:
		e.resolved(node, topicInstance)
	}
}
