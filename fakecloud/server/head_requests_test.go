package server_test

import (
	"io"
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/ccmlab/ccmlab/fakecloud/client"
)

func (r *rig) head(t *testing.T, path string) bufferedAnswer {
	t.Helper()
	req := authorized(t, r.url+path)
	req.Method = http.MethodHead
	resp := must(http.DefaultClient.Do(req))(t)
	defer func() { _ = resp.Body.Close() }()
	body := must(io.ReadAll(resp.Body))(t)
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
	head := r.head(t, "/v1/snapshots/a/restore")
	assert.Equal(t, 405, head.StatusCode)
	all := must(r.ListAudit(t.Context(), client.AuditFilter{Operation: "listZones"}, 0))(t)
	var sizes []int64
	for _, e := range all {
		sizes = append(sizes, e.BytesOut)
	}
	assert.Contains(t, sizes, int64(0), "no bytes were sent")
}
