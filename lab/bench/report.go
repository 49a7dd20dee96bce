package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/ccmlab/ccmlab/fakecloud/bench/machine"
)

// report is all that is printed.
type report struct {
	Quick   bool            `json:"quick"`
	Machine machine.Machine `json:"machine"`
	Size    size            `json:"size"`
	Lines   []line          `json:"lines"`
}

// line is one of the table.
type line struct {
	Name   string `json:"name"`
	Figure string `json:"figure"`
	Ours   value  `json:"ours"`
	// Peer is our provider without its cache, in upstream's defaults.
	Peer *value `json:"upstreamDefaultsNoCache,omitempty"`
	// Faster is Peer's time by ours, Fewer its calls by ours. Where the peer was
	// not done when its time was up, they are at least so much.
	Faster float64  `json:"faster,omitempty"`
	Fewer  float64  `json:"fewerCalls,omitempty"`
	Aim    string   `json:"aim,omitempty"`
	Holds  *bool    `json:"holds,omitempty"`
	Notes  []string `json:"notes,omitempty"`
}

func (l *line) judge(aim string, holds bool) { l.Aim, l.Holds = aim, &holds }

func (l *line) compare(peer value) {
	l.Peer = &peer
	if l.Ours.Seconds > 0 && l.Ours.Left == 0 {
		l.Faster = peer.Seconds / l.Ours.Seconds
		l.Fewer = float64(peer.Taken.Calls) / float64(max(1, l.Ours.Taken.Calls))
	}
}

// value is what was measured once.
type value struct {
	// Seconds from begin to end; the bound if Left were not done then.
	Seconds float64 `json:"seconds"`
	Left    int     `json:"left,omitempty"`
	// First is when the first was done, if all were.
	First float64 `json:"firstSeconds,omitempty"`
	Taken taken   `json:"taken"`
	// Asked is when this program had asked for all of it, in seconds from begin.
	Asked float64 `json:"askedSeconds,omitempty"`
	// Each and Unit are by what the calls are divided.
	Each int    `json:"each,omitempty"`
	Unit string `json:"unit,omitempty"`
	// Of a steady state: the CCM's processor seconds, what it has resident at the
	// end, and had at most since its start, in bytes.
	Steady bool    `json:"steady,omitempty"`
	CPU    float64 `json:"cpuSeconds,omitempty"`
	Memory int64   `json:"residentBytes,omitempty"`
	Peak   int64   `json:"peakBytes,omitempty"`
}

func (v value) String() string {
	if v.Steady {
		return fmt.Sprintf("%.2f calls/s, %.2f CPU s/min, %.0f MiB (at most %.0f)",
			float64(v.Taken.Calls)/v.Seconds, v.CPU/v.Seconds*60, mebibytes(v.Memory), mebibytes(v.Peak))
	}
	shown := fmt.Sprintf("%.1f s, %s calls", v.Seconds, count(v.Taken.Calls))
	if v.Left > 0 {
		shown = fmt.Sprintf("%d not within %.0f s, %s calls", v.Left, v.Seconds, count(v.Taken.Calls))
	}
	if v.Each > 0 {
		shown += fmt.Sprintf(", %.2f a %s", float64(v.Taken.Calls)/float64(v.Each), v.Unit)
	}
	return shown
}

// asked is a note for what this program does within the time that it measures.
func (v value) asked() []string {
	return []string{fmt.Sprintf("all of it had been asked for after %.1f s", v.Asked)}
}

func mebibytes(b int64) float64 { return float64(b) / (1 << 20) }

// count shows a whole number.
func count(n int64) string { return strings.TrimSuffix(machine.Grouped(float64(n)), ".0") }

func (l line) ratio() string {
	if l.Peer == nil || l.Faster == 0 {
		return "-"
	}
	atLeast := ""
	if l.Peer.Left > 0 {
		atLeast = "≥ "
	}
	return fmt.Sprintf("%s%.1f× / %.0f×", atLeast, l.Faster, l.Fewer)
}

func (r report) print(out io.Writer, output string) error {
	if output == "json" {
		return machine.PrintJSON(out, r)
	}
	_, _ = fmt.Fprintf(out, "machine  %s\n", r.Machine)
	_, _ = fmt.Fprintf(out, "size     %s nodes as objects, without kubelets and without kube-controller-manager; each answer of the cloud to the CCM late by %s;\n",
		grouped(r.Size.Nodes), latency)
	_, _ = fmt.Fprintln(out, "         API server, etcd, cloud, CCM and this benchmark share the cores; calls are the CCM's to the cloud, by its audit, event streams apart")
	if r.Quick {
		_, _ = fmt.Fprintln(out, "quick    the sizes are small: this shows that it works, the aims are for 1,000 nodes")
	}
	return r.printLines(out)
}

func (r report) printLines(out io.Writer) error {
	err := machine.PrintTable(out, "FIGURE\tOURS\tUPSTREAM'S DEFAULTS, NO CACHE\tRATIO\tAIM", r.Lines, func(l line) ([]string, *bool) {
		peer := ""
		if l.Peer != nil {
			peer = l.Peer.String()
		}
		return []string{l.Figure, l.Ours.String(), peer, l.ratio(), l.Aim}, l.Holds
	})
	if err != nil {
		return err
	}
	_, _ = fmt.Fprintln(out)
	for _, l := range r.Lines {
		_, _ = fmt.Fprintf(out, "%s: %s\n", l.Name, l.Ours.Taken)
		if l.Ours.First > 0 {
			_, _ = fmt.Fprintf(out, "%s: the first after %.1f s\n", l.Name, l.Ours.First)
		}
		if l.Peer != nil {
			_, _ = fmt.Fprintf(out, "%s, upstream's defaults: %s\n", l.Name, l.Peer.Taken)
		}
		for _, note := range l.Notes {
			_, _ = fmt.Fprintf(out, "%s: %s\n", l.Name, note)
		}
	}
	return nil
}
