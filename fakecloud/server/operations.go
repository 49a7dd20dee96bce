// This file answers: which operation of the spec is a request?

package server

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/gorilla/mux"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/faults"
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
	id string // its operationId
	faults.Operation
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
			all[method+" "+path] = operation{op.OperationID, faultable(method, path, op)}
		}
	}
	return all
}

// faultable is what faults must know of an operation.
func faultable(method, path string, op *openapi3.Operation) faults.Operation {
	answer := answerOf(op)
	lists := answer != nil && answer.Properties["items"] != nil
	if lists {
		answer = answer.Properties["items"].Value.Items.Value
	}
	stream := false
	if ok := op.Responses.Status(http.StatusOK); ok != nil {
		stream = ok.Value.Content.Get("text/event-stream") != nil
	}
	return faults.Operation{
		Reads: method == http.MethodGet, Lists: lists, Streams: stream, Resource: strings.Contains(path, "{id}"),
		Answers: func(field string) bool { return hasField(answer, strings.Split(field, ".")) },
	}
}

// answerOf is the schema of what the operation answers with when all is well, or
// nil.
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

// hasField tells whether an answer may have the field. The way to it leads
// through the items of lists.
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

// of is the operation that a routed request asks for, if it is one of these.
func (o operations) of(r *http.Request) (operation, bool) {
	path, err := mux.CurrentRoute(r).GetPathTemplate()
	op, ok := o[r.Method+" "+path]
	return op, ok && err == nil
}

// byID gives what faults must know of each, by its operationId.
func (o operations) byID() map[string]faults.Operation {
	ids := map[string]faults.Operation{}
	for _, op := range o {
		ids[op.id] = op.Operation
	}
	return ids
}

// Operations are the operationIds that a fault can name, sorted.
func Operations() ([]string, error) {
	spec, err := loadSpec()
	if err != nil {
		return nil, err
	}
	return slices.Sorted(maps.Keys(operationsOf(spec).byID())), nil
}
