package cli

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/getkin/kin-openapi/openapi3"
	"go.yaml.in/yaml/v3"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// maxManifest is the largest size of a manifest, in bytes.
const maxManifest = 16 << 20

// wantedResource is one resource of a manifest.
type wantedResource struct {
	kind     *manifestKind
	name     string
	line     int
	position string // file, line and path in the manifest, for messages
	// given holds the fields of the request that creates it, as the manifest gives
	// them. References to other resources are in refs.
	given map[string]any
	// state is a field that the API does not have.
	state string
	refs  []reference
}

// reference is a name in the manifest, where the API takes an ID.
type reference struct {
	kind, name string
	setID      func(id string) // in wantedResource.given
}

// referringField is a field that names other resources. The API has their IDs in a field of its own.
type referringField struct {
	field, kind, id string
	under           string // the list whose items have the field; "" if the resource has it
	list            bool   // of names
	orID            bool   // the API's field may be given instead
}

// manifestKind is a kind of resource that a manifest can hold, under a key of its own.
type manifestKind struct {
	key    string
	single bool // a project has one of it, without a name
	refs   []referringField
	// takeOwnFields, unless nil, moves the fields that only the manifest has from w.given to w. It returns what is
	// wrong, by field.
	takeOwnFields func(w *wantedResource) map[string]string
	manifestCalls
}

// manifestKinds are in the order in which they are applied: a kind refers only to kinds
// before it.
var manifestKinds = []*manifestKind{
	{key: "quotas", single: true, manifestCalls: quotaCalls},
	{key: "networks", manifestCalls: callsOf((*app).networkKind, nil)},
	{key: "addresses", manifestCalls: callsOf((*app).addressKind, nil)},
	{key: "certificates", manifestCalls: callsOf((*app).certificateKind, nil)},
	{
		key: "instances", takeOwnFields: takeInstanceState, manifestCalls: callsOf((*app).instanceKind, (*plan).keepInstance),
		refs: []referringField{{field: "network", kind: "networks", id: "networkId"}},
	},
	{
		key: "loadBalancers", manifestCalls: callsOf((*app).balancerKind, (*plan).keepBalancer),
		refs: []referringField{
			{field: "reservedAddress", kind: "addresses", id: "addressId"},
			{field: "targets", kind: "instances", id: "targets", list: true},
			{field: "targets", kind: "instances", id: "targets", list: true, under: "listeners"},
			{field: "certificates", kind: "certificates", id: "certificateIds", list: true, under: "listeners", orID: true},
		},
	},
	{
		key: "firewalls", manifestCalls: callsOf((*app).firewallKind, nil),
		refs: []referringField{{field: "instances", kind: "instances", id: "instanceIds", list: true}},
	},
	{
		key: "routes", manifestCalls: callsOf((*app).routeKind, nil),
		refs: []referringField{{field: "instance", kind: "instances", id: "instanceId"}},
	},
}

func takeInstanceState(w *wantedResource) map[string]string {
	state, ok := w.given["state"]
	if !ok {
		return nil
	}
	delete(w.given, "state")
	if w.state, _ = state.(string); w.state != "running" && w.state != "stopped" {
		return map[string]string{"state": "must be running or stopped"}
	}
	return nil
}

// takeReferences puts placeholders, which satisfy the schema, where w.given has names, and adds the names to w.refs. It
// returns what is wrong, by field.
func (w *wantedResource) takeReferences() map[string]string {
	bad := map[string]string{}
	for _, f := range w.kind.refs {
		if f.under == "" {
			w.takeField(f, w.given, "", bad)
			continue
		}
		items, _ := w.given[f.under].([]any)
		for i, item := range items {
			if object, ok := item.(map[string]any); ok {
				w.takeField(f, object, fmt.Sprintf("%s/%d/", f.under, i), bad)
			}
		}
	}
	return bad
}

// takeField takes the references of one field of an object, which is at a path in the resource.
func (w *wantedResource) takeField(f referringField, object map[string]any, at string, bad map[string]string) {
	given, has := object[f.field]
	if _, ok := object[f.id]; ok && f.id != f.field && (has || !f.orID) {
		bad[at+f.id] = "is not known: give the name as " + f.field
		if f.list {
			bad[at+f.id] = "is not known: give the names as " + f.field
		}
		delete(object, f.id)
	}
	if !has {
		return
	}
	delete(object, f.field)
	if f.list {
		object[f.id] = w.takeList(f, given, at+f.field, bad)
		return
	}
	name, _ := given.(string)
	if name == "" {
		bad[at+f.field] = "must be a name"
	}
	object[f.id] = "named"
	w.refs = append(w.refs, reference{f.kind, name, func(id string) { object[f.id] = id }})
}

// takeList returns the list that the API takes for a list of names or, of targets, of names, addresses and mappings.
func (w *wantedResource) takeList(f referringField, given any, at string, bad map[string]string) []any {
	list, ok := given.([]any)
	if !ok {
		bad[at] = "must be a list of names"
	}
	out, seen := make([]any, len(list)), map[string]bool{}
	for i, one := range list {
		path := at + "/" + strconv.Itoa(i)
		name, _ := one.(string)
		if f.field == "targets" {
			var target map[string]any
			target, name = w.takeTarget(one, path, bad)
			out[i] = target
		} else {
			out[i] = "named"
			w.refs = append(w.refs, reference{f.kind, name, func(id string) { out[i] = id }})
			if name == "" {
				bad[path] = "must be a name"
			}
		}
		if seen[name] && bad[path] == "" {
			bad[path] = "is named twice"
		}
		seen[name] = true
	}
	return out
}

// takeTarget returns what the API takes for a target, and the instance's name or the address that the target has.
func (w *wantedResource) takeTarget(given any, at string, bad map[string]string) (target map[string]any, name string) {
	target = asTarget(given)
	if _, ok := target["instanceId"]; ok {
		bad[at+"/instanceId"] = "is not known: give the name as instance"
		delete(target, "instanceId")
	}
	name, _ = target["instance"].(string)
	address, _ := target["ip"].(string)
	delete(target, "instance")
	if (name == "") == (address == "") {
		bad[at] = "must be a mapping with either instance (a name) or ip"
		return target, ""
	}
	if name != "" {
		target["instanceId"] = "named"
		w.refs = append(w.refs, reference{"instances", name, func(id string) { target["instanceId"] = id }})
	}
	return target, name + address
}

// asTarget is a target as a mapping. A name alone or an address alone is one with nothing else.
func asTarget(given any) map[string]any {
	switch of := given.(type) {
	case map[string]any:
		return of
	case string:
		if _, err := netip.ParseAddr(of); err == nil {
			return map[string]any{"ip": of}
		}
		return map[string]any{"instance": of}
	}
	return map[string]any{}
}

// setIDs puts the IDs of the resources that w names in their places. It returns what it refers to that has no ID.
func (w *wantedResource) setIDs(ids map[string]string) (missing []reference) {
	for _, ref := range w.refs {
		id := ids[ref.kind+"/"+ref.name]
		if id == "" {
			missing = append(missing, ref)
		}
		ref.setID(id)
	}
	return missing
}

func (r reference) String() string {
	at := slices.IndexFunc(manifestKinds, func(k *manifestKind) bool { return k.key == r.kind })
	return fmt.Sprintf("%s %q", manifestKinds[at].singular, r.name)
}

// isFixed tells whether a field cannot be changed once the resource exists.
func (k *manifestKind) isFixed(field string) bool {
	update := fieldOf(k.update, field)
	return update == nil || extensionIsSet(update, "x-final")
}

// isWriteOnly tells whether a field cannot be read, and so not be compared.
func (k *manifestKind) isWriteOnly(field string) bool {
	given := fieldOf(k.create, field)
	return given != nil && given.Value.WriteOnly
}

// fieldInManifest is the name that the manifest has for a field of the API.
func (k *manifestKind) fieldInManifest(field string) string {
	for _, ref := range k.refs {
		if ref.id == field && ref.under == "" {
			return ref.field
		}
	}
	return field
}

// fieldOf is a field of a schema; nil if that has none of the name.
func fieldOf(schema, field string) *openapi3.SchemaRef {
	spec, err := loadSpec()
	if err != nil {
		return nil // Then no manifest was read.
	}
	return spec.Components.Schemas[schema].Value.Properties[field]
}

// extensionIsSet tells whether a field has an extension, beside the schema that it refers to or in its own.
func extensionIsSet(field *openapi3.SchemaRef, name string) bool {
	return field.Extensions[name] == true || field.Value.Extensions[name] == true
}

var loadSpec = sync.OnceValues(func() (*openapi3.T, error) { return openapi3.NewLoader().LoadFromData(api.Spec) })

// manifest is a manifest being read: the resources found, and all errors.
type manifest struct {
	file   string
	spec   *openapi3.T
	wanted []*wantedResource
	errs   []lineError
}

type lineError struct {
	line int
	text string
}

func (m *manifest) addError(line int, format string, args ...any) {
	m.errs = append(m.errs, lineError{line, fmt.Sprintf(format, args...)})
}

// joinedErrors joins all errors, in the order of their lines.
func (m *manifest) joinedErrors() error {
	slices.SortFunc(m.errs, func(a, b lineError) int { return cmp.Or(a.line-b.line, strings.Compare(a.text, b.text)) })
	var errs []error
	for _, e := range m.errs {
		errs = append(errs, fmt.Errorf("%s:%d: %s", m.file, e.line, e.text))
	}
	return errors.Join(errs...)
}

// parseManifest reads the YAML documents of a manifest. The error joins all errors, each with
// its line.
func parseManifest(file string, from io.Reader) ([]*wantedResource, error) {
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
			return nil, errors.Join(m.joinedErrors(), fmt.Errorf("%s: %w", file, err))
		}
		if len(doc.Content) > 0 {
			m.readDocument(doc.Content[0])
		}
	}
	m.checkDuplicateNames()
	if len(m.wanted)+len(m.errs) == 0 {
		m.addError(1, "is empty: give %s", sectionKeys())
	}
	return m.wanted, m.joinedErrors()
}

func sectionKeys() string {
	var names []string
	for _, k := range manifestKinds {
		names = append(names, k.key)
	}
	return strings.Join(names, ", ")
}

func (m *manifest) readDocument(root *yaml.Node) {
	switch {
	case isNull(root):
		return
	case root.Kind != yaml.MappingNode:
		m.addError(root.Line, "must be a mapping with the keys %s", sectionKeys())
		return
	}
	seen := map[string]int{}
	for i := 0; i+1 < len(root.Content); i += 2 {
		key, list := root.Content[i], root.Content[i+1]
		at := slices.IndexFunc(manifestKinds, func(k *manifestKind) bool { return k.key == key.Value })
		switch first, twice := seen[key.Value]; {
		case at < 0:
			m.addError(key.Line, "%s is not known: choose among %s", key.Value, sectionKeys())
			continue
		case twice:
			m.addError(key.Line, "%s is in line %d already", key.Value, first)
			continue
		case isNull(list):
			continue
		case manifestKinds[at].single:
			m.readItem(manifestKinds[at], key.Value, list)
		case list.Kind != yaml.SequenceNode:
			m.addError(list.Line, "%s must be a list", key.Value)
			continue
		}
		seen[key.Value] = key.Line
		if manifestKinds[at].single {
			continue
		}
		for n, item := range list.Content {
			m.readItem(manifestKinds[at], fmt.Sprintf("%s[%d]", key.Value, n), item)
		}
	}
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.Tag == "!!null" }

// readItem reads one resource and checks it as far as is possible without the cloud. at is
// its path in the manifest.
func (m *manifest) readItem(k *manifestKind, at string, node *yaml.Node) {
	if node.Kind == yaml.AliasNode {
		node = node.Alias
	}
	if node.Kind != yaml.MappingNode {
		m.addError(node.Line, "%s must be a mapping", at)
		return
	}
	given, err := asJSON(node)
	var lines *yaml.TypeError
	switch {
	case errors.As(err, &lines):
		for _, e := range lines.Errors {
			m.addError(node.Line, "%s: %s", at, e)
		}
		return
	case err != nil:
		m.addError(node.Line, "%s: %v", at, err)
		return
	}
	w := &wantedResource{kind: k, line: node.Line, given: given}
	if w.name, _ = given["name"].(string); k.single {
		w.name = k.key
	} else if w.name == "" {
		m.addError(node.Line, "%s.name is required: it is how a resource is found again", at)
	} else {
		at = fmt.Sprintf("%s (%s)", at, w.name)
	}
	w.position = fmt.Sprintf("%s:%d: %s", m.file, node.Line, at)
	bad := w.takeReferences()
	if k.takeOwnFields != nil {
		maps.Copy(bad, k.takeOwnFields(w))
	}
	for path, why := range bad {
		m.addError(lineOf(node, strings.Split(path, "/")), "%s: %s %s", at, strings.ReplaceAll(path, "/", "."), why)
	}
	err = m.spec.Components.Schemas[k.create].Value.VisitJSON(w.given, openapi3.MultiErrors())
	for _, e := range fieldErrors(err) {
		for _, ref := range k.refs {
			e.why = strings.ReplaceAll(e.why, strconv.Quote(ref.id), strconv.Quote(ref.field))
			if len(e.path) == 1 && e.path[0] == ref.id {
				e.path = []string{ref.field}
			}
		}
		m.addError(lineOf(node, e.path), "%s: %s", at, strings.TrimSpace(strings.Join(e.path, ".")+" "+e.why))
	}
	m.wanted = append(m.wanted, w)
}

// asJSON converts a YAML mapping to JSON values, as the API's requests have them.
func asJSON(node *yaml.Node) (map[string]any, error) {
	var raw map[string]any
	if err := node.Decode(&raw); err != nil {
		return nil, err
	}
	text, err := json.Marshal(raw)
	if err != nil {
		return nil, errors.New("has what JSON cannot hold, such as keys that are not strings")
	}
	var given map[string]any
	return given, json.Unmarshal(text, &given)
}

// fieldError says why one field does not fit the API.
type fieldError struct {
	path []string
	why  string
}

// fieldErrors are the leaves of the validator's tree of errors.
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
		// Of a field that must fit several schemas, report the schema that fails.
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

// lineOf is the line of the field at path, or of the deepest part of path that exists.
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

// checkDuplicateNames adds an error for each name that two resources of a kind have.
func (m *manifest) checkDuplicateNames() {
	first := map[string]*wantedResource{}
	for _, w := range m.wanted {
		if w.name == "" {
			continue
		}
		id := w.kind.key + "/" + w.name
		if other, ok := first[id]; ok {
			m.addError(w.line, "%s: %q is already the name of the one in line %d", w.kind.key, w.name, other.line)
			continue
		}
		first[id] = w
	}
}
