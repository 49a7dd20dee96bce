package client_test

import (
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

func TestConfigWrap(t *testing.T) {
	answers := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { answer(w, api.Project{Name: "p"}) })
	plain, secure := httptest.NewServer(answers), httptest.NewTLSServer(answers)
	t.Cleanup(plain.Close)
	t.Cleanup(secure.Close)
	dir := t.TempDir()
	token, ca := filepath.Join(dir, "token"), filepath.Join(dir, "ca")
	require.NoError(t, os.WriteFile(token, []byte("secret"), 0o600))
	require.NoError(
		t,
		os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw}), 0o600),
	)
	for name, cfg := range map[string]client.Config{
		"the default transport":         {URL: plain.URL},
		"a CA of its own and no proxy":  {URL: secure.URL, CAFile: ca, Direct: true},
		"a transport given by somebody": {URL: plain.URL, Transport: &http.Transport{DisableKeepAlives: true}},
	} {
		t.Run(name, func(t *testing.T) {
			calls := 0
			cfg.TokenFile = token
			cfg.Wrap = func(next http.RoundTripper) http.RoundTripper {
				return roundTripper(func(r *http.Request) (*http.Response, error) {
					calls++
					assert.Equal(t, "Bearer secret", r.Header.Get("Authorization"))
					return next.RoundTrip(r)
				})
			}
			c, err := client.New(cfg)
			require.NoError(t, err)
			p, err := c.Project(t.Context())
			require.NoError(t, err)
			assert.Equal(t, "p", p.Name)
			assert.Equal(t, 1, calls)
		})
	}
}
