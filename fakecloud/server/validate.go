package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/gorilla/mux"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
)

// validatorOptions leave authentication to the server, which has done it by then.
var validatorOptions = &openapi3filter.Options{
	MultiError:         true,
	AuthenticationFunc: openapi3filter.NoopAuthenticationFunc,
	// What is left out reaches the cloud as left out: it knows the defaults.
	SkipSettingDefaults: true,
}

// validateRequest checks a request against the spec, and refuses parameters, headers and
// fields that the spec does not have.
func (s *Server) validateRequest(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		op := recordOf(r).op
		if op == noOperation {
			next.ServeHTTP(w, r)
			return
		}
		raw := r.URL.RawQuery
		if isProbe(r) { // It looks at no query, as those of Kubernetes' components.
			raw = ""
		}
		query, fields := strictQuery(op, raw)
		if fields = append(fields, strictHeaders(op, r.Header)...); len(fields) > 0 {
			s.answerInvalidFields(w, r, fields, 0)
			return
		}
		if op.json {
			if err := strictBody(r); err != nil {
				s.answerInvalid(w, r, err)
				return
			}
		}
		err := openapi3filter.ValidateRequest(r.Context(), &openapi3filter.RequestValidationInput{
			Request: r, PathParams: mux.Vars(r), QueryParams: query, Route: op.route, Options: validatorOptions,
		})
		if err != nil {
			s.answerInvalid(w, r, err)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// strictQuery finds query parameters that the operation does not take, or not several
// times.
func strictQuery(op *operation, raw string) (url.Values, []cloud.Field) {
	query, err := url.ParseQuery(raw)
	if err != nil {
		return nil, []cloud.Field{{Path: "query", Message: "cannot be read: " + err.Error()}}
	}
	var fields []cloud.Field
	for name, values := range query {
		several, known := op.query[name]
		switch {
		case !known:
			fields = append(
				fields, cloud.Field{Path: name, Message: "is not a parameter of this operation" + choicesHint(op.query)},
			)
		case len(values) > 1 && !several:
			fields = append(fields, cloud.Field{Path: name, Message: "is given more than once"})
		}
	}
	return query, fields
}

// strictHeaders finds headers that a change depends on and that the operation would
// ignore.
func strictHeaders(op *operation, header http.Header) (fields []cloud.Field) {
	for _, name := range []string{"If-Match", "Idempotency-Key"} {
		switch values := header.Values(name); {
		case len(values) == 0:
		case !op.headers[name]:
			fields = append(
				fields, cloud.Field{Path: name, Message: "is not a header of this operation: leave it out"},
			)
		case len(values) > 1:
			fields = append(fields, cloud.Field{Path: name, Message: "is given more than once"})
		case values[0] == "":
			fields = append(fields, cloud.Field{Path: name, Message: "is empty"})
		}
	}
	return fields
}

// strictBody refuses what JSON decoders accept: more than one value, and keys that an
// object has twice. Whether a body may be empty is up to the spec.
func strictBody(r *http.Request) error {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	if len(bytes.TrimSpace(body)) == 0 {
		return nil
	}
	return strictJSON(body)
}

// jsonLevel is an object or array that is being read.
type jsonLevel struct {
	name string
	keys map[string]bool // nil for an array
	key  string          // the one whose value comes next, or ""
}

func strictJSON(body []byte) error {
	d := json.NewDecoder(bytes.NewReader(body))
	var in []jsonLevel
	for started := false; !started || len(in) > 0; started = true {
		token, err := d.Token()
		if err != nil {
			return nil //nolint:nilerr // The validator has a better message.
		}
		if len(in) > maxDepth {
			return errDeep
		}
		switch at := len(in) - 1; {
		case token == json.Delim('}') || token == json.Delim(']'):
			in = in[:at]
			continue
		case at >= 0 && in[at].keys != nil && in[at].key == "":
			key := token.(string)
			if in[at].keys[key] {
				return &twiceError{strings.TrimPrefix(in[at].name+"."+key, ".")}
			}
			in[at].keys[key] = true
			in[at].key = "." + key
			continue
		}
		name := ""
		if at := len(in) - 1; at >= 0 {
			name, in[at].key = strings.TrimPrefix(in[at].name+in[at].key, "."), ""
		}
		switch token {
		case json.Delim('{'):
			in = append(in, jsonLevel{name: name, keys: map[string]bool{}})
		case json.Delim('['):
			in = append(in, jsonLevel{name: name})
		}
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errTrailing
	}
	return nil
}

// maxDepth bounds how deep a body nests: far deeper than any of the API's bodies.
const maxDepth = 64

var (
	errTrailing = errors.New("has more after its JSON value")
	errDeep     = fmt.Errorf("nests deeper than %d levels", maxDepth)
)

// twiceError means that an object has a key twice.
type twiceError struct{ path string }

func (e *twiceError) Error() string { return e.path + " is given twice" }

// answerInvalid answers a request that does not fit the spec.
func (s *Server) answerInvalid(w http.ResponseWriter, r *http.Request, err error) {
	var tooLarge *http.MaxBytesError
	var twice *twiceError
	switch {
	case errors.As(err, &tooLarge):
		s.answerProblem(
			w, r, http.StatusRequestEntityTooLarge, api.TooLarge,
			fmt.Sprintf("the request's body is larger than %d bytes", tooLarge.Limit), nil,
		)
	case errors.As(err, &twice):
		s.answerInvalidFields(w, r, []cloud.Field{{Path: twice.path, Message: "is given twice"}}, 0)
	case errors.Is(err, errTrailing), errors.Is(err, errDeep):
		s.answerInvalidFields(w, r, []cloud.Field{{Path: "body", Message: err.Error()}}, 0)
	default:
		var found offences
		found.addError(err, "")
		s.answerInvalidFields(w, r, found.fields, found.more)
	}
}

// maxOffences is how many of the fields that offend a refusal names; the others it counts.
const maxOffences = 20

// answerInvalidFields names the fields, and says that there are more than these.
func (s *Server) answerInvalidFields(w http.ResponseWriter, r *http.Request, fields []cloud.Field, more int) {
	slices.SortFunc(fields, func(a, b cloud.Field) int { return strings.Compare(a.Path+a.Message, b.Path+b.Message) })
	fields = slices.Compact(fields)
	if len(fields) > maxOffences {
		fields, more = fields[:maxOffences], more+len(fields)-maxOffences
	}
	var messages []string
	for _, f := range fields {
		messages = append(messages, strings.TrimSpace(shorten(f.Path, maxEcho)+" "+shorten(f.Message, maxMessage)))
	}
	if more > 0 {
		messages = append(messages, fmt.Sprintf("and %d more", more))
	}
	s.answerProblem(
		w, r, http.StatusBadRequest, api.InvalidRequest,
		"the request does not fit the API: "+strings.Join(messages, "; "), fields,
	)
}

// offences are what the validator found wrong.
type offences struct {
	fields []cloud.Field
	more   int // beyond maxOffences, which nobody spends time on
}

// addError adds the fields that an error of the validator is about. at is the field that it is within.
func (o *offences) addError(err error, at string) {
	if all, ok := err.(openapi3.MultiError); ok { //nolint:errorlint // Walks the tree level by level.
		for _, one := range all {
			o.addError(one, at)
		}
		return
	}
	if len(o.fields) == maxOffences {
		o.more++
		return
	}
	add := func(field cloud.Field) { o.fields = append(o.fields, field) }
	switch e := err.(type) { //nolint:errorlint // Each level says where.
	case *openapi3filter.RequestError:
		if e.Parameter != nil {
			at = e.Parameter.Name
		}
		if at == "" {
			at = "body"
		}
		switch {
		case errors.Is(e.Err, openapi3filter.ErrInvalidRequired):
			add(cloud.Field{Path: at, Message: "is required"})
		case e.Err != nil:
			o.addError(e.Err, at)
		case strings.HasPrefix(e.Reason, "header Content-Type"):
			add(cloud.Field{Path: at, Message: "must be JSON: send the header Content-Type: application/json"})
		default:
			add(cloud.Field{Path: at, Message: e.Reason})
		}
	case *openapi3.SchemaError:
		add(schemaField(e, at))
	case *openapi3filter.ParseError:
		add(cloud.Field{Path: at, Message: "cannot be read: " + firstLine(e.Error())})
	default:
		add(cloud.Field{Path: at, Message: firstLine(err.Error())})
	}
}

func schemaField(e *openapi3.SchemaError, at string) cloud.Field {
	path := e.JSONPointer()
	var within *openapi3.SchemaError
	if e.SchemaField == "allOf" && errors.As(e.Origin, &within) {
		e = within // One part of allOf says what is wrong. The path is that of the whole.
	}
	// An unknown property is reported for its parent. The property itself offends.
	var unknown string
	_, err := fmt.Sscanf(e.Reason, "property %q is unsupported", &unknown)
	if err == nil { // Else it may be set all the same: "property %q is missing" begins alike.
		path = append(slices.Clone(path), unknown)
	}
	message := schemaMessage(e, err == nil)
	if len(path) == 0 {
		return cloud.Field{Path: at, Message: message}
	}
	joined := strings.Join(path, ".")
	if at != "" && at != "body" {
		joined = at + "." + joined
	}
	return cloud.Field{Path: joined, Message: message}
}

// schemaMessage says what a field should be.
func schemaMessage(e *openapi3.SchemaError, unknown bool) string {
	switch {
	case unknown:
		return "is not known" + choicesHint(e.Schema.Properties)
	case strings.HasSuffix(e.Reason, "is missing"):
		return "is required"
	case e.SchemaField == "enum":
		return "must be " + strings.Join(mapSlice(e.Schema.Enum, func(v any) string { return fmt.Sprint(v) }), " or ")
	case e.SchemaField == "pattern" && e.Schema.Example != nil:
		return fmt.Sprintf("must be one such as %v (%s)", e.Schema.Example, e.Schema.Pattern)
	case e.SchemaField == "pattern":
		return "must match " + e.Schema.Pattern
	}
	return e.Reason
}

// choicesHint lists what could be given instead, if there is anything.
func choicesHint[V any](known map[string]V) string {
	if len(known) == 0 {
		return ""
	}
	return ": choose among " + strings.Join(slices.Sorted(maps.Keys(known)), ", ")
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}

// answerBadParameter answers for parameters that the generated router cannot parse.
func (s *Server) answerBadParameter(w http.ResponseWriter, r *http.Request, err error) {
	field := "parameter"
	var parameter *parameterError
	if errors.As(err, &parameter) {
		field = parameter.Name
	}
	s.answerProblem(
		w, r, http.StatusBadRequest, api.InvalidRequest, "the request does not fit the API: "+firstLine(err.Error()),
		[]cloud.Field{{Path: field, Message: firstLine(err.Error())}},
	)
}
