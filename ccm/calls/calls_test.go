package calls

import (
	"context"
	"maps"
	"reflect"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/ccmlab/ccmlab/ccm/core"
)

// callAll calls each method of a provider that calls the cloud.
func callAll(ctx context.Context, p core.Provider) {
	for _, part := range []any{p.Instances, p.LoadBalancers, p.Routes} {
		for n := range reflect.TypeOf(part).NumMethod() {
			method := reflect.ValueOf(part).Method(n)
			takesContext := method.Type().NumIn() > 0 && method.Type().In(0) == reflect.TypeFor[context.Context]()
			if !takesContext || reflect.TypeOf(part).Method(n).Name == "GetLoadBalancerName" {
				continue
			}
			in := []reflect.Value{reflect.ValueOf(ctx)}
			for i := 1; i < method.Type().NumIn(); i++ {
				in = append(in, reflect.Zero(method.Type().In(i)))
			}
			method.Call(in)
		}
	}
}

// Each method is charged to the controller of upstream that calls it. What the cloud watch calls is charged to it.
func TestCharge(t *testing.T) {
	charged := map[string]string{}
	p := Charge(core.Wrap(core.Provider{}, func(
		ctx context.Context, call core.Call, _ func(context.Context) error,
	) error {
		charged[call.Method] = Controller(ctx)
		return nil
	}))
	callAll(t.Context(), p)
	want := maps.Clone(callers)
	want["FindInstance"], want["MayDelete"] = "", "" // Only the cloud watch calls them.
	assert.Equal(t, want, charged)

	callAll(For(t.Context(), CloudWatch), p)
	assert.Len(t, charged, len(want))
	assert.Equal(t, []string{CloudWatch}, slices.Compact(slices.Collect(maps.Values(charged))))
}
