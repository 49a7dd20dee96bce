package client

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// Error is an answer of the cloud that is not a success.
type Error struct {
	// Status is the HTTP status.
	Status int
	// Problem is the cloud's answer. Its Code is empty if the answer was no
	// problem+json; then a proxy on the way may have given it.
	Problem api.Problem
	// RetryAfter is how long the cloud asks to wait; 0 if it does not.
	RetryAfter time.Duration
}

func (e *Error) Error() string {
	p := e.Problem
	msg := p.Detail
	if p.Code != "" {
		msg = fmt.Sprintf("%s (%s, request %s)", p.Detail, p.Code, p.RequestID)
	}
	if p.Fields != nil {
		for _, f := range *p.Fields {
			switch said := strings.Contains(p.Detail, f.Message); {
			case !said:
				msg += fmt.Sprintf("; %s: %s", f.Field, f.Message)
			case !strings.Contains(p.Detail, f.Field):
				msg += "; in " + f.Field
			}
		}
	}
	return msg
}

// HasCode tells whether err is an answer of the cloud with this problem code.
func HasCode(err error, code api.ProblemCode) bool {
	var e *Error
	return errors.As(err, &e) && e.Problem.Code == code
}

// IsNotFound tells whether err is the cloud's own answer that the resource does not exist.
// A 404 of a proxy on the way is none. Nor is a 404 for a path that the API does not have:
// the cloud's answer about a resource names the project in which it was not found.
func IsNotFound(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Status == http.StatusNotFound && e.Problem.Code == api.NotFound &&
		e.Problem.Project != nil
}

// ProjectOf is the ID of the project that the answer behind err names, or "".
func ProjectOf(err error) string {
	var e *Error
	if errors.As(err, &e) && e.Problem.Project != nil {
		return *e.Problem.Project
	}
	return ""
}
