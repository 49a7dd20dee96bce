// Package calls counts and limits the CCM's calls to the cloud: which controller
// made them, how many there were, how long they took, and how many are allowed. It
// is an HTTP transport (Wrap) and the metrics that it feeds, and knows nothing of
// what the calls are for.
package calls

import "context"

// Controllers to which calls are charged, by upstream's names.
const (
	CloudNode          = "cloud-node-controller"
	CloudNodeLifecycle = "cloud-node-lifecycle-controller"
	ServiceLB          = "service-lb-controller"
	NodeRoute          = "node-route-controller"
	CloudWatch         = "cloud-watch-controller" // ours
	Inventory          = "inventory"              // shared by all: see package cache
)

type controllerKey struct{}

// For returns a context in which calls to the cloud are charged to a controller.
// Upstream's controllers do not name themselves in the contexts that they pass, so
// each method of the provider names the controller that calls it. A context that is
// charged already stays so: the cloud watch calls the same methods.
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
