package protocol

// What openapi.yaml says of each operation.

import (
	"regexp"
	"sync"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/gorillamux"
)

// Operation is what openapi.yaml says of one.
type Operation struct {
	// Feature is what a driver names if it answers the operation; "" for one that every driver answers, and for
	// those that go with others.
	Feature string
	// Timeline is how a test's timeline calls it; "" if it does not. {id} is the path's parameter, other names in
	// braces are fields of the request's body. TimelineName is what the timeline calls the thing that was made.
	Timeline, TimelineName string

	method, path string
	query        string // its parameter there; "" for none
}

// pathParameter is the name of the one parameter that paths have.
const pathParameter = "id"

// spec is openapi.yaml.
var spec = sync.OnceValue(func() *openapi3.T {
	spec, err := openapi3.NewLoader().LoadFromData(Spec)
	if err != nil {
		panic(err) // It is a part of this program, and tests read it.
	}
	return spec
})

// specRouter finds the operation of a request.
var specRouter = sync.OnceValues(func() (routers.Router, error) { return gorillamux.NewRouter(spec()) })

// featureRE matches the feature in an operation's description.
var featureRE = regexp.MustCompile("^For `([a-z-]+)`")

// operations are the protocol's, by their ID.
var operations = sync.OnceValue(func() map[string]Operation {
	all := map[string]Operation{}
	for path, item := range spec().Paths.Map() {
		for method, o := range item.Operations() {
			one := Operation{method: method, path: path}
			one.Timeline, _ = o.Extensions["x-timeline"].(string)
			one.TimelineName, _ = o.Extensions["x-timeline-name"].(string)
			if match := featureRE.FindStringSubmatch(o.Description); match != nil {
				one.Feature = match[1]
			}
			for _, p := range o.Parameters {
				one.query = p.Value.Name
			}
			all[o.OperationID] = one
		}
	}
	return all
})

// OperationNamed returns the operation of this ID.
func OperationNamed(id string) Operation { return operations()[id] }

// Features are those that a driver names to be asked for an operation.
func Features() []string {
	var features []string
	for _, path := range spec().Paths.InMatchingOrder() {
		for _, o := range spec().Paths.Value(path).Operations() {
			if f := OperationNamed(o.OperationID).Feature; f != "" {
				features = append(features, f)
			}
		}
	}
	return features
}
