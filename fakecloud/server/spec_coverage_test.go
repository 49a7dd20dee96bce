package server_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// coverage is what was seen of the spec: "getInstance ok", "getInstance not-found".
type coverage struct {
	mu   sync.Mutex
	seen map[string]bool
}

var covered = coverage{seen: map[string]bool{}}

func (c *coverage) note(operation string, status int, body []byte) {
	end := "ok"
	if status >= http.StatusBadRequest {
		var p api.Problem
		if json.Unmarshal(body, &p) != nil {
			return
		}
		end = string(p.Code)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen[operation+" "+end] = true
}

// compare gives each operation's success, and the problems in its x-problems, that
// no test has seen; and what was seen that the spec does not have, beside what any
// operation may answer.
func (c *coverage) compare() (missing, strange []string, err error) {
	spec, err := openapi3.NewLoader().LoadFromData(api.Spec)
	if err != nil {
		return nil, nil, err
	}
	var all []string
	for _, item := range spec.Paths.Map() {
		for _, op := range item.Operations() {
			all = append(all, op.OperationID+" ok")
			problems, _ := op.Extensions["x-problems"].([]any)
			for _, p := range problems {
				all = append(all, fmt.Sprintf("%s %v", op.OperationID, p))
			}
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for seen := range c.seen {
		_, end, _ := strings.Cut(seen, " ")
		if !slices.Contains(all, seen) &&
			!slices.Contains([]string{string(api.Internal), string(api.Unavailable)}, end) {
			strange = append(strange, seen)
		}
	}
	missing = slices.DeleteFunc(all, func(want string) bool { return c.seen[want] })
	slices.Sort(missing)
	slices.Sort(strange)
	return missing, strange, nil
}

// TestMain looks at what the tests have seen, if all of them ran.
func TestMain(m *testing.M) {
	flag.Parse()
	code := m.Run()
	for _, some := range []string{"test.run", "test.skip", "test.fuzz", "test.list"} {
		if flag.Lookup(some).Value.String() != "" {
			os.Exit(code)
		}
	}
	missing, strange, err := covered.compare()
	if err != nil {
		panic(err)
	}
	for _, what := range missing {
		fmt.Println("--- FAIL: the spec documents what no test has seen:", what)
		code = 1
	}
	for _, what := range strange {
		fmt.Println("--- FAIL: a test has seen what the spec does not document:", what)
		code = 1
	}
	os.Exit(code)
}
