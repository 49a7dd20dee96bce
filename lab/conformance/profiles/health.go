package profiles

// What a Deployment and Prometheus ask of a CCM.

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"slices"

	"github.com/ccmlab/ccmlab/lab/conformance"
)

var healthTests = []conformance.Test{{
	ID: "ha-serves-health", Capability: conformance.CapabilityHealth,
	Source:   "k8s.io/cloud-provider app (the secure port serves /healthz, to anybody, and /metrics)",
	Requires: "Where the CCM is told to serve, /healthz says without credentials that it is well, /metrics is there, be it for those with credentials alone, and neither answers once it has ended.",
	Needs:    []conformance.Feature{conformance.FeatureHealthAddress},
	Alone:    true, // The CCM is stopped.
	Run: func(t *conformance.T) {
		address := t.HealthAddress()
		t.Await("/healthz to answer", checkServes(address, "/healthz", http.StatusOK))
		t.Await("/metrics to answer", checkServes(
			address, "/metrics", http.StatusOK, http.StatusUnauthorized, http.StatusForbidden,
		))
		restart := stopCCM(t)
		if err := checkServes(address, "/healthz", http.StatusOK)(t.Context()); err == nil {
			t.Errorf("/healthz on %s answers though the CCM has ended: somebody else does", address)
		}
		restart()
	},
}}

// checkServes returns an error unless the path is answered with one of these statuses, over TLS.
func checkServes(address, path string, statuses ...int) func(context.Context) error {
	// A CCM that is given no certificate signs its own.
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true} //nolint:gosec // See above.
	return func(ctx context.Context) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+address+path, http.NoBody)
		if err != nil {
			return err
		}
		response, err := transport.RoundTrip(request)
		if err != nil {
			return err
		}
		defer func() { _ = response.Body.Close() }()
		if slices.Contains(statuses, response.StatusCode) {
			return nil
		}
		said, _ := io.ReadAll(io.LimitReader(response.Body, 200))
		return fmt.Errorf("%s: %s: %s", path, response.Status, said)
	}
}
