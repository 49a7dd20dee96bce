package server_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
	"github.com/ccmlab/ccmlab/fakecloud/server"
)

func TestRateLimits(t *testing.T) {
	r := newRig(t)
	r.url = serve(t, r.newAPI(t, server.Config{RateLimit: 1, RateBurst: 3}))
	until429 := func(header ...string) (ok int, resp bufferedAnswer, p api.Problem) {
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

// A token that calls on when it is refused does not fill the audit.
func TestAuditListsFewRefusedCalls(t *testing.T) {
	r := newRig(t)
	r.url = serve(t, r.newAPI(t, server.Config{RateLimit: 1, RateBurst: 3}))
	start := time.Now()
	const calls = 200
	refused := 0
	for range calls {
		if resp, _ := r.call(t, "GET", "/v1/zones", ""); resp.StatusCode == http.StatusTooManyRequests {
			refused++
		}
	}
	atMost := 1 + int(time.Since(start)/time.Second)
	other := newClient(t, r.url, ccmSecret)
	sums := must.Do(other.SumAudit(t.Context(), client.AuditFilter{Token: "operator"}, api.AuditByOperation))(t)
	require.Len(t, sums, 1)
	assert.EqualValues(t, calls, sums[0].Calls)
	assert.EqualValues(t, refused, sums[0].Throttled)
	listed := 0
	for _, e := range must.Do(other.ListAudit(t.Context(), client.AuditFilter{Token: "operator"}, 0))(t) {
		if e.Status == http.StatusTooManyRequests {
			listed++
		}
	}
	assert.Positive(t, listed)
	assert.LessOrEqual(t, listed, atMost)
}

// callFrom calls a handler from a remote address.
func callFrom(t *testing.T, h http.Handler, address, method, path, bearer string) (status int, p api.Problem) {
	t.Helper()
	req := httptest.NewRequestWithContext(t.Context(), method, path, nil)
	req.RemoteAddr = address
	if bearer != "" {
		req.Header.Set("Authorization", "Bearer "+bearer)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, req)
	if w.Header().Get("Content-Type") == "application/problem+json" {
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &p))
	}
	return w.Code, p
}

// What is no operation, and what needs no token, is limited as well.
func TestNothingButHealthIsUnlimited(t *testing.T) {
	r := newRig(t)
	until429 := func(address, method, path, bearer string) bool {
		for range 300 {
			if status, _ := callFrom(t, r.srv, address, method, path, bearer); status == http.StatusTooManyRequests {
				return true
			}
		}
		return false
	}
	_, p := callFrom(t, r.srv, "192.0.2.1:1", "PUT", "/v1/zones", secret)
	assert.Equal(t, api.MethodNotAllowed, p.Code)
	assert.Nil(t, p.Project, "it would tell that the token is valid")
	require.False(t, until429("192.0.2.1:1", "GET", "/metrics", ""), "no limit is set")

	r = r.throttled(t)
	for i, path := range []string{"/nonsense", "/metrics", "/openapi.yaml", "/docs/", "/v1/zones"} {
		assert.True(t, until429(fmt.Sprintf("192.0.2.%d:1", i+2), "GET", path, ""), path)
		assert.True(t, until429("192.0.2.1:1", "GET", path, ccmSecret), "%s of a token", path)
	}
	assert.True(t, until429("192.0.2.20:1", "PUT", "/v1/zones", ""))
	assert.True(t, until429("192.0.2.21:1", "GET", "/nonsense", "guess"))
	for _, bearer := range []string{"", "guess"} {
		assert.False(t, until429("192.0.2.21:1", "GET", "/healthz", bearer))
		assert.False(t, until429("192.0.2.21:1", "GET", "/readyz", bearer))
	}
	require.True(t, until429("192.0.2.21:2", "GET", "/nonsense", "guess"))
	status, p := callFrom(t, r.srv, "192.0.2.21:3", "GET", "/v1/zones", otherSecret)
	require.NotEqual(t, http.StatusUnauthorized, status, p.Detail)
	status, p = callFrom(t, r.srv, "192.0.2.30:3", "GET", "/v1/zones", otherSecret)
	require.Contains(t, []int{200, 429}, status)
	if status == 429 {
		assert.Contains(t, p.Detail, `token "stranger"`)
	}
}

// After a restart no token is remembered, and somebody at the same address goes on with a wrong one.
func TestAFloodOfWrongTokensDoesNotKeepOutAValidOne(t *testing.T) {
	r := newRig(t)
	srv := r.newAPI(t, server.Config{RateLimit: 1000, RateBurst: 1000})
	status := func(bearer string) int {
		status, _ := callFrom(t, srv, "192.0.2.1:1", "GET", "/v1/zones", bearer)
		return status
	}
	made := must.Do(r.CreateToken(t.Context(), r.project.ID, api.TokenCreate{Name: "late", Role: api.RoleEditor}))(t)
	require.Eventually(t, func() bool {
		for range 300 {
			status("wrong")
		}
		return status("wrong") == http.StatusTooManyRequests && status(made.Secret) == http.StatusOK
	}, patience, time.Millisecond)
	assert.Equal(t, http.StatusOK, status(made.Secret), "now it is remembered")
}

func TestResourcesAreNotCountedForEachWhoLooks(t *testing.T) {
	r := newRig(t)
	r.srv.SetCountsAge(time.Hour)
	const available = "fakecloud_resources{resource=address,state=available}"
	r.reserve(t, "one")
	assert.EqualValues(t, 1, samples(t, r.url)[available])
	r.reserve(t, "two")
	assert.EqualValues(t, 1, samples(t, r.url)[available])
	r.srv.SetCountsAge(0)
	assert.EqualValues(t, 2, samples(t, r.url)[available])
}
