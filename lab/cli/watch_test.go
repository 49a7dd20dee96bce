package cli

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/clikit"
	"github.com/ccmlab/ccmlab/lab/timeline"
)

func TestWatchFlags(t *testing.T) {
	now := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	for args, want := range map[string]timeline.Filter{
		"": {Calls: timeline.CallsChanges},
		"--only cloud,call --only lab --calls all": {
			Sources: []timeline.Source{timeline.SourceCloud, timeline.SourceCall, timeline.SourceLab},
			Calls:   timeline.CallsAll,
		},
		"--subject node/* --caller ccm --failed --since 30s": {
			Subjects: []string{"node/*"}, Callers: []string{"ccm"}, Failed: true, Since: now.Add(-30 * time.Second),
			Calls: timeline.CallsChanges,
		},
		"--since start --calls none": {Calls: timeline.CallsNone},
	} {
		cmd := newWatch(&globalOptions{})
		var f watchFlags
		cmd.ResetFlags()
		f.addFlags(cmd, &globalOptions{})
		require.NoError(t, cmd.ParseFlags(strings.Fields(args)), args)
		got, err := f.timelineFilter(now)
		require.NoError(t, err, args)
		if len(got.Subjects)+len(got.Callers) == 0 { // An empty slice means no flag.
			got.Subjects, got.Callers = nil, nil
		}
		assert.Equal(t, want, got, args)
	}
	for args, want := range map[string]string{
		"--only clouds":            `--only "clouds": want some of cloud, cluster, event, call, lab`,
		"--calls some":             `--calls "some": want one of changes, all, none`,
		"--only call --calls none": "leaves nothing to show",
		"--since soon":             `--since "soon"`,
		"--subject node/[":         `"node/["`,
	} {
		var f watchFlags
		cmd := newWatch(&globalOptions{})
		cmd.ResetFlags()
		f.addFlags(cmd, &globalOptions{})
		require.NoError(t, cmd.ParseFlags(strings.Fields(args)), args)
		_, err := f.timelineFilter(now)
		require.ErrorContains(t, err, want)
		var usage clikit.UsageError
		require.ErrorAs(t, err, &usage, args)
	}
}

// sampleEntries returns entries of each source of a timeline.
func sampleEntries() []timeline.Entry {
	return []timeline.Entry{
		{Seconds: 1, Change: timeline.Change{
			Source: timeline.SourceLab, Subject: "component/etcd", What: "started", Detail: "process 1",
		}},
		{
			Seconds: 2,
			Change:  timeline.Change{Source: timeline.SourceCloud, Subject: "instance/node-1", What: "pending"},
		},
		{Seconds: 3, Change: timeline.Change{
			Source: timeline.SourceCall, Subject: "instance/node-1", What: "createInstance", Caller: "lab",
			Detail: "POST /v1/instances → 201", Call: &timeline.Call{},
		}},
		{Seconds: 4, Change: timeline.Change{
			Source: timeline.SourceCluster, Subject: "service/web", What: "address", Detail: "192.0.2.1",
		}},
		{Seconds: 5, Change: timeline.Change{Source: timeline.SourceCluster, Subject: "pod/web-1", What: "ready"}},
		{
			Seconds: 6,
			Change:  timeline.Change{Source: timeline.SourceEvent, Subject: "service/web", What: "EnsuredLoadBalancer"},
		},
	}
}

// The summary of `lab up` shows only nodes, services and the cloud.
func TestUpSummaryTimeline(t *testing.T) {
	var out strings.Builder
	printTimeline(&out, slices.DeleteFunc(sampleEntries(), func(e timeline.Entry) bool { return !isInUpSummary(e) }))
	assert.Equal(t, `    2.00  instance/node-1        pending
    4.00  service/web            address          192.0.2.1
`, out.String())
}

func TestWatchLines(t *testing.T) {
	var out strings.Builder
	show := timelinePrinter(&out)
	for _, e := range sampleEntries()[:4] {
		require.NoError(t, show(e))
	}
	assert.Equal(t, `    1.00 lab     component/etcd         started          process 1
    2.00 cloud   instance/node-1        pending
    3.00 call    instance/node-1        lab              POST /v1/instances → 201
    4.00 cluster service/web            address          192.0.2.1
`, out.String(), "no colour where there is no terminal")

	out.Reset()
	narrow := screen{w: &out, width: func() int { return 5 }, color: true}
	require.NoError(t, narrow.printLine("31", "a→cdefg"))
	require.NoError(t, narrow.printLine("", "abcde"))
	assert.Equal(t, "\033[31ma→cd…\033[0m\nabcde\n", out.String())
}
