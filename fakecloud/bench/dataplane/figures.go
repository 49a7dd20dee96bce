package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/ccmlab/ccmlab/fakecloud/bench/harness"
)

// figure measures one row.
type figure struct {
	name, title string
	peers       []string // to compare the proxy with
	// passing also measures the network balancer, IPVS and no balancer.
	passing bool
	measure func(*stage, context.Context, *contender) (sample, error)
	show    func(sample) string
	// key is the value that is compared: the ratio of the proxy's value to the
	// peer's shall be at least aim or, with atMost, at most aim; that of the network balancer's
	// to IPVS's at least passingAim, or at most one by that.
	key    string
	aim    float64
	atMost bool
}

var (
	tcpPeers = []string{haproxy, haproxySplice}
	udpPeers = []string{nginx}
)

// passingAim is for the network balancer beside IPVS.
const passingAim = 0.95

// allPeers are those of both kinds of balancers.
func (f figure) allPeers() []string {
	if f.passing {
		return append(slices.Clone(f.peers), ipvs)
	}
	return f.peers
}

// figures are in the order in which they are measured.
var figures = []figure{
	{
		name: "throughput-down", passing: true, title: "long transfers from backends", peers: tcpPeers,
		measure: (*stage).measureDownload, show: showBytes, key: "bytesPerSecond", aim: 1,
	},
	{
		name: "throughput-up", passing: true, title: "long transfers to backends", peers: tcpPeers,
		measure: (*stage).measureUpload, show: showBytes, key: "bytesPerSecond", aim: 1,
	},
	{
		name: "connections", passing: true, title: "new connections", peers: tcpPeers,
		measure: (*stage).measureConnections, show: showRate, key: "perSecond", aim: 0.7,
	},
	{
		name: "requests", passing: true, title: "small requests, as fast as answered", peers: tcpPeers,
		measure: (*stage).measureRequests, show: showRate, key: "p99", aim: 1.5, atMost: true,
	},
	{
		name: "requests-paced", passing: true, title: "small requests at a fixed rate", peers: tcpPeers,
		measure: (*stage).measurePacedRequests, show: showRate, key: "p99", aim: 1.5, atMost: true,
	},
	{
		name: "idle", title: "memory of an idle connection", peers: tcpPeers,
		measure: (*stage).measureIdle, show: showIdle, key: "bytesPerConnection", atMost: true,
	},
	{
		name: "udp", passing: true, title: "datagrams there and back", peers: udpPeers,
		measure: (*stage).measureDatagrams, show: showDatagrams, key: "perSecond", aim: 0.7,
	},
	{
		name: "restart", title: "listening again after ready", // Only fakecloud keeps its configuration over a restart.
		measure: (*stage).measureRestart, show: showRestart, key: "late", aim: 1, atMost: true,
	},
}

func rowNames() []string {
	var names []string
	for _, f := range figures {
		names = append(names, f.name)
	}
	return names
}

// row is one line of the table. Values holds, by contender, seconds, bytes, counts, counts per
// second, and the cores that the proxy had.
type row struct {
	Name   string            `json:"name"`
	Figure string            `json:"figure"`
	Values map[string]sample `json:"values"`
	Shown  map[string]string `json:"shown"`
	// Ratios are, by peer, of the proxy's value to the peer's, and of the network balancer's to that of
	// ipvs and of direct.
	Ratios map[string]float64 `json:"ratios,omitempty"`
	Aim    string             `json:"aim,omitempty"`
	Holds  *bool              `json:"holds,omitempty"`
	Notes  []string           `json:"notes,omitempty"`
}

// makeRow makes the row of the measured samples. With judge, it says whether the aim is met.
func (f figure) makeRow(s *stage, samples map[string]sample, judge bool) row {
	r := row{
		Name: f.name, Figure: f.title, Values: samples, Shown: map[string]string{}, Ratios: map[string]float64{},
		Aim: f.aimText(), Notes: s.missingNotes(),
	}
	var cores []string
	for _, name := range append([]string{fakecloud, network, direct}, peerNames()...) {
		v, ok := samples[name]
		if !ok {
			continue
		}
		r.Shown[name] = f.show(v)
		cores = append(cores, fmt.Sprintf(
			"%s %.2f (clients %.2f, backends %.2f, others %.2f)", name, v["cores"], v["clientCores"], v["backendCores"],
			v["otherCores"],
		))
		ours, ok := samples[oursBeside(name)]
		if theirs := v[f.key]; ok && theirs > 0 {
			r.Ratios[name] = ours[f.key] / theirs
		}
	}
	for _, c := range s.contenders {
		if n := samples[c.name][failed]; n > 0 {
			r.Notes = append(r.Notes, fmt.Sprintf("%s: %.0f failed: %v", c.name, n, c.failure))
		}
	}
	if len(cores) > 0 {
		r.Notes = append(r.Notes, "cores: "+strings.Join(cores, "; "))
	}
	for name, err := range s.missing {
		r.Shown[name] = shortReason(err)
	}
	if holds, ok := f.meetsAim(s.requestedPeers, samples, r.Ratios); ok && judge {
		r.Holds = &holds
	}
	return r
}

// oursBeside names the balancer of ours that a contender is compared with; "" for one of ours.
func oursBeside(name string) string {
	switch name {
	case fakecloud, network:
		return ""
	case ipvs, direct:
		return network
	}
	return fakecloud
}

// shortReason is the begin of an error's text, for a cell of the table.
func shortReason(err error) string {
	reason, _, _ := strings.Cut(err.Error(), ":")
	reason, _, _ = strings.Cut(reason, " (")
	return reason
}

func (f figure) aimText() string {
	sign := "≥"
	if f.atMost {
		sign = "≤"
	}
	switch {
	case f.aim == 0:
		return ""
	case f.peers == nil:
		return fmt.Sprintf("%s %g s", sign, f.aim)
	}
	return fmt.Sprintf("%s %.1f×", sign, f.aim)
}

// meetsAim compares fakecloud with the best peer. ok is false if that cannot be done: all requested
// peers must have been measured, and none may have failed a client. If fakecloud itself has
// failed clients, it misses the aim, whatever the peers did.
func (f figure) meetsAim(asked []string, samples map[string]sample, ratios map[string]float64) (holds, ok bool) {
	ours := samples[fakecloud]
	if f.aim == 0 {
		return false, false
	}
	if ours == nil || ours[failed] > 0 {
		return false, true
	}
	var all []float64
	if f.peers == nil {
		all = append(all, ours[f.key])
	}
	for _, name := range asked {
		ratio, measured := ratios[name]
		if name == ipvs {
			if measured && samples[ipvs][failed] == 0 && samples[network][failed] == 0 && !f.isPassingWell(ratio) {
				return false, true
			}
			continue // Many kernels have none.
		}
		if !measured || samples[name][failed] > 0 {
			return false, false
		}
		all = append(all, ratio)
	}
	switch {
	case len(all) == 0:
		return false, false
	case f.atMost:
		return slices.Max(all) <= f.aim, true
	}
	return slices.Min(all) >= f.aim, true
}

// isPassingWell tells whether the network balancer does as well as IPVS, by the ratio of their values.
func (f figure) isPassingWell(ratio float64) bool {
	if f.atMost {
		return ratio <= 1/passingAim
	}
	return ratio >= passingAim
}

func showBytes(v sample) string { return harness.Grouped(v["bytesPerSecond"]/1e6) + " MB/s" }

func showRate(v sample) string {
	return fmt.Sprintf(
		"%s/s, p50 %s, p99 %s", harness.Grouped(v["perSecond"]), formatMilliseconds(v["p50"]),
		formatMilliseconds(v["p99"]),
	)
}

func showIdle(v sample) string {
	return fmt.Sprintf("%.1f KiB, %.1f files", v["bytesPerConnection"]/1024, v["filesPerConnection"])
}

func showDatagrams(v sample) string {
	return fmt.Sprintf("%s/s, %s lost", harness.Grouped(v["perSecond"]), harness.Grouped(v[lost]))
}

func showRestart(v sample) string {
	return fmt.Sprintf("%.1f ms (ready after %.0f ms)", v["late"]*1e3, v["ready"]*1e3)
}

// formatMilliseconds formats seconds as milliseconds, with enough decimals for a fast proxy.
func formatMilliseconds(seconds float64) string { return fmt.Sprintf("%.2f ms", seconds*1e3) }
