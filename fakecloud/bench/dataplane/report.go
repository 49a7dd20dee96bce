package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/ccmlab/ccmlab/fakecloud/bench/harness"
)

// report is what is printed.
type report struct {
	Quick   bool              `json:"quick"`
	Machine harness.Machine   `json:"machine"`
	Size    size              `json:"size"`
	Peers   map[string]string `json:"peers"` // versions
	Rows    []row             `json:"rows"`
	Notes   []string          `json:"notes,omitempty"`
}

// Table shows the report.
func (r *report) Table() harness.Table {
	s := r.Size
	t := harness.Table{
		Head: []string{
			r.Machine.String(),
			fmt.Sprintf("size     %s each; %d long transfers; else %d clients, "+
				"requests of %d bytes, answers of %d, %s requests/s when paced;",
				s.Period, s.Streams, s.Clients, requestSize, answerSize, harness.Grouped(float64(s.Rate))),
			fmt.Sprintf("         %d datagrams of each client under way; %s idle connections; %d balancers restarted; "+
				"balancers, backends and clients share the cores",
				s.Window, harness.Grouped(float64(s.Idle)), s.Balancers),
		},
		Columns: "FIGURE\tPROXY\tHAPROXY\tHAPROXY SPLICE-AUTO\tNGINX\tRATIO\tAIM\tNETWORK\tIPVS\tDIRECT\tRATIO",
	}
	for _, name := range slices.Sorted(maps.Keys(r.Peers)) {
		t.Head = append(t.Head, fmt.Sprintf("peer     %s: version %s", name, r.Peers[name]))
	}
	if r.Quick {
		t.Head = append(t.Head, harness.QuickHead)
	}
	for _, note := range r.Notes {
		t.Head = append(t.Head, "note     "+note)
	}
	for _, row := range r.Rows {
		t.Rows = append(t.Rows, harness.Row{Cells: []string{
			row.Figure, row.Shown[fakecloud], row.Shown[haproxy], row.Shown[haproxySplice], row.Shown[nginx],
			row.ratioText(haproxy, haproxySplice, nginx), row.Aim,
			row.Shown[network], row.Shown[ipvs], row.Shown[direct], row.ratioText(ipvs, direct),
		}, Holds: row.Holds})
		for _, note := range row.Notes {
			t.Notes = append(t.Notes, row.Name+": "+note)
		}
	}
	return t
}

// ratioText is the ratios to these contenders, in the order of the columns.
func (r row) ratioText(names ...string) string {
	var all []string
	for _, name := range names {
		if ratio, ok := r.Ratios[name]; ok {
			all = append(all, fmt.Sprintf("%.2f×", ratio))
		}
	}
	return strings.Join(all, " / ")
}
