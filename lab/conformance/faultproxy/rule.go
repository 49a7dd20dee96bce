package faultproxy

// Rules: which calls are about which resource.

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/ccmlab/ccmlab/lab/conformance"
)

// Rule says which calls are about which resource, and where that is in their answers. JSON pointers
// are those of RFC 6901.
type Rule struct {
	// Method is that of HTTP; "" for any.
	Method string
	// Path is a pattern of the URL's path below the cloud's: /v1/servers/{id}. A name in braces stands
	// for one segment; with dots, {rest...}, at the end, for all that follows.
	Path string
	// Thing is what the calls are about.
	Thing conformance.Thing
	// Reads says whether they change nothing; nil for what the method says.
	Reads *bool
	// List points to the list in an answer; nil for calls that list nothing.
	List *string
	// NextPage point to what says in a list's answer that there is more.
	NextPage []string
	// StateFields point from a thing to the fields that say what state it is in.
	StateFields []string
	// Item points to the thing in an answer that lists nothing.
	Item string
}

// String names the rule in messages.
func (r Rule) String() string { return strings.TrimSpace(r.Method + " " + r.Path) }

// compiledRule is a Rule that is ready for use.
type compiledRule struct {
	Rule
	segments []string // of Path
	reads    bool
}

const (
	anySegment  = "{}"
	anySegments = "{...}"
)

func (r Rule) compile() (compiledRule, error) {
	c := compiledRule{Rule: r, reads: r.Method == http.MethodGet || r.Method == http.MethodHead}
	if r.Reads != nil {
		c.reads = *r.Reads
	}
	var errs []error
	switch r.Thing {
	case conformance.Instances, conformance.Balancers, conformance.Routes:
	default:
		errs = append(errs, fmt.Errorf("thing %q: want instances, balancers or routes", r.Thing))
	}
	if r.Method != strings.ToUpper(r.Method) {
		errs = append(errs, fmt.Errorf("method %q: want capital letters", r.Method))
	}
	if !strings.HasPrefix(r.Path, "/") {
		errs = append(errs, errors.New("the path does not begin with /"))
	}
	c.segments = splitPath(r.Path)
	for i, segment := range c.segments {
		if !strings.HasPrefix(segment, "{") || !strings.HasSuffix(segment, "}") {
			continue
		}
		c.segments[i] = anySegment
		if strings.HasSuffix(segment, "...}") {
			c.segments[i] = anySegments
			if i < len(c.segments)-1 {
				errs = append(errs, fmt.Errorf("%s is not at the path's end", segment))
			}
		}
	}
	pointers := append([]string{r.Item}, append(r.NextPage, r.StateFields...)...)
	if r.List != nil {
		pointers = append(pointers, *r.List)
	}
	for _, pointer := range pointers {
		if pointer != "" && pointer[0] != '/' {
			errs = append(errs, fmt.Errorf("JSON pointer %q: it begins with / unless it is empty", pointer))
		}
	}
	return c, errors.Join(errs...)
}

// splitPath splits a path into its segments. A / at its end makes no difference.
func splitPath(path string) []string {
	return strings.Split(strings.Trim(path, "/"), "/")
}

// matches tells whether a call fits, and the ID that its path names; "" for none.
func (c *compiledRule) matches(method string, segments []string) (id string, fits bool) {
	if c.Method != "" && c.Method != method && (c.Method != http.MethodGet || method != http.MethodHead) {
		return "", false
	}
	for i, want := range c.segments {
		switch {
		case want == anySegments:
			return strings.Join(segments[min(i, len(segments)):], "/"), true
		case i >= len(segments), want == anySegment && segments[i] == "", want != anySegment && want != segments[i]:
			return "", false
		case want == anySegment:
			id = segments[i]
		}
	}
	return id, len(segments) == len(c.segments)
}

// ruleOf says what a request is about; the rule is nil if it is about nothing that the suite knows.
func (p *Proxy) ruleOf(r *http.Request) (rule *compiledRule, id string) {
	below, ok := strings.CutPrefix(r.URL.EscapedPath(), strings.TrimSuffix(p.config.Upstream.EscapedPath(), "/"))
	if !ok {
		return nil, ""
	}
	segments := splitPath(below)
	for i := range segments {
		if plain, err := url.PathUnescape(segments[i]); err == nil {
			segments[i] = plain
		}
	}
	for i := range p.rules {
		if id, fits := p.rules[i].matches(r.Method, segments); fits {
			return &p.rules[i], id
		}
	}
	return nil, ""
}
