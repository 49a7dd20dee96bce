// This file answers: which operation of the spec is a request?

package server

import (
	"context"
	"maps"
	"net/http"
	"slices"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/gorilla/mux"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

func loadSpec() (*openapi3.T, error) {
	spec, err := openapi3.NewLoader().LoadFromData(api.Spec)
	if err != nil {
		return nil, err
	}
	return spec, spec.Validate(context.Background())
}

// operation is one that faults can touch and whose calls are counted.
type operation struct {
	id    string // its operationId
	lists bool
}

// operations are found by method and path as the spec has it: "GET /v1/zones".
type operations map[string]operation

// operationsOf leaves out those that need no token: they are nobody's. An
// admin's and the counts are what faults are made, looked at and lifted with.
func operationsOf(spec *openapi3.T) operations {
	all := operations{}
	for path, item := range spec.Paths.Map() {
		for method, op := range item.Operations() {
			if op.Security != nil || op.Extensions["x-role"] == "admin" || slices.Contains(op.Tags, "calls") {
				continue
			}
			all[method+" "+path] = operation{id: op.OperationID, lists: lists(op)}
		}
	}
	return all
}

// lists tells whether the answer is an object with items.
func lists(op *openapi3.Operation) bool {
	ok := op.Responses.Status(http.StatusOK)
	if ok == nil {
		return false
	}
	content := ok.Value.Content.Get("application/json")
	return content != nil && content.Schema.Value.Properties["items"] != nil
}

// of is the operation that a routed request asks for, if it is one of these.
func (o operations) of(r *http.Request) (operation, bool) {
	path, err := mux.CurrentRoute(r).GetPathTemplate()
	op, ok := o[r.Method+" "+path]
	return op, ok && err == nil
}

// lists gives the operationIds, and whether they list.
func (o operations) lists() map[string]bool {
	ids := map[string]bool{}
	for _, op := range o {
		ids[op.id] = op.lists
	}
	return ids
}

// Operations are the operationIds that a fault can name, sorted.
func Operations() ([]string, error) {
	spec, err := loadSpec()
	if err != nil {
		return nil, err
	}
	return slices.Sorted(maps.Keys(operationsOf(spec).lists())), nil
}
