package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/ccmlab/ccmlab/fakecloud/bench/machine"
)

// report is what is printed.
type report struct {
	Quick   bool              `json:"quick"`
	Machine machine.Machine   `json:"machine"`
	Size    size              `json:"size"`
	Peers   map[string]string `json:"peers"` // versions
	Rows    []row             `json:"rows"`
	Notes   []string          `json:"notes,omitempty"`
}

func (r *report) print(out io.Writer, output string) error {
	if output == "json" {
		return machine.PrintJSON(out, r)
	}
	s := r.Size
	_, _ = fmt.Fprintf(out, "machine  %s\n", r.Machine)
	_, _ = fmt.Fprintf(out, "size     medians of %d rounds of %s (idle: one); %d long transfers; else %d clients, requests of %d bytes, answers of %d, %s requests/s when paced;\n",
		s.Rounds, s.Period, s.Streams, s.Clients, requestSize, answerSize, machine.Grouped(float64(s.Rate)))
	_, _ = fmt.Fprintf(out, "         %d datagrams of each client under way; %s idle connections; %d balancers restarted; proxies, backends and clients share the cores\n",
		s.Window, machine.Grouped(float64(s.Idle)), s.Balancers)
	for _, name := range slices.Sorted(maps.Keys(r.Peers)) {
		_, _ = fmt.Fprintf(out, "peer     %s: version %s\n", name, r.Peers[name])
	}
	if r.Quick {
		_, _ = fmt.Fprintln(out, "quick    the sizes are small: this shows that it works, the figures mean nothing")
	}
	for _, note := range r.Notes {
		_, _ = fmt.Fprintln(out, "note    ", note)
	}
	return r.printRows(out)
}

func (r *report) printRows(out io.Writer) error {
	err := machine.PrintTable(out, "FIGURE\tFAKECLOUD\tHAPROXY\tHAPROXY SPLICE-AUTO\tNGINX\tRATIO\tAIM", r.Rows, func(r row) ([]string, *bool) {
		return []string{
			r.Figure, r.Shown[fakecloud], r.Shown[haproxy], r.Shown[haproxySplice], r.Shown[nginx], r.ratioText(),
			r.Aim,
		}, r.Holds
	})
	if err != nil {
		return err
	}
	for _, line := range r.Rows {
		for _, note := range line.Notes {
			_, _ = fmt.Fprintf(out, "%s: %s\n", line.Name, note)
		}
	}
	return nil
}

// ratioText is the ratios, in the order of the columns.
func (r row) ratioText() string {
	var all []string
	for _, name := range peerNames() {
		if ratio, ok := r.Ratios[name]; ok {
			all = append(all, fmt.Sprintf("%.2f×", ratio))
		}
	}
	return strings.Join(all, " / ")
}
