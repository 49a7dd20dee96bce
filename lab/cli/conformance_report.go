package cli

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/ccmlab/ccmlab/lab/conformance"
	"github.com/ccmlab/ccmlab/lab/ui"
)

// printReport prints a summary of the report for a person.
func printReport(w io.Writer, r *conformance.Report) error {
	p := newParagraphWriter(w)
	p.printLine("")
	var rows [][]string
	var failed, notRequired []string
	blocked := map[string][]string{} // by why
	for _, test := range r.Tests {
		if test.Result == conformance.Blocked {
			blocked[test.WhyBlocked()] = append(blocked[test.WhyBlocked()], test.ID)
		}
	}
	for _, profile := range r.Profiles {
		core, extended := cmp.Or(profile.Core, &conformance.Summary{}), cmp.Or(profile.Extended, &conformance.Summary{})
		rows = append(rows, []string{
			string(profile.Name), formatScore(core), formatScore(extended),
			fmt.Sprint(core.Statistics.Skipped + extended.Statistics.Skipped),
		})
		failed = slices.Concat(failed, core.FailedTests, extended.FailedTests)
		notRequired = slices.Concat(notRequired, core.NotRequired, extended.NotRequired)
	}
	p.printTable([]string{"PROFILE", "CORE", "EXTENDED", "SKIPPED"}, rows)
	printBudget(p, r.Budget)
	p.printLine("")
	if len(notRequired) > 0 {
		p.printLine("failed, not required: %s", strings.Join(notRequired, ", "))
	}
	if len(failed) > 0 {
		p.printLine("failed: %s", strings.Join(failed, ", "))
	}
	for _, why := range slices.Sorted(maps.Keys(blocked)) {
		p.printLine("blocked %s: %s", why, ui.JoinFirst(blocked[why], maxListedBlocked))
	}
	if n := len(r.Crashes); n > 0 {
		p.printLine(
			"the CCM ended by itself, times: %d; the last time it said:\n    %s", n,
			strings.ReplaceAll(r.Crashes[n-1], "\n", "\n    "),
		)
	}
	if n := r.ExitsUnderFault; n > 0 {
		p.printLine(
			"while the suite made the cloud misbehave, or the machine stood still, the CCM ended by itself, times: %d; "+
				"that fails nothing", n,
		)
	}
	p.printLine("%s %s on %s %s, %.0f s", r.Implementation.Name, r.Verdict(), r.Cluster.Name, r.Cluster.Version, r.Seconds)
	return p.err
}

// maxListedBlocked is how many blocked tests are named for each that blocks any: there may be a hundred,
// and each had a line of its own.
const maxListedBlocked = 5

// formatScore returns how many of the tests that were not skipped have passed, or "" if there are none.
func formatScore(s *conformance.Summary) string {
	asked := s.Statistics.Asked()
	if asked == 0 {
		return ""
	}
	text := fmt.Sprintf("%d/%d", s.Statistics.Passed, asked)
	var of []string
	if n := s.Statistics.Blocked; n > 0 {
		of = append(of, fmt.Sprintf("%d blocked", n))
	}
	if n := len(s.NotRequired); n > 0 {
		of = append(of, fmt.Sprintf("%d not required", n))
	}
	if len(of) > 0 {
		text += " (" + strings.Join(of, ", ") + ")"
	}
	return text
}
