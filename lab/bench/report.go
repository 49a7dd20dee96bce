package main

import (
	"fmt"
	"strings"

	"github.com/ccmlab/ccmlab/fakecloud/bench/harness"
)

// report is everything that is printed.
type report struct {
	// CCM is the program that was measured, and Command what does so again, for `lab conformance table`.
	CCM     string          `json:"ccm"`
	Command string          `json:"command"`
	Quick   bool            `json:"quick"`
	Machine harness.Machine `json:"machine"`
	Size    size            `json:"size"`
	Lines   []line          `json:"lines"`
}

// line is one line of the table.
type line struct {
	Name   string `json:"name"`
	Figure string `json:"figure"`
	Ours   value  `json:"ours"`
	// Peer is our provider without its cache, with upstream's defaults.
	Peer *value `json:"upstreamDefaultsNoCache,omitempty"`
	// Faster is Peer's time divided by ours, Fewer its calls divided by ours. Where the peer
	// was not done when its time was up, both are lower bounds.
	Faster float64  `json:"faster,omitempty"`
	Fewer  float64  `json:"fewerCalls,omitempty"`
	Aim    string   `json:"aim,omitempty"`
	Holds  *bool    `json:"holds,omitempty"`
	Notes  []string `json:"notes,omitempty"`
}

// setAim records an aim, and whether the figure meets it.
func (l *line) setAim(aim string, holds bool) { l.Aim, l.Holds = aim, &holds }

// setPeer records the figure with upstream's defaults, and how it compares.
func (l *line) setPeer(peer value) {
	l.Peer = &peer
	if l.Ours.Seconds > 0 && l.Ours.Left == 0 {
		l.Faster = peer.Seconds / l.Ours.Seconds
		l.Fewer = float64(peer.Used.Calls) / float64(max(1, l.Ours.Used.Calls))
	}
}

// value is the result of one measurement.
type value struct {
	// Seconds is the time from begin to end. If Left things were not done within the bound, it is
	// the bound.
	Seconds float64 `json:"seconds"`
	Left    int     `json:"left,omitempty"`
	// First is when the first was done, in seconds from begin, if all were.
	First float64    `json:"firstSeconds,omitempty"`
	Used  usageDelta `json:"taken"`
	// Asked is when this program had asked for all of it, in seconds from begin.
	Asked float64 `json:"askedSeconds,omitempty"`
	// Each is a number of things of the kind Unit, to show the calls for each of them.
	Each int    `json:"each,omitempty"`
	Unit string `json:"unit,omitempty"`
	// For a steady state: the CCM's processor seconds, and its resident memory, at the end and at
	// most since its start, in bytes.
	Steady bool    `json:"steady,omitempty"`
	CPU    float64 `json:"cpuSeconds,omitempty"`
	Memory int64   `json:"residentBytes,omitempty"`
	Peak   int64   `json:"peakBytes,omitempty"`
}

func (v value) String() string {
	if v.Steady {
		return fmt.Sprintf("%.2f calls/s, %.2f CPU s/min, %.0f MiB (at most %.0f)",
			float64(v.Used.Calls)/v.Seconds, v.CPU/v.Seconds*60, toMebibytes(v.Memory), toMebibytes(v.Peak))
	}
	shown := fmt.Sprintf("%.1f s, %s calls", v.Seconds, formatInt64(v.Used.Calls))
	if v.Left > 0 {
		shown = fmt.Sprintf("%d not within %.0f s, %s calls", v.Left, v.Seconds, formatInt64(v.Used.Calls))
	}
	if v.Each > 0 {
		shown += fmt.Sprintf(", %.2f a %s", float64(v.Used.Calls)/float64(v.Each), v.Unit)
	}
	return shown
}

// askedNote is a note that says when this program had sent all of its own requests, which it does
// within the time that it measures.
func (v value) askedNote() []string {
	return []string{fmt.Sprintf("all of it had been asked for after %.1f s", v.Asked)}
}

func toMebibytes(b int64) float64 { return float64(b) / (1 << 20) }

// formatInt64 shows a whole number.
func formatInt64(n int64) string { return strings.TrimSuffix(harness.Grouped(float64(n)), ".0") }

func (l line) formatRatio() string {
	if l.Peer == nil || l.Faster == 0 {
		return "-"
	}
	atLeast := ""
	if l.Peer.Left > 0 {
		atLeast = "≥ "
	}
	return fmt.Sprintf("%s%.1f× / %.0f×", atLeast, l.Faster, l.Fewer)
}

// Table shows the report.
func (r report) Table() harness.Table {
	t := harness.Table{
		Head: []string{
			r.Machine.String(),
			fmt.Sprintf("size     %s nodes as objects, without kubelets and without kube-controller-manager; "+
				"each answer of the cloud to the CCM late by %s;", formatInt(r.Size.Nodes), latency),
			"         API server, etcd, cloud, CCM and this benchmark share the cores; " +
				"calls are the CCM's to the cloud, by its audit, event streams apart",
		},
		Columns: "FIGURE\tOURS\tUPSTREAM'S DEFAULTS, NO CACHE\tRATIO\tAIM",
		Notes:   []string{""},
	}
	if r.Quick {
		t.Head = append(
			t.Head, "quick    the sizes are small: this shows that it works, the aims are for 1,000 nodes",
		)
	}
	for _, l := range r.Lines {
		peer := ""
		t.Notes = append(t.Notes, fmt.Sprintf("%s: %s", l.Name, l.Ours.Used))
		if l.Ours.First > 0 {
			t.Notes = append(t.Notes, fmt.Sprintf("%s: the first after %.1f s", l.Name, l.Ours.First))
		}
		if l.Peer != nil {
			peer = l.Peer.String()
			t.Notes = append(t.Notes, fmt.Sprintf("%s, upstream's defaults: %s", l.Name, l.Peer.Used))
		}
		for _, note := range l.Notes {
			t.Notes = append(t.Notes, l.Name+": "+note)
		}
		t.Rows = append(t.Rows, harness.Row{
			Cells: []string{l.Figure, l.Ours.String(), peer, l.formatRatio(), l.Aim}, Holds: l.Holds,
		})
	}
	return t
}
