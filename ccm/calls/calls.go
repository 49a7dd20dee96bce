// Package calls is about what the CCM's calls to the cloud cost: which
// controller made them, how many there were and how long they took, and how
// many are allowed.
package calls

import "context"

// Controllers, by their names at upstream, to which calls are charged.
const (
	CloudNode          = "cloud-node-controller"
	CloudNodeLifecycle = "cloud-node-lifecycle-controller"
	ServiceLB          = "service-lb-controller"
	NodeRoute          = "node-route-controller"
	CloudWatch         = "cloud-watch-controller" // ours
	Inventory          = "inventory"              // shared by all: see package inventory
)

type controllerKey struct{}

// For gives a context in which calls to the cloud are charged to a controller.
// Upstream's controllers say nothing of themselves in the context that they
// pass, so each method of the provider says which one calls it. A context that
// is charged already stays so: the cloud watch calls the same methods.
func For(ctx context.Context, controller string) context.Context {
	if Controller(ctx) != "" {
		return ctx
	}
	return context.WithValue(ctx, controllerKey{}, controller)
}

// Controller is to whom calls in this context are charged; "" when to nobody.
func Controller(ctx context.Context) string {
	name, _ := ctx.Value(controllerKey{}).(string)
	return name
}
