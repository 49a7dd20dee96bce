package story

// Entries of the cloud's audit, which has operations and IDs. The request of an
// operation is in the API's specification, and the name of an ID in the cloud's events.

import (
	"cmp"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

type request struct{ method, path string }

// requests maps operationIds to the requests of the cloud's API.
var requests = sync.OnceValue(func() map[string]request {
	var spec struct {
		Paths map[string]map[string]any `json:"paths"`
	}
	all := map[string]request{}
	if yaml.Unmarshal(api.Spec, &spec) != nil {
		return all // Calls are shown by their operation, then.
	}
	for path, methods := range spec.Paths {
		for method, what := range methods {
			operation, ok := what.(map[string]any)
			if id, named := operation["operationId"].(string); ok && named {
				all[id] = request{strings.ToUpper(method), path}
			}
		}
	}
	return all
})

// OfCall tells a call, and when it is to be told.
func OfCall(a api.AuditEntry) (time.Time, Change) {
	req := requests()[a.Operation]
	id := a.Resource
	call := &Call{
		Method: req.method, Path: req.path, Status: a.Status, Code: a.Code, Fault: a.Fault,
		Milliseconds: a.DurationMilliseconds, RequestID: a.RequestID, UserAgent: a.UserAgent,
	}
	if begin, end := strings.Index(req.path, "{"), strings.Index(req.path, "}"); begin >= 0 && end > begin && id != "" {
		call.Path = req.path[:begin] + id + req.path[end+1:]
	}
	detail := fmt.Sprintf("%s %s → ", call.Method, call.Path)
	if a.Status == 0 {
		detail += "broken off"
	} else {
		detail += fmt.Sprint(a.Status)
	}
	if call.Code != "" {
		detail += " " + call.Code
	}
	if call.Fault != "" {
		detail += " by fault " + call.Fault
	}
	return callTime(a, call), Change{
		Source: SourceCall, Subject: callSubject(req.path, id), What: a.Operation, Detail: detail, Caller: a.Token,
		Failed: a.Status == 0 || a.Status >= http.StatusBadRequest, ID: id, Call: call,
	}
}

// briefCall is how long a call may take to be shown where it began.
const briefCall = 100 * time.Millisecond

// callTime is when a call began, if it changes something, so that it comes
// before what it did. For a read, and for a call that took long, it is when the call was
// answered: a watch learns of it only then.
func callTime(a api.AuditEntry, call *Call) time.Time {
	took := time.Duration(a.DurationMilliseconds * float64(time.Millisecond))
	if call.Reads() || took > briefCall {
		return a.Time
	}
	return a.Time.Add(-took)
}

// callSubject is the resource by its ID, or what was asked for.
func callSubject(path, id string) string {
	collection, _, _ := strings.Cut(strings.TrimPrefix(path, "/v1/"), "/")
	if id == "" {
		return "cloud/" + cmp.Or(collection, "api")
	}
	kind := strings.TrimSuffix(collection, "s")
	if kind == "load-balancer" {
		kind = "balancer"
	}
	return kind + "/" + id
}

// Reads tells whether a call changes nothing.
func (c *Call) Reads() bool { return c.Method == http.MethodGet || c.Method == http.MethodHead }
