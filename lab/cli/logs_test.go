package cli

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/clikit"
	"github.com/ccmlab/ccmlab/lab/cluster"
)

func TestChooseLogs(t *testing.T) {
	have := []string{"etcd", "kube-apiserver", "lab-agent", "node/node-1"}
	components := []cluster.Component{{Name: "etcd"}, {Name: "ccm"}, {Name: "node/node-2"}}
	for name, tc := range map[string]struct {
		args   []string
		follow bool
		want   []string
		fails  string
		usage  bool
	}{
		"all":                   {want: have},
		"one":                   {args: []string{"etcd"}, want: []string{"etcd"}},
		"several, once each":    {args: []string{"node/node-1", "etcd", "etcd"}, want: []string{"node/node-1", "etcd"}},
		"a machine by its file": {args: []string{"node-node-1"}, want: []string{"node/node-1"}},
		"one that has none yet": {
			args: []string{"ccm"}, fails: "ccm has no log yet: it has not been started; `lab logs ccm -f` waits for it",
		},
		"one to be waited for":       {args: []string{"ccm"}, follow: true, want: []string{"ccm"}},
		"a machine to be waited for": {args: []string{"node-node-2"}, follow: true, want: []string{"node/node-2"}},
		"a part of a name":           {args: []string{"apiserver"}, fails: "did you mean kube-apiserver?", usage: true},
		"a machine without its kind": {args: []string{"node-1"}, fails: "did you mean node/node-1?", usage: true},
		"what is none": {
			args: []string{"x"}, follow: true, fails: `no component "x" has a log; there are: etcd, kube-apiserver`,
			usage: true,
		},
		"one of several that is none": {args: []string{"etcd", "x"}, fails: `"x"`, usage: true},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := chooseLogs(tc.args, have, components, tc.follow)
			if tc.fails == "" {
				require.NoError(t, err)
				assert.Equal(t, tc.want, got)
				return
			}
			require.ErrorContains(t, err, tc.fails)
			var usage clikit.UsageError
			assert.Equal(t, tc.usage, errors.As(err, &usage))
		})
	}
}

func TestLogsFlags(t *testing.T) {
	for name, tc := range map[string]struct {
		flags logsFlags
		args  []string
		fails string
	}{
		"nothing":         {},
		"since":           {flags: logsFlags{since: "5m"}},
		"a negative tail": {flags: logsFlags{tail: -1}, fails: "--tail -1"},
		"a since that is none": {
			flags: logsFlags{since: "yesterday"},
			fails: `--since "yesterday": want a duration such as 30s or 5m, or start`,
		},
		"a since in the future": {flags: logsFlags{since: "-5m"}, fails: "--since"},
		"all and some":          {flags: logsFlags{all: true}, args: []string{"ccm"}, fails: "leave out ccm"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := tc.flags.validateFlags(tc.args)
			if tc.fails == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, tc.fails)
			var usage clikit.UsageError
			assert.ErrorAs(t, err, &usage)
		})
	}
}

func TestLineTime(t *testing.T) {
	now := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	for line, want := range map[string]time.Time{
		`I0102 11:59:58.123456   31856 x.go:48] "m"`: time.Date(2026, 1, 2, 11, 59, 58, 123456000, time.UTC),
		`E1231 23:59:59.000000       1 x.go:48] "m"`: time.Date(2025, 12, 31, 23, 59, 59, 0, time.UTC),
		`[pod/ccm-1/ccm] I0102 11:59:58.123456       1 x.go:48] "m"`: time.Date(
			2026, 1, 2, 11, 59, 58, 123456000, time.UTC,
		),
		`time=2026-01-02T11:59:58.666Z level=INFO msg=call`: time.Date(2026, 1, 2, 11, 59, 58, 666000000, time.UTC),
		`{"level":"warn","ts":"2026-01-02T11:59:58.371+0100","caller":"x"}`: time.Date(
			2026, 1, 2, 10, 59, 58, 371000000, time.UTC,
		),
		`2026-01-02T11:59:58+01:00 said`:    time.Date(2026, 1, 2, 10, 59, 58, 0, time.UTC),
		`panic: nil`:                        {},
		``:                                  {},
		`Iowa`:                              {},
		`I0199 11:59:58.123456 no such day`: {},
		strings.Repeat("x", maxTimeOffset) + `time=2026-01-02T11:59:58.666Z level=INFO`: {},
	} {
		got, ok := lineTime(line, now)
		assert.Equal(t, !want.IsZero(), ok, line)
		if ok {
			assert.True(t, want.Equal(got), "%s: %s", line, got)
		}
	}
}

func TestLogLinesOfSeveralWriters(t *testing.T) {
	var out strings.Builder
	l := newLogLines(screenOf(&out), []string{"etcd", "fakecloud"}, true, time.Time{})
	write := func(w *lineWriter, text string) {
		t.Helper()
		n, err := w.Write([]byte(text))
		require.NoError(t, err)
		assert.Equal(t, len(text), n)
	}
	etcd, cloud := l.writerFor("etcd"), l.writerFor("fakecloud")
	write(etcd, "one\ntw")
	write(cloud, "three\n")
	write(etcd, "o\n\nfour")
	require.NoError(t, errors.Join(etcd.Flush(), cloud.Flush()))
	assert.Equal(
		t, "etcd      | one\nfakecloud | three\netcd      | two\netcd      | \netcd      | four\n", out.String(),
		"whole lines, without colour",
	)
}

func TestLogLinesSince(t *testing.T) {
	var out strings.Builder
	l := newLogLines(screenOf(&out), []string{"x"}, false, time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC))
	_, err := l.writerFor("x").Write([]byte(`of nobody knows when
time=2026-01-02T11:59:59Z old
  and what belongs to it
time=2026-01-02T12:00:00Z new
  and what belongs to it
`))
	require.NoError(t, err)
	assert.Equal(t, "time=2026-01-02T12:00:00Z new\n  and what belongs to it\n", out.String())
}
