package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
)

func TestFormatBytes(t *testing.T) {
	for want, n := range map[string]int64{
		"0B": 0, "1023B": 1023, "1.0KiB": 1024, "9.9KiB": 10188, "10KiB": 10189, "1023KiB": 1023 << 10,
		"1.0MiB": 1<<20 - 1, "1.5GiB": 3 << 29, "8.0EiB": 1<<63 - 1,
	} {
		assert.Equal(t, want, formatBytes(float64(n)))
	}
	rapid.Check(t, func(t *rapid.T) {
		assert.LessOrEqual(t, len(formatBytes(float64(rapid.Int64Min(0).Draw(t, "n")))), 7)
	})
}

func TestStatsRowRates(t *testing.T) {
	before := statsRow{connections: 10, in: 100, out: 1000}
	now := statsRow{connections: 13, in: 100, out: 5000}
	assert.Equal(t, &rates{1.5, 0, 2000}, now.withRates(before, 2*time.Second).rates)
	assert.Nil(t, before.withRates(now, time.Second).rates, "the counters began anew")
	assert.Nil(t, now.withRates(before, 0).rates)
	rapid.Check(t, func(t *rapid.T) {
		some := rapid.Custom(func(t *rapid.T) statsRow {
			n := rapid.Int64Min(0)
			return statsRow{connections: n.Draw(t, "connections"), in: n.Draw(t, "in"), out: n.Draw(t, "out")}
		})
		over := time.Duration(rapid.Int64().Draw(t, "over"))
		if r := some.Draw(t, "now").withRates(some.Draw(t, "before"), over).rates; r != nil {
			assert.GreaterOrEqual(t, min(r.connections, r.in, r.out), 0.0)
		}
	})
}

// largeStats are stats with large numbers in every counter.
func largeStats() *api.LoadBalancerStats {
	stats := &api.LoadBalancerStats{Listeners: []api.ListenerStats{{
		Protocol: "tcp", Port: 8080, Connections: 1234567, ActiveConnections: 10000, FailedConnections: 99,
		BrokenConnections: 100, RefusedConnections: 101, BytesIn: 1023 << 30, BytesOut: 1023 << 40,
	}}}
	for i := range 3 {
		stats.Targets = append(stats.Targets, api.TargetStats{
			InstanceID: fmt.Sprintf("i-%d", i), Connections: 1234567, ActiveConnections: 10000, FailedConnections: 99,
			BrokenConnections: 100, BytesIn: 1023 << 30, BytesOut: 1023 << 40,
		})
	}
	return stats
}

// The table of a busy balancer fits into 80 columns without cuts, with and without rates.
func TestStatsFitTheTerminal(t *testing.T) {
	names := instanceNames{known: map[string]string{"i-0": "node-0", "i-1": "node-1", "i-2": "i-2"}}
	all := statsRowsOf(t.Context(), largeStats(), &names)
	for i := range all {
		all[i].rates = &rates{12345, 1023 << 20, 1023 << 30}
	}
	for _, header := range []string{statsHeader, watchedHeader} {
		text := must.Do((&app{}).statsTable(all, header, 80))(t)
		lines := strings.Split(text, "\n")
		for _, line := range lines {
			assert.LessOrEqual(t, utf8.RuneCountInString(line), 80, line)
			assert.NotContains(t, line, "…")
			assert.Equal(t, strings.TrimSpace(line), line)
		}
		assert.Regexp(
			t, `^LISTENER +CONNS (?s:.*)\n8080/tcp +1234567 .*\n\nTARGET +CONNS .*\nnode-0 .*\nnode-1 .*\ni-2 .*\n$`,
			text,
		)
		assert.Equal(t, strings.Index(lines[0], "ACTIVE"), strings.Index(lines[3], "ACTIVE"), "columns are the same")
		wide := must.Do((&app{wide: true}).statsTable(all, header, 0))(t)
		assert.Regexp(
			t,
			`^LISTENER +ID .*FAILED +BROKEN +REFUSED.*\n8080/tcp +- .* 99 +100 +101 .*\n\nTARGET +ID .*\nnode-0 +i-0 .* 99 +100 +- `,
			wide,
		)
	}
	text := must.Do((&app{}).statsTable(all[:1], statsHeader, 80))(t)
	assert.Equal(t, 2, strings.Count(text, "\n"), "no targets, no table of them")
}

func TestScreenReplacesText(t *testing.T) {
	var out strings.Builder
	s := screen{out: &out}
	drawn := func(text string, width, height int) string {
		out.Reset()
		require.NoError(t, s.replaceText(text, width, height))
		return out.String()
	}
	assert.Equal(t, "\r\x1b[Ja\nb\n", drawn("a\nb\n", 80, 24))
	assert.Equal(t, "\x1b[2A\r\x1b[Jone\ntw…\n", drawn("one\ntwo three\n", 3, 24))
	assert.Equal(t, "\x1b[2A\r\x1b[J1\n2\n… 3 more lines\n", drawn("1\n2\n3\n4\n5\n", 80, 4))
	assert.Equal(t, "\x1b[3A\r\x1b[J1\n2\n3\n", drawn("1\n2\n3\n", 80, 4), "what fits is whole")
	s.drawnLines = 0
	assert.Equal(t, "\r\x1b[J1\n", drawn("1\n", 80, 24), "what was said since stays")
}

// deletedBalancer is the answer 404.
var deletedBalancer = &api.LoadBalancerStats{}

// startStatsCloud starts a server for `stats`. Its counters are the answers, one after the
// other; a nil answer is a 503. After the last answer it calls finished.
func startStatsCloud(t *testing.T, finished func(), answers ...*api.LoadBalancerStats) {
	t.Helper()
	next := 0
	reply := func(w http.ResponseWriter, value any) {
		w.Header().Set("Content-Type", "application/json")
		assert.NoError(t, json.NewEncoder(w).Encode(value))
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/v1/load-balancers", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, webBalancer())
	})
	mux.HandleFunc("/v1/instances", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, api.InstanceList{Items: []api.Instance{namedInstance("i-0", "node-0"), namedInstance("i-1", "node-1")}})
	})
	mux.HandleFunc("/v1/load-balancers/lb-1/stats", func(w http.ResponseWriter, r *http.Request) {
		if next == len(answers) {
			finished()
			<-r.Context().Done()
			return
		}
		stats := answers[next]
		next++
		switch stats {
		case nil:
			http.Error(w, "starting", http.StatusServiceUnavailable)
		case deletedBalancer:
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(w, `{"code":"not-found","detail":"load balancer lb-1 is none of project p-1","requestId":"r"}`)
		default:
			reply(w, stats)
		}
	})
	h := httptest.NewServer(mux)
	t.Cleanup(h.Close)
	t.Setenv("FAKECLOUD_URL", h.URL)
	token := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(token, []byte("secret"), 0o600))
	t.Setenv("FAKECLOUD_TOKEN_FILE", token)
}

func webBalancer() api.LoadBalancerList {
	return api.LoadBalancerList{Items: []api.LoadBalancer{{
		Metadata: api.Metadata{ID: "lb-1", Name: "web", Tags: api.Tags{}}, IPFamilies: api.IPFamilies{}, Listeners: []api.Listener{}, Targets: []api.Target{},
		SourceRanges: api.SourceRanges{},
	}}}
}

func namedInstance(id, name string) api.Instance {
	return api.Instance{
		ID: id, Name: name, Addresses: []api.Address{}, Tags: api.Tags{}, Identities: map[string]string{},
	}
}

// statsWith are the counters of a balancer with one listener and one target, the same for
// both.
func statsWith(connections, in int64) *api.LoadBalancerStats {
	return &api.LoadBalancerStats{
		Listeners: []api.ListenerStats{
			{Protocol: "tcp", Port: 8080, Connections: connections, BytesIn: in, RefusedConnections: 2},
		},
		Targets: []api.TargetStats{{InstanceID: "i-0", Connections: connections, BytesIn: in, FailedConnections: 1}},
	}
}

// failedReads are as many failures as the client makes attempts of one read.
var failedReads = []*api.LoadBalancerStats{nil, nil, nil}

func runStatsWatch(t *testing.T, args []string, answers ...*api.LoadBalancerStats) (code int, stdout, stderr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	startStatsCloud(t, cancel, answers...)
	var out, errs bytes.Buffer
	code = Run(
		ctx, append([]string{"load-balancers", "stats", "web", "--watch", "--interval", "100ms"}, args...), &out, &errs,
	)
	return code, out.String(), errs.String()
}

// Without a terminal each read adds lines. A failed read is reported, and the first read after
// a restart has no rates.
func TestStatsWatchAddsLines(t *testing.T) {
	answers := slices.Concat(
		[]*api.LoadBalancerStats{statsWith(10, 1<<20), statsWith(20, 2<<20)}, failedReads,
		[]*api.LoadBalancerStats{statsWith(1, 10), statsWith(2, 20)},
	)
	code, out, errs := runStatsWatch(t, nil, answers...)
	require.Zero(t, code, errs)
	assert.Equal(t, 1, strings.Count(errs, "cannot read the counters, retrying: "), errs)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	require.Len(t, lines, 1+2*4, out)
	assert.Regexp(t, `^TIME +TYPE +NAME +CONNS +CONNS/S +ACTIVE +ERRORS +IN +IN/S +OUT +OUT/S$`, lines[0])
	const at, rate = `^\d\d:\d\d:\d\d\.\d{3} +`, `[0-9.]+`
	assert.Regexp(t, at+`listener +8080/tcp +10 +- +0 +2 +1\.0MiB +- +0B +-$`, lines[1])
	assert.Regexp(t, at+`target +node-0 +10 +- +0 +1 +1\.0MiB +- +0B +-$`, lines[2])
	assert.Regexp(t, at+`listener +8080/tcp +20 +`+rate+` +0 +2 +2\.0MiB +`+rate+`[KM]iB +0B +0B$`, lines[3])
	assert.Regexp(t, at+`listener +8080/tcp +1 +- +0 +2 +10B +- +0B +-$`, lines[5], "the cloud began anew")
	assert.Regexp(t, at+`target +node-0 +2 +`+rate+` +0 +1 +20B +`+rate+`B +0B +0B$`, lines[8])
}

func TestStatsWatchJSON(t *testing.T) {
	code, out, errs := runStatsWatch(t, []string{"-o", "json"}, statsWith(10, 1234567), statsWith(11, 1234568))
	require.Zero(t, code, errs)
	lines := json.NewDecoder(strings.NewReader(out))
	var got [2]struct {
		At time.Time
		api.LoadBalancerStats
	}
	for i, want := range []*api.LoadBalancerStats{statsWith(10, 1234567), statsWith(11, 1234568)} {
		require.NoError(t, lines.Decode(&got[i]), out)
		assert.Equal(t, *want, got[i].LoadBalancerStats)
	}
	assert.True(t, got[1].At.After(got[0].At))
	assert.Equal(t, 2, strings.Count(out, "\n"))

	code, out, errs = runStatsWatch(t, []string{"-o", "yaml"}, statsWith(10, 1))
	require.Zero(t, code, errs)
	assert.Regexp(t, `^---\nat: .*\nlisteners:\n- activeConnections: 0\n`, out)
}

// Watching fails if the first read fails, and when the balancer is deleted.
func TestStatsWatchEndsWithTheBalancer(t *testing.T) {
	code, _, errs := runStatsWatch(t, nil, failedReads...)
	assert.Equal(t, exitFailed, code)
	assert.Contains(t, errs, "starting")

	code, _, errs = runStatsWatch(t, nil, statsWith(10, 1), deletedBalancer)
	assert.Equal(t, exitFailed, code)
	assert.Contains(t, errs, "none of project p-1")
}

func TestHealthHistoryRows(t *testing.T) {
	why := "connection refused by 127.0.0.1:80"
	now := time.Now()
	rows := (&app{}).historyRows(api.TargetHealth{Health: api.TargetUnhealthy, History: []api.HealthChange{
		{Health: api.TargetUnhealthy, Reason: why, At: now}, {Health: api.TargetHealthy, At: now},
		{Health: api.TargetUnknown, At: now},
	}})
	require.Len(t, rows, 3)
	assert.Equal(t, []string{"healthy -> unhealthy", why}, rows[0][2:])
	assert.Equal(t, []string{"unknown -> healthy", "-"}, rows[1][2:])
	assert.Equal(t, []string{"- -> unknown", "-"}, rows[2][2:])
	assert.Equal(
		t, [][]string{{"-", "-", "- -> unknown", why}},
		(&app{}).historyRows(api.TargetHealth{Health: api.TargetUnknown, Reason: why}),
	)
}
