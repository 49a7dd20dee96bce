package cli

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/getkin/kin-openapi/openapi3"
	"go.yaml.in/yaml/v3"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// maxManifest bounds what is read of a manifest, in bytes.
const maxManifest = 16 << 20

// wanted is one resource of a manifest.
type wanted struct {
	kind *kind
	name string
	line int
	at   string // where in the manifest, for messages
	// given is the request that creates it, with what the manifest says and
	// nothing else. References to other resources are apart.
	given map[string]any
	// state, targets and refs are the fields that a manifest has and the API has
	// not, or as IDs; targets is nil when left out.
	state   string
	targets []string
	refs    []reference
}

// reference names another resource where the API wants its ID.
type reference struct{ field, kind, name, id string }

// kind is what can be in a manifest, in the order in which it is applied.
type kind struct {
	key, singular string
	schema        string // of the API's request that creates one
	single        bool   // there is one only, which has no name
	refs          []reference
	// fixed are the fields that nothing can change once a resource is there.
	fixed []string
	// own takes the fields that are the manifest's own out of a request, and gives
	// those that are wrong.
	own func(w *wanted) map[string]string
}

// kinds come in the order of what refers to what.
var kinds = []*kind{
	{key: "quotas", singular: "quotas", schema: "QuotasUpdate", single: true},
	{key: "networks", singular: "network", schema: "NetworkCreate", fixed: []string{"cidr"}},
	{key: "addresses", singular: "address", schema: "ReservedAddressCreate", fixed: []string{"ip"}},
	{
		key: "instances", singular: "instance", schema: "InstanceCreate", fixed: []string{"zone", "type", "address", "networkId"}, own: ownOfInstance,
		refs: []reference{{field: "network", kind: "networks", id: "networkId"}},
	},
	{
		key: "loadBalancers", singular: "load balancer", schema: "LoadBalancerCreate", fixed: []string{"address", "addressId", "ipFamilies"}, own: ownOfBalancer,
		refs: []reference{{field: "reservedAddress", kind: "addresses", id: "addressId"}},
	},
	{
		key: "routes", singular: "route", schema: "RouteCreate", fixed: []string{"destination", "instanceId"},
		refs: []reference{{field: "instance", kind: "instances", id: "instanceId"}},
	},
}

func ownOfInstance(w *wanted) map[string]string {
	bad := map[string]string{}
	if state, ok := w.given["state"]; ok {
		if w.state, _ = state.(string); w.state != "running" && w.state != "stopped" {
			bad["state"] = "must be running or stopped"
		}
		delete(w.given, "state")
	}
	return bad
}

func ownOfBalancer(w *wanted) map[string]string {
	bad := map[string]string{}
	targets, ok := w.given["targets"]
	if !ok {
		return bad
	}
	list, ok := targets.([]any)
	if !ok {
		bad["targets"] = "must be a list of instances' names"
	}
	w.targets = []string{}
	for i, t := range list {
		name, _ := t.(string)
		switch {
		case name == "":
			bad["targets/"+strconv.Itoa(i)] = "must be the name of an instance"
		case slices.Contains(w.targets, name):
			bad["targets/"+strconv.Itoa(i)] = "is named before"
		}
		w.targets = append(w.targets, name)
	}
	delete(w.given, "targets")
	return bad
}

// takeOwn takes the fields that are the manifest's own out of the request.
func (w *wanted) takeOwn() map[string]string {
	bad := map[string]string{}
	if w.kind.own != nil {
		bad = w.kind.own(w)
	}
	for _, ref := range w.kind.refs {
		if _, ok := w.given[ref.id]; ok {
			bad[ref.id] = "is not known: give the name as " + ref.field
			delete(w.given, ref.id)
		}
		name, ok := w.given[ref.field]
		if !ok {
			continue
		}
		if ref.name, _ = name.(string); ref.name == "" {
			bad[ref.field] = "must be a name"
		}
		delete(w.given, ref.field)
		w.given[ref.id] = "named" // The ID comes later.
		w.refs = append(w.refs, ref)
	}
	return bad
}

var loadSpec = sync.OnceValues(func() (*openapi3.T, error) { return openapi3.NewLoader().LoadFromData(api.Spec) })

// manifest collects what is wanted, and all that is wrong.
type manifest struct {
	file   string
	spec   *openapi3.T
	wanted []*wanted
	errs   []lineError
}

type lineError struct {
	line int
	text string
}

func (m *manifest) wrong(line int, format string, args ...any) {
	m.errs = append(m.errs, lineError{line, fmt.Sprintf(format, args...)})
}

// err is all that is wrong, in the order of the lines.
func (m *manifest) err() error {
	slices.SortFunc(m.errs, func(a, b lineError) int { return cmp.Or(a.line-b.line, strings.Compare(a.text, b.text)) })
	var errs []error
	for _, e := range m.errs {
		errs = append(errs, fmt.Errorf("%s:%d: %s", m.file, e.line, e.text))
	}
	return errors.Join(errs...)
}

// parseManifest reads YAML documents. The error is all errors, each with its
// line.
func parseManifest(file string, from io.Reader) ([]*wanted, error) {
	content, err := io.ReadAll(io.LimitReader(from, maxManifest+1))
	if err != nil {
		return nil, err
	}
	if len(content) > maxManifest {
		return nil, fmt.Errorf("%s: is larger than %d bytes", file, maxManifest)
	}
	m := &manifest{file: file}
	if m.spec, err = loadSpec(); err != nil {
		return nil, fmt.Errorf("the API's spec: %w", err)
	}
	docs := yaml.NewDecoder(bytes.NewReader(content))
	for {
		var doc yaml.Node
		err := docs.Decode(&doc)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, errors.Join(m.err(), fmt.Errorf("%s: %w", file, err))
		}
		if len(doc.Content) > 0 {
			m.document(doc.Content[0])
		}
	}
	m.twice()
	if len(m.wanted)+len(m.errs) == 0 {
		m.wrong(1, "asks for nothing: give %s", keys())
	}
	return m.wanted, m.err()
}

func keys() string {
	var names []string
	for _, k := range kinds {
		names = append(names, k.key)
	}
	return strings.Join(names, ", ")
}

func (m *manifest) document(root *yaml.Node) {
	switch {
	case isNull(root):
		return
	case root.Kind != yaml.MappingNode:
		m.wrong(root.Line, "must be a mapping with the keys %s", keys())
		return
	}
	seen := map[string]int{}
	for i := 0; i+1 < len(root.Content); i += 2 {
		key, list := root.Content[i], root.Content[i+1]
		at := slices.IndexFunc(kinds, func(k *kind) bool { return k.key == key.Value })
		switch first, twice := seen[key.Value]; {
		case at < 0:
			m.wrong(key.Line, "%s is not known: choose among %s", key.Value, keys())
			continue
		case twice:
			m.wrong(key.Line, "%s is in line %d already", key.Value, first)
			continue
		case isNull(list):
			continue
		case kinds[at].single:
			m.item(kinds[at], key.Value, list)
		case list.Kind != yaml.SequenceNode:
			m.wrong(list.Line, "%s must be a list", key.Value)
			continue
		}
		seen[key.Value] = key.Line
		if kinds[at].single {
			continue
		}
		for n, item := range list.Content {
			m.item(kinds[at], fmt.Sprintf("%s[%d]", key.Value, n), item)
		}
	}
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.Tag == "!!null" }

// item reads one resource and checks it as far as that goes without the cloud.
func (m *manifest) item(k *kind, at string, node *yaml.Node) {
	if node.Kind == yaml.AliasNode {
		node = node.Alias
	}
	if node.Kind != yaml.MappingNode {
		m.wrong(node.Line, "%s must be a mapping", at)
		return
	}
	given, err := asJSON(node)
	var lines *yaml.TypeError
	switch {
	case errors.As(err, &lines):
		for _, e := range lines.Errors {
			m.wrong(node.Line, "%s: %s", at, e)
		}
		return
	case err != nil:
		m.wrong(node.Line, "%s: %v", at, err)
		return
	}
	w := &wanted{kind: k, line: node.Line, given: given}
	if w.name, _ = given["name"].(string); k.single {
		w.name = k.key
	} else if w.name == "" {
		m.wrong(node.Line, "%s.name is required: it is how a resource is found again", at)
	} else {
		at = fmt.Sprintf("%s (%s)", at, w.name)
	}
	w.at = fmt.Sprintf("%s:%d: %s", m.file, node.Line, at)
	for path, why := range w.takeOwn() {
		m.wrong(lineOf(node, strings.Split(path, "/")), "%s: %s %s", at, strings.ReplaceAll(path, "/", "."), why)
	}
	err = m.spec.Components.Schemas[k.schema].Value.VisitJSON(w.given, openapi3.MultiErrors())
	for _, e := range fieldErrors(err) {
		for _, ref := range k.refs {
			e.why = strings.ReplaceAll(e.why, strconv.Quote(ref.id), strconv.Quote(ref.field))
			if len(e.path) == 1 && e.path[0] == ref.id {
				e.path = []string{ref.field}
			}
		}
		m.wrong(lineOf(node, e.path), "%s: %s", at, strings.TrimSpace(strings.Join(e.path, ".")+" "+e.why))
	}
	m.wanted = append(m.wanted, w)
}

// asJSON gives a mapping as the API's requests have it.
func asJSON(node *yaml.Node) (map[string]any, error) {
	var raw map[string]any
	if err := node.Decode(&raw); err != nil {
		return nil, err
	}
	text, err := json.Marshal(raw)
	if err != nil {
		return nil, errors.New("holds what JSON cannot, such as keys that are no strings")
	}
	var given map[string]any
	return given, json.Unmarshal(text, &given)
}

// fieldError is one field that does not fit the API, and why.
type fieldError struct {
	path []string
	why  string
}

// fieldErrors are the leaves of what the validator says.
func fieldErrors(err error) []fieldError {
	switch e := err.(type) { //nolint:errorlint // Walks the tree level by level.
	case openapi3.MultiError:
		var all []fieldError
		for _, one := range e {
			all = append(all, fieldErrors(one)...)
		}
		return all
	case *openapi3.SchemaError:
		one := fieldError{e.JSONPointer(), e.Reason}
		// What does not fit all of several schemas is told by the one at fault.
		if inner := fieldErrors(e.Origin); len(inner) == 1 {
			one.why = inner[0].why
			if len(inner[0].path) > 0 {
				one.path = inner[0].path
			}
		}
		var unknown string
		if n, err := fmt.Sscanf(one.why, "property %q is unsupported", &unknown); n == 1 && err == nil {
			one = fieldError{append(one.path, unknown), "is not known"}
		}
		return []fieldError{one}
	case interface{ Unwrap() error }:
		return fieldErrors(e.Unwrap())
	}
	return nil
}

// lineOf is the line of a field, or of the deepest part of the way to it.
func lineOf(node *yaml.Node, path []string) int {
	line := node.Line
	for _, step := range path {
		if node.Kind == yaml.AliasNode {
			node = node.Alias
		}
		var next *yaml.Node
		switch node.Kind {
		case yaml.MappingNode:
			for i := 0; i+1 < len(node.Content); i += 2 {
				if node.Content[i].Value == step {
					line, next = node.Content[i].Line, node.Content[i+1]
				}
			}
		case yaml.SequenceNode:
			if i, err := strconv.Atoi(step); err == nil && i >= 0 && i < len(node.Content) {
				next = node.Content[i]
				line = next.Line
			}
		}
		if next == nil {
			break
		}
		node = next
	}
	return line
}

// twice finds names that are given to two resources of a kind.
func (m *manifest) twice() {
	first := map[string]*wanted{}
	for _, w := range m.wanted {
		if w.name == "" {
			continue
		}
		id := w.kind.key + "/" + w.name
		if other, ok := first[id]; ok {
			m.wrong(w.line, "%s: %q is the name of that of line %d already", w.kind.key, w.name, other.line)
			continue
		}
		first[id] = w
	}
}
