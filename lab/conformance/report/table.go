package report

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/ccmlab/ccmlab/lab/conformance"
)

// Figure is how soon a CCM initialises its Nodes, as `make bench-ccm` measures it with -o json.
type Figure struct {
	// CCM is the program, and Command what measures it again.
	CCM     string `json:"ccm"`
	Command string `json:"command"`
	Size    struct {
		Nodes int `json:"nodes"`
	} `json:"size"`
	Lines []struct {
		Name string `json:"name"`
		Ours struct {
			Seconds float64 `json:"seconds"`
			Left    int     `json:"left"`
			Taken   struct {
				Calls int `json:"calls"`
			} `json:"taken"`
		} `json:"ours"`
	} `json:"lines"`
}

// WriteTable writes what came out for several CCMs as Markdown: a table, and for each what it lacks and what was
// found in it. Figures are matched with the reports by the programs' names.
func WriteTable(w io.Writer, reports []*conformance.Report, figures []Figure) error {
	t := &table{w: w}
	t.writeLine("# Judged CCMs")
	t.writeLine("")
	t.writeLine("Core tests that passed, of those that were asked, and extended ones. `lab conformance table` has written this from")
	t.writeLine("the reports of the runs below; what the failures of another cloud's CCM mean is on its")
	t.writeLine("[dialect's page](../README.md#a-ccm-of-another-cloud).")
	t.writeLine("")
	t.writeCells("CCM", "judged on")
	for _, p := range conformance.Profiles {
		t.writeCells(string(p))
	}
	t.endRow()
	t.writeLine("%s", strings.Repeat("|---", len(conformance.Profiles)+2)+"|")
	for _, r := range reports {
		t.writeCells(
			implementationTitle(r.Implementation),
			fmt.Sprintf("%s, %s %s", r.Date.Format("2006-01-02"), r.Cluster.Name, r.Cluster.Version),
		)
		for _, name := range conformance.Profiles {
			t.writeCells(profileScore(r, name))
		}
		t.endRow()
	}
	for _, r := range reports {
		t.describeCCM(r, figures)
	}
	return t.err
}

// table keeps the first error.
type table struct {
	w   io.Writer
	err error
}

func (t *table) writef(format string, args ...any) {
	if t.err == nil {
		_, t.err = fmt.Fprintf(t.w, format, args...)
	}
}

func (t *table) writeLine(format string, args ...any) { t.writef(format+"\n", args...) }

func (t *table) writeCells(all ...string) {
	for _, cell := range all {
		t.writef("| %s ", strings.ReplaceAll(cell, "|", `\|`))
	}
}

func (t *table) endRow() { t.writeLine("|") }

func implementationTitle(i conformance.Identity) string {
	return strings.TrimSpace(i.Name + " " + i.Version)
}

// profileScore is how many tests of a profile passed: "13/13, 7/7".
func profileScore(r *conformance.Report, name conformance.Profile) string {
	at := slices.IndexFunc(r.Profiles, func(p conformance.ProfileReport) bool { return p.Name == name })
	if at < 0 {
		return "–"
	}
	var all []string
	for _, s := range []*conformance.Summary{r.Profiles[at].Core, r.Profiles[at].Extended} {
		if s == nil || s.Statistics.Asked() == 0 {
			all = append(all, "–")
			continue
		}
		all = append(all, fmt.Sprintf("%d/%d", s.Statistics.Passed, s.Statistics.Asked()))
	}
	return strings.Join(all, ", ")
}

// describeCCM says of one CCM how it was judged, what it failed, what it was not asked, and how fast it is.
func (t *table) describeCCM(r *conformance.Report, figures []Figure) {
	t.writeLine("\n## %s\n", implementationTitle(r.Implementation))
	t.writeLine("    %s\n", cmp.Or(r.Command, "lab conformance"))
	t.writeLine("It %s; the run took %.0f s.\n", r.Verdict(), r.Seconds)
	failed := func(what string, match func(conformance.TestReport) bool) {
		var ids []string
		for _, test := range r.Tests {
			if match(test) {
				ids = append(ids, "`"+test.ID+"`")
			}
		}
		if len(ids) > 0 {
			t.writeLine("- %s: %s", what, strings.Join(ids, ", "))
		}
	}
	failed("Failed of what is required", func(test conformance.TestReport) bool {
		return test.Required && test.Result == conformance.Failed
	})
	failed("Failed of what it does not claim", func(test conformance.TestReport) bool {
		return !test.Required && test.Result == conformance.Failed
	})
	failed("Blocked by those", func(test conformance.TestReport) bool {
		return test.Result == conformance.Blocked && test.BlockedBy != ""
	})
	failed("Proved nothing: a fault was not made", func(test conformance.TestReport) bool {
		return test.Result == conformance.Blocked && test.BlockedBy == ""
	})
	for _, what := range slices.Sorted(maps.Keys(r.Unsupported)) {
		t.writeLine("- Not asked, `%s`: %s", what, r.Unsupported[what])
	}
	if n := len(r.Crashes); n > 0 {
		t.writeLine("- Ended by itself, times: %d", n)
	}
	for _, f := range figures {
		if f.CCM == r.Implementation.Name {
			t.describeFigure(f)
		}
	}
}

func (t *table) describeFigure(f Figure) {
	for _, l := range f.Lines {
		if l.Name != "init" {
			continue
		}
		took := fmt.Sprintf("%.1f s", l.Ours.Seconds)
		if l.Ours.Left > 0 {
			took = fmt.Sprintf("%d left after %.0f s", l.Ours.Left, l.Ours.Seconds)
		}
		t.writeLine("- %d Nodes initialised, its own defaults, each call 20 ms late: %s, %d calls (`%s`)",
			f.Size.Nodes, took, l.Ours.Taken.Calls, f.Command)
	}
}
