// Package calls counts and limits the CCM's calls to the cloud: which controller
// made them, how many there were, how long they took, and how many are allowed. It
// is an HTTP transport (Wrap) and the metrics that it feeds, and knows nothing of
// what the calls are for.
package calls

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/cloud-provider/names"

	"github.com/ccmlab/ccmlab/ccm/core"
	"github.com/ccmlab/ccmlab/ccm/ring"
)

// Controllers of ours to which calls are charged, beside upstream's.
const (
	CloudWatch = "cloud-watch-controller"
	Inventory  = "inventory" // shared by all: see package cache
)

type controllerKey struct{}

// For returns a context in which calls to the cloud are charged to a controller.
// A context that is charged already stays so.
func For(ctx context.Context, controller string) context.Context {
	if Controller(ctx) != "" {
		return ctx
	}
	return context.WithValue(ctx, controllerKey{}, controller)
}

// Controller is the controller that calls in this context are charged to, "" if
// none.
func Controller(ctx context.Context) string {
	name, _ := ctx.Value(controllerKey{}).(string)
	return name
}

// callerOf is upstream's controller that makes such a call. It does not name itself in the contexts that it passes.
func callerOf(call ring.Call) string {
	switch call.Object.(type) {
	case *corev1.Service:
		return names.ServiceLBController
	case *corev1.Node:
		if call.Method == "InstanceMetadata" {
			return names.CloudNodeController
		}
		return names.CloudNodeLifecycleController
	}
	return names.NodeRouteController
}

// Charge has the provider's calls to the cloud charged to the controllers that make them. The cloud watch calls the
// same methods, in a context that is charged.
func Charge(p core.Provider) core.Provider {
	return ring.Wrap(p, func(ctx context.Context, call ring.Call, next func(context.Context) error) error {
		return next(For(ctx, callerOf(call)))
	})
}
