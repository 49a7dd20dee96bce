package server_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

func TestIfMatchIsNeverIgnored(t *testing.T) {
	r := newRig(t)
	made := r.reserve(t, "one")
	at := "/v1/addresses/" + made.ID
	for _, match := range []string{
		`"9223372036854775808"`, `"9999999999999999999"`, `"1000000000000000000"`, `""`, ``, `1`, `W/"1"`, `"1", "2"`,
	} {
		answer, p := r.call(t, "PATCH", at, `{"name":"two"}`, "If-Match", match)
		assert.Equal(t, 400, answer.StatusCode, match)
		assert.Contains(t, fields(p), "If-Match", match)
	}
	answer, p := r.call(t, "PATCH", at, `{"name":"two"}`, "If-Match", `"999999999999999999"`)
	assert.Equal(t, 412, answer.StatusCode)
	assert.Equal(t, api.PreconditionFailed, p.Code)

	req := httptest.NewRequestWithContext(t.Context(), "PATCH", at, strings.NewReader(`{"name":"two"}`))
	req.Header = http.Header{
		"Authorization": {"Bearer " + secret}, "Content-Type": {"application/json"}, "If-Match": {`"1"`, `"99"`},
	}
	twice := httptest.NewRecorder()
	r.srv.ServeHTTP(twice, req)
	assert.Equal(t, 400, twice.Code)

	got, _ := r.call(t, "GET", at, "")
	assert.Contains(t, got.Body, `"name":"one"`, "nothing was changed")
	answer, _ = r.call(t, "PATCH", at, `{"name":"two"}`, "If-Match", `*`)
	assert.Equal(t, 200, answer.StatusCode)
}

// Each operation is asked for with each of the headers that it does not declare.
func TestHeadersThatAnOperationDoesNotHeedAreRefused(t *testing.T) {
	r := newRig(t)
	refused := map[string]bool{}
	for _, d := range allDocumented(t) {
		for _, header := range []string{"If-Match", "Idempotency-Key"} {
			if d.takes(header) {
				continue
			}
			answer, p := r.call(t, d.method, d.url, "", header, `"1"`)
			assert.Equal(t, 400, answer.StatusCode, "%s with %s", d.OperationID, header)
			assert.Contains(t, fields(p)[header], "is no header", d.OperationID)
			refused[d.OperationID+" "+header] = true
		}
	}
	for _, want := range []string{
		"updateProjectQuotas If-Match", "createToken Idempotency-Key", "createFault Idempotency-Key",
		"runScenario Idempotency-Key", "createSnapshot Idempotency-Key",
	} {
		assert.Contains(t, refused, want)
	}
	require.Greater(t, len(refused), 50)
}
