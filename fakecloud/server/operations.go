// This file answers: which operation of the spec is a request?

package server

import (
	"context"
	"net/http"
	"slices"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/routers"
	"github.com/gorilla/mux"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
)

func loadSpec() (*openapi3.T, error) {
	spec, err := openapi3.NewLoader().LoadFromData(api.Spec)
	if err != nil {
		return nil, err
	}
	return spec, spec.Validate(context.Background())
}

// operation is what the spec says of one.
type operation struct {
	id      string // its operationId
	lists   bool
	open    bool       // needs no token
	role    cloud.Role // the least that may
	faulty  bool       // faults can touch it
	audited bool
	query   map[string]bool // its query parameters; true for those that may be given several times
	json    bool            // takes a body, which is JSON
	route   *routers.Route
}

// operations are found by method and path as the spec has it: "GET /v1/zones".
type operations map[string]*operation

// operationsOf tells apart those that need no token: they are nobody's. Faults
// leave alone what they are made, looked at and lifted with, which is an admin's,
// and the audit, which they are counted by; the audit leaves out itself and
// faults.
func operationsOf(spec *openapi3.T) operations {
	all := operations{}
	for path, item := range spec.Paths.Map() {
		for method, op := range item.Operations() {
			audit := slices.Contains(op.Tags, "audit")
			o := &operation{
				id: op.OperationID, lists: lists(op), open: op.Security != nil,
				query: map[string]bool{}, json: op.RequestBody != nil && op.RequestBody.Value.Content["application/json"] != nil && len(op.RequestBody.Value.Content) == 1,
				route: &routers.Route{Spec: spec, Path: path, PathItem: item, Method: method, Operation: op},
			}
			o.faulty = !o.open && !audit && op.Extensions["x-role"] != string(cloud.Admin)
			o.audited = !o.open && !audit && !slices.Contains(op.Tags, "faults")
			switch {
			case op.Extensions["x-role"] == string(cloud.Admin):
				o.role = cloud.Admin
			case method == http.MethodGet:
				o.role = cloud.Viewer
			default:
				o.role = cloud.Editor
			}
			for _, p := range slices.Concat(item.Parameters, op.Parameters) {
				if p.Value.In == openapi3.ParameterInQuery {
					o.query[p.Value.Name] = p.Value.Schema.Value.Type.Is(openapi3.TypeArray)
				}
			}
			all[method+" "+path] = o
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

// byRoute finds the operations by the routes that were made of them.
func (o operations) byRoute(router *mux.Router) (map[*mux.Route]*operation, error) {
	found := map[*mux.Route]*operation{}
	err := router.Walk(func(route *mux.Route, _ *mux.Router, _ []*mux.Route) error {
		path, err := route.GetPathTemplate()
		if err != nil {
			return err
		}
		methods, err := route.GetMethods()
		if err != nil {
			return err
		}
		for _, m := range methods {
			if op := o[m+" "+path]; op != nil {
				found[route] = op
			}
		}
		return nil
	})
	return found, err
}

// lists gives the operationIds of those that faults can touch, and whether they
// list.
func (o operations) lists() map[string]bool {
	ids := map[string]bool{}
	for _, op := range o {
		if op.faulty {
			ids[op.id] = op.lists
		}
	}
	return ids
}

// Operations are the operationIds that a fault can name, sorted.
func Operations() ([]string, error) { return operationIDs(func(o *operation) bool { return o.faulty }) }

// AuditedOperations are the operationIds that the audit knows, sorted.
func AuditedOperations() ([]string, error) {
	return operationIDs(func(o *operation) bool { return o.audited })
}

func operationIDs(which func(*operation) bool) ([]string, error) {
	spec, err := loadSpec()
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, op := range operationsOf(spec) {
		if which(op) {
			ids = append(ids, op.id)
		}
	}
	slices.Sort(ids)
	return ids, nil
}
