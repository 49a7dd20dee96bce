package faultproxy

// Rules: which calls are about which resource.

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/ccmlab/ccmlab/lab/conformance"
	"github.com/ccmlab/ccmlab/lab/conformance/driver/protocol"
)

// compiledRule is a rule that is ready for use.
type compiledRule struct {
	protocol.ProxyRule
	segments []string // of Path
	reads    bool
}

const (
	anySegment  = "{}"
	anySegments = "{...}"
)

func compileRule(r protocol.ProxyRule) (compiledRule, error) {
	c := compiledRule{ProxyRule: r, reads: r.Method == http.MethodGet || r.Method == http.MethodHead}
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
	pointers := slices.Concat([]string{r.Item}, r.NextPage, r.StateFields)
	for _, group := range slices.Sorted(maps.Keys(r.Fields)) {
		pointers = append(pointers, r.Fields[group]...)
		if !slices.ContainsFunc(conformance.MissingFieldKinds(r.Thing), func(kind conformance.FaultKind) bool {
			return conformance.FieldGroup(kind) == group
		}) {
			errs = append(errs, fmt.Errorf("fields %q: %s have no group of that name", group, r.Thing))
		}
	}
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
	below, ok := strings.CutPrefix(r.URL.EscapedPath(), strings.TrimSuffix(p.upstream.EscapedPath(), "/"))
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

// Match returns the rule by which the proxy takes a call for one about a thing, and its number, from 1 on; 0 when
// none fits.
func (p *Proxy) Match(method, path string) (protocol.ProxyRule, int) {
	rule, _ := p.ruleOf(&http.Request{Method: method, URL: p.upstream.JoinPath(path)})
	for i := range p.rules {
		if &p.rules[i] == rule {
			return rule.ProxyRule, i + 1
		}
	}
	return protocol.ProxyRule{}, 0
}
