package core

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	cloudproviderapi "k8s.io/cloud-provider/api"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

// throttled is a refusal with an ID that each request has of its own.
func throttled(requestID string) error {
	return &client.Error{Status: 429, RetryAfter: time.Minute, Problem: api.Problem{
		Code: api.RateLimited, Detail: "too many calls", RequestID: requestID,
	}}
}

// The exact cause of each error, however deep it is wrapped. TestAnswers has more.
func TestCauseOf(t *testing.T) {
	bare := node("")
	bare.Spec.Taints = nil
	noProviderID := CheckOwnNode(bare)
	ids := newAmbiguousError("n", []api.Instance{{ID: "i-2"}, {ID: "i-1"}})
	withIP := node(byID)
	withIP.Annotations = map[string]string{cloudproviderapi.AnnotationAlphaProvidedIPAddr: "10.0.0.9"}
	nodeIP := checkKubeletNodeIP(withIP, "i-1", nil)
	inTheWay := &reasonError{"RouteConflict", "r-1", errors.New("it conflicts")}
	for name, tc := range map[string]struct {
		err  error
		want Cause
	}{
		"no instance of that name":      {errNoSuchName, Cause{"InstanceNotFound", errNoSuchName.Error()}},
		"two of that name":              {ids, Cause{"InstanceAmbiguous", "i-1 i-2"}},
		"another cloud's provider ID":   {CheckOwnNode(node("aws:///eu/i-1")), Cause{"ForeignProviderID", "aws:///eu/i-1"}},
		"no provider ID":                {noProviderID, Cause{"ProviderIDMissing", noProviderID.Error()}},
		"an IP that the instance lacks": {nodeIP, Cause{"ProvidedNodeIPMismatch", "10.0.0.9[]"}},
		"a route in the way":            {inTheWay, Cause{"RouteConflict", "r-1"}},
		"a route out of sight":          {problem(409, api.RouteConflict), Cause{Reason: "RouteConflict"}},
		"a family without routes":       {errOnlyIPv4, Cause{"RouteNotSupported", errOnlyIPv4.Error()}},
		"quota":                         {problem(409, api.QuotaExceeded), Cause{Reason: "QuotaExceeded"}},
		"no address left":               {problem(409, api.AddressPoolExhausted), Cause{Reason: "AddressPoolExhausted"}},
		"throttled":                     {throttled("1"), Cause{Reason: "CloudThrottled"}},
		"a reason of its own":           {newReasonError("Why", "because"), Cause{"Why", "because"}},
		"a refusal with a reason":       {newReasonError("Why", "no: %w", throttled("1")), Cause{"Why", "too many calls"}},
	} {
		t.Run(name, func(t *testing.T) {
			require.Error(t, tc.err)
			assert.Equal(t, tc.want, CauseOf(fmt.Errorf("a: %w", fmt.Errorf("b: %w", tc.err))))
		})
	}
}

func TestRetryAfter(t *testing.T) {
	var retry *cloudproviderapi.RetryError
	err := honorRetryAfter(fmt.Errorf("creating it: %w", throttled("1")))
	require.ErrorAs(t, err, &retry)
	assert.Equal(t, time.Minute, retry.RetryAfter())
	assert.Equal(t, "CloudThrottled", CauseOf(err).Reason)
	assert.False(t, IsPending(err), "something is wrong")

	pending := pendingError("it is being built")
	assert.True(t, IsPending(pending))
	assert.Same(t, pending, honorRetryAfter(pending))
	down := errors.New("down")
	assert.Same(t, down, honorRetryAfter(down))
}
