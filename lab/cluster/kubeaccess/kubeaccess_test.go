package kubeaccess

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
)

// server gives tokens that live for a while from their issue on, and hears who
// asks for its version.
type server struct {
	issued   atomic.Int32
	issuedAt time.Time
	life     time.Duration
	caller   string
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	if r.URL.Path != "/api/v1/namespaces/kube-system/serviceaccounts/eye/token" {
		s.caller = r.Header.Get("Authorization")
		_, _ = fmt.Fprint(w, "{}")
		return
	}
	var request authenticationv1.TokenRequest
	_ = json.NewDecoder(r.Body).Decode(&request)
	request.APIVersion, request.Kind = "authentication.k8s.io/v1", "TokenRequest"
	request.Status.Token = signedToken(s.issuedAt, s.life, s.issued.Add(1))
	_ = json.NewEncoder(w).Encode(request)
}

func signedToken(issued time.Time, life time.Duration, number int32) string {
	claims := fmt.Sprintf(`{"iat":%d,"exp":%d,"jti":"%d"}`, issued.Unix(), issued.Add(life).Unix(), number)
	return "e30." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".c2ln"
}

func startServer(t *testing.T, issuedAt time.Time) (s *server, admin, file string) {
	t.Helper()
	s = &server{issuedAt: issuedAt, life: time.Hour}
	api := httptest.NewTLSServer(s) // Without TLS client-go sends no token.
	t.Cleanup(api.Close)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: api.Certificate().Raw})
	dir := t.TempDir()
	admin, file = filepath.Join(dir, "admin.yaml"), filepath.Join(dir, "eye.yaml")
	require.NoError(t, os.WriteFile(admin, fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: %q, certificate-authority-data: %s}}]
contexts: [{name: c, context: {cluster: c, user: admin}}]
users: [{name: admin, user: {token: secret}}]
current-context: c
`, api.URL, base64.StdEncoding.EncodeToString(ca)), 0o600))
	return s, admin, file
}

func TestTokenIsKeptWhileYoung(t *testing.T) {
	s, admin, file := startServer(t, time.Now())
	for range 2 {
		require.NoError(t, ServiceAccount(t.Context(), admin, "eye", file))
	}
	assert.EqualValues(t, 1, s.issued.Load())
	for _, name := range []string{file, tokenFile(file)} {
		info, err := os.Stat(name)
		require.NoError(t, err)
		assert.Equal(t, os.FileMode(0o600), info.Mode(), name)
	}
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.NotContains(t, string(text), "secret")

	eye, err := Client(file, "eye")
	require.NoError(t, err)
	_, err = eye.Discovery().ServerVersion()
	require.NoError(t, err)
	have, err := os.ReadFile(tokenFile(file))
	require.NoError(t, err)
	assert.Equal(t, "Bearer "+string(have), s.caller)
}

func TestTokenIsRenewedAtHalfItsLife(t *testing.T) {
	s, admin, file := startServer(t, time.Now().Add(-31*time.Minute))
	require.NoError(t, ServiceAccount(t.Context(), admin, "eye", file))
	require.NoError(t, ServiceAccount(t.Context(), admin, "eye", file))
	assert.EqualValues(t, 2, s.issued.Load())

	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- KeepToken(ctx, admin, "eye", file, slog.New(slog.DiscardHandler)) }()
	assert.Eventually(t, func() bool {
		have, err := os.ReadFile(tokenFile(file))
		return err == nil && string(have) == signedToken(s.issuedAt, s.life, 3)
	}, 10*time.Second, 10*time.Millisecond)
	cancel()
	assert.NoError(t, <-ended)
}

func TestWhatIsNoTokenIsOld(t *testing.T) {
	for _, text := range []string{"", "a.b", "a.?.c", "a.bm90IEpTT04.c", "a.e30.c"} {
		assert.True(t, halfLife(text).Before(time.Now()), text)
	}
}
