package server_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
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
			assert.Contains(t, fields(p)[header], "is not a header", d.OperationID)
			refused[d.OperationID+" "+header] = true
		}
	}
	for _, want := range []string{
		"updateProjectQuotas If-Match", "createToken Idempotency-Key", "createFault Idempotency-Key",
		"createSnapshot Idempotency-Key",
	} {
		assert.Contains(t, refused, want)
	}
	require.Greater(t, len(refused), 50)
}

func (r *rig) head(t *testing.T, path string) bufferedAnswer {
	t.Helper()
	req := authorized(t, r.url+path)
	req.Method = http.MethodHead
	resp := must.Do(http.DefaultClient.Do(req))(t)
	defer func() { _ = resp.Body.Close() }()
	body := must.Do(io.ReadAll(resp.Body))(t)
	return bufferedAnswer{resp.StatusCode, resp.Header, string(body)}
}

func TestHeadIsGetWithoutABody(t *testing.T) {
	r := newRig(t)
	requireOK(t)(r.CreateSnapshot(t.Context(), "a"))
	for _, d := range allDocumented(t) {
		if d.method != http.MethodGet {
			continue
		}
		at := d.url
		if d.OperationID == "getSnapshotContent" {
			at = "/v1/snapshots/a/content"
		}
		head := r.head(t, at)
		assert.Empty(t, head.Body, at)
		if d.OperationID == "streamEvents" {
			assert.Equal(t, 200, head.StatusCode)
			at += "?follow=false"
		}
		got, _ := r.call(t, "GET", at, "")
		assert.Equal(t, got.StatusCode, head.StatusCode, at)
		assert.Equal(t, got.Header.Get("Content-Type"), head.Header.Get("Content-Type"), at)
	}
	for _, at := range []string{"/healthz", "/readyz", "/v1/zones"} {
		head := r.head(t, at)
		assert.Equal(t, 200, head.StatusCode, at)
	}
	head := r.head(t, "/v1/clock:advance")
	assert.Equal(t, 405, head.StatusCode)
	all := must.Do(r.ListAudit(t.Context(), client.AuditFilter{Operation: "listZones"}, 0))(t)
	var sizes []int64
	for _, e := range all {
		sizes = append(sizes, e.BytesOut)
	}
	assert.Contains(t, sizes, int64(0), "no bytes were sent")
}
