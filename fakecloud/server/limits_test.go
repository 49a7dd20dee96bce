// This file answers: who calls too often, is it told so, and nobody else?

package server_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/server"
)

func TestRateLimits(t *testing.T) {
	r := newRig(t)
	srv, err := server.New(server.Config{Cloud: r.cloud, RateLimit: 1, RateBurst: 3})
	require.NoError(t, err)
	h := httptest.NewServer(srv)
	t.Cleanup(func() { srv.Stop(); h.Close() })
	r.url = h.URL
	until429 := func(header ...string) (ok int, resp answer, p api.Problem) {
		for range 300 {
			if resp, p = r.call(t, "GET", "/v1/zones", "", header...); resp.StatusCode == http.StatusTooManyRequests {
				return ok, resp, p
			}
			ok++
		}
		return ok, resp, p
	}
	ok, resp, p := until429()
	assert.GreaterOrEqual(t, ok, 3)
	assert.Equal(t, 429, resp.StatusCode)
	assert.Equal(t, api.RateLimited, p.Code)
	assert.Equal(t, "1", resp.Header.Get("Retry-After"))
	assert.Contains(t, p.Detail, `token "operator"`)
	assert.Equal(t, r.project.ID, *p.Project)
	resp, _ = r.asCCM(t, "GET", "/v1/zones", "")
	assert.Equal(t, 200, resp.StatusCode, "another token's bucket is its own")
	sums, err := newClient(t, h.URL, ccmSecret).SumAudit(t.Context(), client.AuditFilter{Token: "operator"}, api.AuditByOperation)
	require.NoError(t, err)
	require.Len(t, sums, 1)
	assert.EqualValues(t, ok+1, sums[0].Calls)
	assert.EqualValues(t, 1, sums[0].Throttled)

	ok, resp, p = until429("Authorization", "Bearer nonsense")
	assert.GreaterOrEqual(t, ok, 100)
	assert.Equal(t, 429, resp.StatusCode)
	assert.NotEmpty(t, resp.Header.Get("Retry-After"))
	assert.Nil(t, p.Project)
	resp, _ = r.asCCM(t, "GET", "/v1/zones", "")
	assert.Equal(t, 200, resp.StatusCode, "who is known is not limited with them")
	for range 50 {
		resp, _ = r.call(t, "GET", "/healthz", "")
		require.Equal(t, 200, resp.StatusCode, "what needs no token is not limited")
	}
}
