package calls_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/ccm/calls"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/cloudtest"
)

// connect returns a client of the CCM's.
func connect(t *testing.T, cloud *cloudtest.Cloud) *client.Client {
	t.Helper()
	c, err := client.New(client.Config{
		URL: cloud.URL, TokenFile: cloud.TokenFile, Direct: true, Wrap: calls.Wrap(calls.Options{}),
	})
	require.NoError(t, err)
	return c
}

// A fault throttles one call for a minute: others are not sent meanwhile, and
// the cloud sees none of them.
func TestThrottleFault(t *testing.T) {
	cloud := cloudtest.Start(t)
	ccm := connect(t, cloud)
	fault := cloud.Fail(api.FaultCreate{
		Match:  api.FaultMatch{Operations: []string{"getInstance"}},
		Effect: api.FaultEffect{Status: 429, RetryAfterSeconds: 60},
	})
	_, err := ccm.GetInstance(t.Context(), "i-1")
	var refused *client.Error
	require.ErrorAs(t, err, &refused)
	assert.Equal(t, time.Minute, refused.RetryAfter)

	for range 10 {
		_, err = ccm.GetInstance(t.Context(), "i-1")
		require.True(t, client.HasCode(err, api.RateLimited), "%v", err)
		_, err = ccm.ListZones(t.Context())
		require.ErrorContains(t, err, "the cloud's Retry-After lasts")
	}
	fault, err = cloud.GetFault(t.Context(), fault.ID)
	require.NoError(t, err)
	assert.EqualValues(t, 1, fault.Hits)
}

// Over the cloud's own rate limit, reads succeed after the second that it asks for.
func TestRateLimit(t *testing.T) {
	ccm := connect(t, cloudtest.Start(t, cloudtest.RateLimit(1, 2)))
	for range 3 {
		_, err := ccm.ListZones(t.Context())
		require.NoError(t, err)
	}
}
