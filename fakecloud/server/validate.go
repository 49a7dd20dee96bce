// This file answers: does a request keep to the spec?

package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	middleware "github.com/oapi-codegen/nethttp-middleware"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
)

// validator checks each request against the spec, who may call included.
func (s *Server) validator(spec *openapi3.T) func(http.Handler) http.Handler {
	return middleware.OapiRequestValidatorWithOptions(spec, &middleware.Options{
		DoNotValidateServers:  true,
		DiscardValidatedValue: true,
		ErrorHandlerWithOpts:  s.invalid,
		Options: openapi3filter.Options{
			MultiError: true,
			// What is left out reaches the cloud as left out: it knows the defaults.
			SkipSettingDefaults: true,
			AuthenticationFunc: func(_ context.Context, in *openapi3filter.AuthenticationInput) error {
				if c := callOf(in.RequestValidationInput.Request); c.who == nil {
					return c.whyNot
				}
				return nil
			},
		},
	})
}

func (s *Server) invalid(_ context.Context, err error, w http.ResponseWriter, r *http.Request, _ middleware.ErrorHandlerOpts) {
	var unauthenticated *openapi3filter.SecurityRequirementsError
	var tooLarge *http.MaxBytesError
	switch {
	// The validator also says so of a body it cannot read: only a caller whom
	// we could not tell is one.
	case callOf(r).who == nil && errors.As(err, &unauthenticated):
		s.fail(w, r, callOf(r).whyNot)
		return
	case errors.As(err, &tooLarge):
		s.problem(w, r, http.StatusRequestEntityTooLarge, api.TooLarge, fmt.Sprintf("the request's body is larger than %d bytes", tooLarge.Limit), nil)
		return
	}
	fields := offending(err, "")
	slices.SortFunc(fields, func(a, b cloud.Field) int { return strings.Compare(a.Path+a.Message, b.Path+b.Message) })
	fields = slices.Compact(fields)
	var said []string
	for _, f := range fields {
		said = append(said, strings.TrimSpace(f.Path+" "+f.Message))
	}
	s.problem(w, r, http.StatusBadRequest, api.InvalidRequest, "the request does not fit the API: "+strings.Join(said, "; "), fields)
}

// offending finds the fields that the validator's error is about.
func offending(err error, at string) []cloud.Field {
	switch e := err.(type) { //nolint:errorlint // Walks the tree level by level: each level says where.
	case openapi3.MultiError:
		var all []cloud.Field
		for _, one := range e {
			all = append(all, offending(one, at)...)
		}
		return all
	case *openapi3filter.RequestError:
		if e.Parameter != nil {
			at = e.Parameter.Name
		}
		if at == "" {
			at = "body"
		}
		if e.Err != nil {
			return offending(e.Err, at)
		}
		return []cloud.Field{{Path: at, Message: e.Reason}}
	case *openapi3.SchemaError:
		return []cloud.Field{schemaField(e, at)}
	case *openapi3filter.ParseError:
		return []cloud.Field{{Path: at, Message: "cannot be read: " + firstLine(e.Error())}}
	}
	return []cloud.Field{{Path: at, Message: firstLine(err.Error())}}
}

func schemaField(e *openapi3.SchemaError, at string) cloud.Field {
	path := e.JSONPointer()
	message := e.Reason
	// An unknown property is told of its parent; it is itself what offends.
	var unknown string
	if n, err := fmt.Sscanf(e.Reason, "property %q is unsupported", &unknown); n == 1 && err == nil {
		path = append(slices.Clone(path), unknown)
		message = "is not known"
	}
	if strings.HasSuffix(e.Reason, "is missing") {
		message = "is required"
	}
	if len(path) == 0 {
		return cloud.Field{Path: at, Message: message}
	}
	joined := strings.Join(path, ".")
	if at != "" && at != "body" {
		joined = at + "." + joined
	}
	return cloud.Field{Path: joined, Message: message}
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}

// badParameter answers for what the generated router cannot read.
func (s *Server) badParameter(w http.ResponseWriter, r *http.Request, err error) {
	field := "parameter"
	var format *api.InvalidParamFormatError
	var many *api.TooManyValuesForParamError
	switch {
	case errors.As(err, &format):
		field = format.ParamName
	case errors.As(err, &many):
		field = many.ParamName
	}
	s.problem(w, r, http.StatusBadRequest, api.InvalidRequest, "the request does not fit the API: "+firstLine(err.Error()), []cloud.Field{{Path: field, Message: firstLine(err.Error())}})
}
