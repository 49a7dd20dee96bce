// This file answers: does a rule make sense?

package faults

import (
	"fmt"
	"strings"

	"github.com/ccmlab/ccmlab/fakecloud/cloud"
)

func (r *Rules) check(s Spec) error {
	fields := append(r.checkMatch(s), checkEffect(s.Effect)...)
	if s.Times < 0 {
		fields = append(fields, cloud.Field{Path: "times", Message: "cannot be negative"})
	}
	if len(fields) == 0 {
		return nil
	}
	var said []string
	for _, f := range fields {
		said = append(said, f.Path+" "+f.Message)
	}
	return &cloud.Error{Code: cloud.InvalidRequest, Message: "this fault makes no sense: " + strings.Join(said, "; "), Fields: fields}
}

func (r *Rules) checkMatch(s Spec) (fields []cloud.Field) {
	for i, op := range s.Match.Operations {
		path := fmt.Sprintf("match.operations.%d", i)
		lists, known := r.lists[op]
		switch {
		case !known:
			fields = append(fields, cloud.Field{Path: path, Message: fmt.Sprintf("is %q, which is no operation that faults can touch; GET /openapi.yaml has their operationIds", op)})
		case s.Effect.EmptyList && !lists:
			fields = append(fields, cloud.Field{Path: path, Message: fmt.Sprintf("is %q, which does not list: effect.emptyList is for those that do", op)})
		}
	}
	if s.Effect.EmptyList && s.Match.Resource != "" {
		fields = append(fields, cloud.Field{Path: "match.resource", Message: "never matches a list, which effect.emptyList is for"})
	}
	return fields
}

func checkEffect(e Effect) (fields []cloud.Field) {
	bad := func(path, message string) {
		fields = append(fields, cloud.Field{Path: "effect" + path, Message: message})
	}
	var given []string
	for _, kind := range []struct {
		name string
		set  bool
	}{
		{"status", e.Status != 0}, {"hang", e.Hang}, {"drop", e.Drop}, {"body", e.Body != nil}, {"emptyList", e.EmptyList},
	} {
		if kind.set {
			given = append(given, kind.name)
		}
	}
	switch {
	case len(given) > 1:
		bad("."+given[1], "cannot go with effect."+given[0]+": a call can end in one way only")
	case len(given) == 0 && e.Delay == 0:
		bad("", "does nothing: give a delay, or one of status, hang, drop, body and emptyList")
	}
	if e.Delay < 0 {
		bad(".delayMilliseconds", "cannot be negative")
	}
	if e.Status != 0 && (e.Status < 400 || e.Status > 599) {
		bad(".status", "must be from 400 to 599")
	}
	if e.RetryAfter != 0 && e.Status == 0 {
		bad(".retryAfterSeconds", "needs effect.status")
	}
	if e.Project != "" && e.Status != 404 {
		bad(".project", "needs effect.status 404")
	}
	if e.ContentType != "" && e.Body == nil {
		bad(".contentType", "needs effect.body")
	}
	return fields
}
