package server

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/routers"
	"github.com/gorilla/mux"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
	"github.com/ccmlab/ccmlab/fakecloud/faults"
)

// loadSpec reads the spec once for all servers of a process, who only read it.
var loadSpec = sync.OnceValues(func() (*openapi3.T, error) {
	spec, err := openapi3.NewLoader().LoadFromData(api.Spec)
	if err != nil {
		return nil, err
	}
	return spec, spec.Validate(context.Background())
})

// operation is what the spec says of an operation.
type operation struct {
	id        string // its operationId
	faults    faults.Operation
	kind      cloud.Resource // of the resource in its path; empty if that has none, or no tags
	public    bool           // needs no token
	role      cloud.Role     // the least that may
	faultable bool           // faults can touch it
	audited   bool
	query     map[string]bool // its query parameters; true for those that may be given several times
	headers   map[string]bool // its header parameters
	json      bool            // takes a body, which is JSON
	route     *routers.Route
}

// operations are the API's operations by method and path, such as "GET /v1/zones".
type operations map[string]*operation

// operationsOf reads the operations of a spec. Public ones need no token. Faults leave
// alone the operations of admins, by which faults are made, read and lifted, and the
// audit, in which they are counted. The audit leaves out itself and the operations about
// faults.
func operationsOf(spec *openapi3.T) operations {
	all := operations{}
	for path, item := range spec.Paths.Map() {
		for method, op := range item.Operations() {
			audit := slices.Contains(op.Tags, "audit")
			o := &operation{
				id: op.OperationID, faults: toFaultOperation(spec, method, path, op),
				kind: pathResources[collectionOf(path)].kind, public: op.Security != nil,
				query: map[string]bool{}, headers: map[string]bool{}, json: op.RequestBody != nil &&
					op.RequestBody.Value.Content["application/json"] != nil && len(op.RequestBody.Value.Content) == 1,
				route: &routers.Route{Spec: spec, Path: path, PathItem: item, Method: method, Operation: op},
			}
			o.faultable = !o.public && !audit && op.Extensions["x-role"] != string(cloud.Admin)
			o.audited = !o.public && !audit && !slices.Contains(op.Tags, "faults")
			switch {
			case op.Extensions["x-role"] == string(cloud.Admin):
				o.role = cloud.Admin
			case method == http.MethodGet:
				o.role = cloud.Viewer
			default:
				o.role = cloud.Editor
			}
			for _, p := range slices.Concat(item.Parameters, op.Parameters) {
				switch p.Value.In {
				case openapi3.ParameterInQuery:
					o.query[p.Value.Name] = p.Value.Schema.Value.Type.Is(openapi3.TypeArray)
				case openapi3.ParameterInHeader:
					o.headers[p.Value.Name] = true
				}
			}
			all[method+" "+path] = o
		}
	}
	return all
}

// pathResources are the resources whose IDs are in paths, by the collection that
// precedes the ID. An operation has no kind: it has no tags.
var pathResources = map[string]struct {
	idPrefix string
	kind     cloud.Resource
}{
	"networks":       {"n-", api.ResourceNetwork},
	"firewalls":      {"f-", api.ResourceFirewall},
	"instances":      {"i-", api.ResourceInstance},
	"load-balancers": {"lb-", api.ResourceLoadBalancer},
	"addresses":      {"a-", api.ResourceAddress},
	"routes":         {"r-", api.ResourceRoute},
	"certificates":   {"cert-", api.ResourceCertificate},
	"operations":     {"op-", ""},
}

// collectionOf gives the part of a path that precedes an ID; empty if it has none.
func collectionOf(path string) string {
	collection, _, has := strings.Cut(strings.TrimPrefix(path, "/v1/"), "/{id}")
	if !has {
		return ""
	}
	return collection
}

// toFaultOperation gives what faults must know of an operation.
func toFaultOperation(spec *openapi3.T, method, path string, op *openapi3.Operation) faults.Operation {
	answer := answerOf(op)
	lists := answer != nil && answer.Properties["items"] != nil
	if lists {
		answer = answer.Properties["items"].Value.Items.Value
	}
	stream := false
	if ok := op.Responses.Status(http.StatusOK); ok != nil {
		stream = ok.Value.Content.Get("text/event-stream") != nil
	}
	if stream {
		answer = spec.Components.Schemas["Event"].Value
	}
	resource := pathResources[collectionOf(path)]
	return faults.Operation{
		Reads: method == http.MethodGet, Lists: lists, Streams: stream, Resource: resource.idPrefix,
		Tags:    resource.kind != "",
		Answers: func(field string) bool { return hasField(answer, strings.Split(field, ".")) },
	}
}

// answerOf is the schema of an operation's successful answer, or nil.
func answerOf(op *openapi3.Operation) *openapi3.Schema {
	for _, status := range []int{http.StatusOK, http.StatusCreated, http.StatusAccepted} {
		answer := op.Responses.Status(status)
		if answer == nil {
			continue
		}
		if content := answer.Value.Content.Get("application/json"); content != nil {
			return content.Schema.Value
		}
	}
	return nil
}

// hasField tells whether an answer can have a field. The path passes through lists to
// their items.
func hasField(s *openapi3.Schema, path []string) bool {
	switch {
	case s == nil:
		return false
	case len(path) == 0:
		return true
	case s.Items != nil:
		return hasField(s.Items.Value, path)
	case s.AdditionalProperties.Schema != nil: // A map: its keys may have dots.
		return true
	}
	for _, part := range s.AllOf {
		if hasField(part.Value, path) {
			return true
		}
	}
	next := s.Properties[path[0]]
	return next != nil && hasField(next.Value, path[1:])
}

// byRoute gives the operations by the routes that the router has for them.
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

// byID gives what faults must know of each that they can touch, by its
// operationId.
func (o operations) byID() map[string]faults.Operation {
	ids := map[string]faults.Operation{}
	for _, op := range o {
		if op.faultable {
			ids[op.id] = op.faults
		}
	}
	return ids
}

// FaultableOperations gives what faults must know of each operation that they can
// touch, by its operationId.
func FaultableOperations() (map[string]faults.Operation, error) {
	spec, err := loadSpec()
	if err != nil {
		return nil, fmt.Errorf("the API's spec: %w", err)
	}
	return operationsOf(spec).byID(), nil
}

// Operations gives the operationIds that a fault can name, sorted.
func Operations() ([]string, error) {
	return operationIDs(func(o *operation) bool { return o.faultable })
}

// AuditedOperations gives the operationIds that the audit records, sorted.
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
