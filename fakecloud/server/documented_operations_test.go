package server_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
)

// documentedOperation is an operation of the spec as it can be asked for, of things that
// do not exist.
type documentedOperation struct {
	*openapi3.Operation
	method, path, url string
	open              bool // needs no token
	body              map[string]any
	problems          []any
}

var inPath = regexp.MustCompile(`\{[^}]*\}`)

// allDocumented are sorted by their IDs.
func allDocumented(t *testing.T) []documentedOperation {
	t.Helper()
	spec := must.Do(openapi3.NewLoader().LoadFromData(api.Spec))(t)
	var all []documentedOperation
	for path, item := range spec.Paths.Map() {
		for method, op := range item.Operations() {
			d := documentedOperation{
				Operation: op, method: method, path: path, url: inPath.ReplaceAllString(path, "none"),
				open: op.Security != nil,
			}
			d.problems, _ = op.Extensions["x-problems"].([]any)
			if op.RequestBody != nil {
				media := op.RequestBody.Value.Content["application/json"]
				example := media.Example
				if example == nil {
					example = media.Schema.Value.Example
				}
				d.body, _ = example.(map[string]any)
				require.NotEmpty(t, d.body, op.OperationID)
			}
			all = append(all, d)
		}
	}
	slices.SortFunc(all, func(a, b documentedOperation) int { return strings.Compare(a.OperationID, b.OperationID) })
	require.NotEmpty(t, all)
	return all
}

// text is the example of a body, with more in it.
func (d documentedOperation) text(t *testing.T, more map[string]any) string {
	t.Helper()
	if d.body == nil {
		return ""
	}
	whole := map[string]any{}
	for _, from := range []map[string]any{d.body, more} {
		maps.Copy(whole, from)
	}
	text := must.Do(json.Marshal(whole))(t)
	return string(text)
}

func (d documentedOperation) takes(parameter string) bool {
	return slices.ContainsFunc(d.Parameters, func(p *openapi3.ParameterRef) bool { return p.Value.Name == parameter })
}

func (d documentedOperation) limited() bool { return d.path != "/healthz" && d.path != "/readyz" }

func (d documentedOperation) has(code api.ProblemCode) bool {
	return slices.Contains(d.problems, any(string(code)))
}

// What an operation takes says which problems it has, and the other way round.
func TestProblemsFollowFromWhatAnOperationTakes(t *testing.T) {
	for _, d := range allDocumented(t) {
		id := d.OperationID
		// Which shows an admin other projects.
		changes := d.method != http.MethodGet || d.Extensions["x-role"] != nil || id == "streamEvents"
		assert.Equal(t, changes, d.has(api.Forbidden), id)
		assert.Equal(t, !d.open, d.has(api.Unauthenticated), id)
		assert.Equal(t, d.limited(), d.has(api.RateLimited), id)
		assert.Equal(t, d.body != nil, d.has(api.TooLarge), id)
		assert.Equal(t, strings.Contains(d.path, "{"), d.has(api.NotFound), id)
		assert.Equal(t, d.takes("If-Match"), d.has(api.PreconditionFailed), id)
		assert.Equal(t, d.takes("Idempotency-Key"), d.has(api.IdempotencyKeyReused), id)
		assert.False(t, d.has(api.Internal) || d.has(api.Unavailable) ||
			d.has(api.MethodNotAllowed), "%s: any operation may", id)
		assert.Len(t, slices.Compact(slices.SortedFunc(
			slices.Values(d.problems), func(a, b any) int { return strings.Compare(a.(string), b.(string)) },
		)), len(d.problems), id)
	}
}

func TestEveryOperationRefusesWhatItDoesNotKnow(t *testing.T) {
	r := newRig(t)
	for _, d := range allDocumented(t) {
		if !d.limited() {
			continue // Probes look at no query.
		}
		answer, p := r.call(t, d.method, d.url+"?nonsense=1", d.text(t, nil))
		assert.Equal(t, 400, answer.StatusCode, d.OperationID)
		assert.Equal(t, api.InvalidRequest, p.Code, d.OperationID)
		assert.Contains(t, p.Detail, "nonsense is not a parameter of this operation", d.OperationID)
		assert.Contains(t, fields(p), "nonsense", d.OperationID)
		if d.body == nil {
			continue
		}
		answer, p = r.call(t, d.method, d.url, d.text(t, map[string]any{"nonsense": 1}))
		assert.Equal(t, 400, answer.StatusCode, d.OperationID)
		assert.Contains(t, fields(p)["nonsense"], "is not known: choose among ", "%s: %s", d.OperationID, p.Detail)
	}
}

func TestEveryOperationBoundsItsBody(t *testing.T) {
	r := newRig(t)
	for _, d := range allDocumented(t) {
		if d.body == nil {
			continue
		}
		answer, p := r.call(
			t, d.method, d.url, d.text(t, map[string]any{"nonsense": string(bytes.Repeat([]byte("x"), 1<<20))}),
		)
		assert.Equal(t, 413, answer.StatusCode, d.OperationID)
		assert.Equal(t, api.TooLarge, p.Code, d.OperationID)
		assert.Contains(t, p.Detail, "1048576 bytes", d.OperationID)
	}
}

func TestEveryOperationTellsWhatIsNotThere(t *testing.T) {
	r := newRig(t)
	for _, d := range allDocumented(t) {
		if !strings.Contains(d.path, "{") {
			continue
		}
		answer, p := r.call(t, d.method, d.url, d.text(t, nil))
		assert.Equal(t, 404, answer.StatusCode, "%s: %s", d.OperationID, answer.Body)
		assert.Equal(t, api.NotFound, p.Code, d.OperationID)
		assert.Contains(t, p.Detail, `"none"`, d.OperationID)
		if assert.NotNil(t, p.Project, d.OperationID) {
			assert.Equal(t, r.project.ID, *p.Project, d.OperationID)
		}
	}
}

func TestEveryOperationIsLimited(t *testing.T) {
	r := newRig(t).throttled(t)
	for _, d := range allDocumented(t) {
		if !d.limited() {
			continue
		}
		if d.OperationID == "streamEvents" {
			d.url += "?follow=false"
		}
		var answer bufferedAnswer
		var p api.Problem
		for range 300 { // Now and then a call is let through.
			if answer, p = r.call(t, d.method, d.url, "{"); answer.StatusCode == http.StatusTooManyRequests {
				break
			}
		}
		assert.Equal(t, 429, answer.StatusCode, d.OperationID)
		assert.Equal(t, api.RateLimited, p.Code, d.OperationID)
		assert.Equal(t, "1", answer.Header.Get("Retry-After"), d.OperationID)
		assert.Contains(t, p.Detail, `token "operator"`, d.OperationID)
	}
}

// oneOfEach makes something of each kind that belongs to a project, by the path before its ID.
func (r *rig) oneOfEach(t *testing.T, name string) map[string]string {
	t.Helper()
	r.withHop(t)
	n := len(must.Do(r.ListRoutes(t.Context(), client.RouteFilter{}))(t))
	destination, cidr := fmt.Sprintf("10.0.%d.0/24", n), fmt.Sprintf("10.1.%d.0/24", n)
	route := r.createRoute(t, api.RouteCreate{Name: name, Destination: destination, InstanceID: r.hop})
	firewall := must.Do(r.CreateFirewall(t.Context(), api.FirewallCreate{}))(t)
	certificate := must.Do(r.CreateCertificate(t.Context(), certificateFor(t, name)))(t)
	return map[string]string{
		"/v1/firewalls/": firewall.ID, "/v1/certificates/": certificate.ID,
		"/v1/networks/": r.network(t, name, cidr).ID, "/v1/instances/": r.hop, "/v1/routes/": route.ID,
		"/v1/addresses/": r.reserve(t, name).ID, "/v1/load-balancers/": r.balancer(t, name).ID,
	}
}

// Whether a list is read at once or in pages, it is the same. The audit's changes with each call.
func TestEveryListHasPages(t *testing.T) {
	r := newRig(t)
	for _, name := range []string{"a", "b", "c"} {
		r.oneOfEach(t, name)
	}
	tried := 0
	for _, d := range allDocumented(t) {
		if !d.takes("pageToken") || d.OperationID == "listAudit" {
			continue
		}
		tried++
		read := func(query string) (page struct {
			Items         []map[string]any
			NextPageToken string
		}) {
			answer, _ := r.call(t, d.method, strings.Replace(d.url, "none", r.project.ID, 1)+query, "")
			require.NoError(t, json.Unmarshal([]byte(answer.Body), &page), d.OperationID)
			return page
		}
		whole, page := read(""), read("?limit=1")
		require.Greater(t, len(whole.Items), 1, d.OperationID)
		assert.Empty(t, whole.NextPageToken, d.OperationID)
		paged := page.Items
		for page.NextPageToken != "" {
			page = read("?limit=1&pageToken=" + page.NextPageToken)
			paged = append(paged, page.Items...)
		}
		assert.Equal(t, whole.Items, paged, d.OperationID)
	}
	assert.Equal(t, 10, tried)
}

func TestEveryOperationHidesWhatAnotherProjectHas(t *testing.T) {
	r, ctx := newRig(t), t.Context()
	things := r.oneOfEach(t, "a")
	operations := must.Do(r.ListOperations(ctx, client.OperationFilter{}))(t)
	things["/v1/operations/"] = operations[0].ID
	fault := api.FaultCreate{Match: api.FaultMatch{Token: "nobody"}, Effect: api.FaultEffect{Hang: true}}
	things["/v1/faults/"] = r.createFault(t, fault).ID
	tried := map[string]bool{}
	for _, d := range allDocumented(t) {
		before, _, _ := strings.Cut(d.path, "{")
		if things[before] == "" || before == d.path {
			continue
		}
		tried[before] = true
		at := strings.Replace(d.path, "{id}", things[before], 1)
		answer, p := r.call(t, d.method, at, d.text(t, nil), "Authorization", "Bearer "+otherSecret)
		assert.Equal(t, 404, answer.StatusCode, "%s: %s", d.OperationID, answer.Body)
		assert.Equal(t, api.NotFound, p.Code, d.OperationID)
		if assert.NotNil(t, p.Project, d.OperationID) {
			assert.NotEqual(t, r.project.ID, *p.Project, d.OperationID)
		}
	}
	assert.Len(t, tried, len(things))
}

func TestEveryConditionalChangeIsForItsVersion(t *testing.T) {
	r := newRig(t)
	things := r.oneOfEach(t, "a")
	things["/v1/projects/"] = r.project.ID
	tried := map[string]bool{}
	for _, d := range allDocumented(t) {
		if !d.takes("If-Match") {
			continue
		}
		before, _, _ := strings.Cut(d.path, "{")
		require.Contains(t, things, before, d.OperationID)
		tried[before] = true
		at := strings.Replace(d.path, "{id}", things[before], 1)
		was, _ := r.call(t, http.MethodGet, before+things[before], "")
		answer, p := r.call(t, d.method, at, d.text(t, nil), "If-Match", `"99"`)
		assert.Equal(t, 412, answer.StatusCode, "%s: %s", d.OperationID, answer.Body)
		assert.Equal(t, api.PreconditionFailed, p.Code, d.OperationID)
		assert.Contains(t, p.Detail, "read it again", d.OperationID)
		is, _ := r.call(t, http.MethodGet, before+things[before], "")
		assert.Equal(t, was.Body, is.Body, "%s: nothing is changed", d.OperationID)
	}
	assert.Len(t, tried, len(things))
}

func TestEveryIdempotencyKeyIsForOneRequest(t *testing.T) {
	r := newRig(t).withHop(t)
	bodies := map[string]string{
		"createProject": `{"name":"NAME"}`, "createNetwork": `{"name":"NAME","cidr":"10.1.0.0/24"}`,
		"createInstance":     `{"name":"NAME"}`,
		"createRoute":        `{"name":"NAME","destination":"10.2.0.0/24","instanceId":"` + r.hop + `"}`,
		"createFirewall":     `{"name":"NAME"}`,
		"reserveAddress":     `{"name":"NAME"}`,
		"createCertificate":  strings.Replace(string(must.Do(json.Marshal(certificateFor(t, "shop")))(t)), `"shop"`, `"NAME"`, 1),
		"createLoadBalancer": `{"name":"NAME","listeners":[{"protocol":"tcp","port":8080,"targetPort":1}]}`,
	}
	for _, d := range allDocumented(t) {
		if !d.takes("Idempotency-Key") {
			continue
		}
		require.NotEmpty(t, bodies[d.OperationID], d.OperationID)
		create := func(name string) (bufferedAnswer, api.Problem) {
			body := strings.Replace(bodies[d.OperationID], "NAME", name, 1)
			return r.call(t, d.method, d.url, body, "Idempotency-Key", "key-of-"+d.OperationID)
		}
		answer, _ := create("a")
		require.Equal(t, 201, answer.StatusCode, "%s: %s", d.OperationID, answer.Body)
		again, _ := create("a")
		assert.Equal(t, answer.Body, again.Body, d.OperationID)
		assert.Equal(t, "true", again.Header.Get("Idempotent-Replayed"), d.OperationID)
		answer, p := create("b")
		assert.Equal(t, 422, answer.StatusCode, d.OperationID)
		assert.Equal(t, api.IdempotencyKeyReused, p.Code, d.OperationID)
		assert.Contains(t, p.Detail, "use a new key", d.OperationID)
		delete(bodies, d.OperationID)
	}
	assert.Empty(t, bodies, "all of them")
}

func (r *rig) balancer(t *testing.T, name string) api.LoadBalancer {
	t.Helper()
	listeners := []api.Listener{{Protocol: api.ProtocolTCP, Port: freePort(t), TargetPort: 30080}}
	lb := r.createBalancer(t, api.LoadBalancerCreate{Name: name, Listeners: listeners})
	return r.awaitBalancer(t, lb.ID, api.LoadBalancerActive)
}
