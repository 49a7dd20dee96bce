package onfakecloud

// Which calls the CCM makes, by the cloud's audit.

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/lab/conformance"
	"github.com/ccmlab/ccmlab/lab/conformance/driver/protocol"
)

// ListCalls implements protocol.Operations.
func (c *Cloud) ListCalls(ctx context.Context, since time.Time) (protocol.CallList, error) {
	newest, err := c.API.ListAuditUntil(ctx, client.AuditFilter{Token: c.Token}, func(a api.AuditEntry) bool {
		return a.Time.Before(since)
	})
	if err != nil {
		return protocol.CallList{}, err
	}
	var calls []conformance.Call
	for _, a := range newest {
		if !a.Time.Before(since) {
			calls = append(calls, callOf(a))
		}
	}
	slices.SortStableFunc(calls, func(a, b conformance.Call) int { return a.Answered.Compare(b.Answered) })
	return protocol.CallList{Calls: calls}, nil
}

func callOf(a api.AuditEntry) conformance.Call {
	call := conformance.Call{
		ID: a.RequestID, Answered: a.Time, Began: a.Time, Operation: a.Operation, Answer: fmt.Sprint(a.Status),
		Failed: a.Status == 0 || a.Status >= http.StatusBadRequest,
	}
	// What a stream takes comes after its answer has begun.
	if !strings.HasPrefix(a.Operation, "stream") {
		call.Began = a.Time.Add(-time.Duration(a.DurationMilliseconds * float64(time.Millisecond)))
	}
	if a.Resource != "" {
		call.Resource = a.Resource
	}
	if a.Status == 0 {
		call.Answer = "broken off"
	}
	if a.Code != "" {
		call.Answer += " " + a.Code
	}
	if a.Fault != "" {
		call.Answer += ", by fault " + a.Fault
	}
	return call
}
