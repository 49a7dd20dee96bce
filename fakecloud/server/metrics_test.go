package server_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
	"github.com/ccmlab/ccmlab/fakecloud/server"
)

// samples reads /metrics without a token: each sample by its name and labels.
func samples(t *testing.T, url string) map[string]float64 {
	t.Helper()
	resp := must.Do(http.Get(url + "/metrics"))(t)
	defer func() { _ = resp.Body.Close() }()
	require.Equal(t, 200, resp.StatusCode)
	assert.True(t, strings.HasPrefix(resp.Header.Get("Content-Type"), "text/plain"))
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families := must.Do(parser.TextToMetricFamilies(resp.Body))(t)
	all := map[string]float64{}
	for name, f := range families {
		assert.NotEmpty(t, f.GetHelp(), name)
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			key := name + "{" + strings.Join(labels, ",") + "}"
			switch f.GetType().String() {
			case "COUNTER":
				all[key] = m.GetCounter().GetValue()
			case "HISTOGRAM":
				all[key] = float64(m.GetHistogram().GetSampleCount())
			default:
				all[key] = m.GetGauge().GetValue()
			}
		}
	}
	return all
}

func TestMetrics(t *testing.T) {
	r := newRig(t).withHop(t)
	r.routes(t, 1, 2)
	r.reserve(t, "kept")
	var zones bufferedAnswer
	for range 3 {
		zones, _ = r.call(t, "GET", "/v1/zones", "")
	}
	r.call(t, "GET", "/v1/instances/i-none", "")
	r.call(t, "POST", "/v1/instances", `{"nom":1}`)
	r.call(t, "GET", "/nonsense", "")
	r.openEvents(t, "")
	r.breakCCM(t, api.FaultCreate{Effect: api.FaultEffect{EmptyList: true}})
	requireOK(t)(r.ccm.ListRoutes(t.Context(), client.RouteFilter{}))
	must.Do(r.SumAudit(t.Context(), client.AuditFilter{}))(t)

	got := samples(t, r.url)
	for name, want := range map[string]float64{
		"fakecloud_requests_total{code=200,operation=listZones}":      3,
		"fakecloud_requests_total{code=404,operation=getInstance}":    1,
		"fakecloud_requests_total{code=400,operation=createInstance}": 1,
		"fakecloud_requests_total{code=404,operation=none}":           1,
		"fakecloud_request_duration_seconds{operation=listZones}":     3,
		"fakecloud_request_bytes_total{operation=createInstance}":     float64(len(`{"nom":1}`) + len("{}")),
		"fakecloud_response_bytes_total{operation=listZones}":         float64(3 * len(zones.Body)),
		// The stream, and the one that asks.
		"fakecloud_requests_in_flight{}":                                         2,
		"fakecloud_event_watchers{}":                                             1,
		"fakecloud_event_watchers_cut_off_total{}":                               0,
		"fakecloud_fault_hits_total{effect=emptyList}":                           1,
		"fakecloud_transitions_total{from=,resource=instance,to=pending}":        1,
		"fakecloud_transitions_total{from=pending,resource=instance,to=running}": 1,
		"fakecloud_transitions_total{from=,resource=route,to=active}":            2,
		"fakecloud_transitions_total{from=active,resource=route,to=}":            2,
		"fakecloud_resources{resource=instance,state=running}":                   1,
		"fakecloud_resources{resource=address,state=available}":                  1,
		"fakecloud_resources{resource=network,state=}":                           2, // Of two projects.
		"fakecloud_audit_queue_calls{}":                                          0,
	} {
		v, ok := got[name]
		assert.True(t, ok, name)
		assert.Equal(t, want, v, name)
	}
	assert.Positive(t, got["go_goroutines{}"])
	assert.Positive(t, got["process_resident_memory_bytes{}"])
	builds := 0
	for name := range got {
		if strings.HasPrefix(name, "fakecloud_build_info{") {
			builds++
		}
	}
	assert.Equal(t, 1, builds)

	for name := range samples(t, serve(t, r.newAPI(t, server.Config{}))) {
		assert.NotContains(t, name, "fakecloud_store_", "no store was given")
	}
	r.url = serve(t, r.newAPI(t, server.Config{
		RateLimit: 1, RateBurst: 1,
		StoreStats: func() server.StoreStats {
			return server.StoreStats{Writes: 7, Commits: 3, Fsyncs: 4, Checkpoints: 1}
		},
	}))
	throttled := 0
	for range 20 {
		if resp, _ := r.call(t, "GET", "/v1/zones", ""); resp.StatusCode == http.StatusTooManyRequests {
			throttled++
		}
	}
	got = samples(t, r.url)
	assert.EqualValues(t, throttled, got["fakecloud_rate_limited_total{limit=token}"])
	assert.Positive(t, throttled)
	assert.EqualValues(t, 7, got["fakecloud_store_writes_total{}"])
	assert.EqualValues(t, 3, got["fakecloud_store_commits_total{}"])
	assert.EqualValues(t, 4, got["fakecloud_store_fsyncs_total{}"])
	assert.EqualValues(t, 1, got["fakecloud_store_checkpoints_total{}"])
}
