package server_test

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/server"
)

// A site whose name is made to lead here reads nothing, and neither does its page with a token that it guesses.
func TestForeignHostsAreRefused(t *testing.T) {
	r := newRig(t)
	borrowed := httptest.NewTLSServer(nil) // For its certificate, which is for example.com.
	borrowed.Close()
	log := newFaultLog()
	srv := checkingAnswers(t, r.newAPI(t, server.Config{
		Hosts: []string{"cloud.test"}, Certificate: &borrowed.TLS.Certificates[0], Logger: slog.New(log),
	}), log)
	get := func(host, path, bearer string) (status int, p api.Problem) {
		req := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil)
		req.Host = host
		if bearer != "" {
			req.Header.Set("Authorization", "Bearer "+bearer)
		}
		w := httptest.NewRecorder()
		srv.ServeHTTP(w, req)
		if w.Code >= http.StatusBadRequest {
			require.NoError(t, json.Unmarshal(w.Body.Bytes(), &p))
		}
		return w.Code, p
	}
	for _, path := range []string{"/openapi.yaml", "/docs/", "/docs/init.js", "/metrics", "/healthz", "/readyz"} {
		for _, bearer := range []string{"", "guess"} {
			status, p := get("rebound.example:8470", path, bearer)
			assert.Equal(t, http.StatusMisdirectedRequest, status, path)
			assert.Equal(t, api.Misdirected, p.Code, path)
			assert.Contains(t, p.Detail, "--host")
		}
		for _, host := range []string{
			"127.0.0.1:8470", "[::1]:8470", "192.0.2.1", "localhost:8470", "LOCALHOST", "Cloud.test:80", "example.com", "",
		} {
			status, p := get(host, path, "")
			assert.Equal(t, http.StatusOK, status, "%s of %q: %s", path, host, p.Detail)
		}
		status, p := get("rebound.example", path, secret)
		probe := path == "/healthz" || path == "/readyz" // Which look at no token.
		assert.Equal(t, probe, status == http.StatusMisdirectedRequest, "%s: %s", path, p.Detail)
	}
	status, _ := get("rebound.example", "/v1/zones", secret)
	assert.Equal(t, http.StatusOK, status)
	status, _ = get("rebound.example", "/v1/zones", "")
	assert.Equal(t, http.StatusUnauthorized, status)
}
