package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sync"
	"text/tabwriter"

	"github.com/ccmlab/ccmlab/lab/conformance/mutants"
	"github.com/ccmlab/ccmlab/lab/conformance/mutants/mutation"
)

// What became of a mutant.
const (
	resultCaught   = "caught"
	resultSurvived = "survived"
	// resultUnreached survives as well: no test comes where it would make a difference.
	resultUnreached = "not reached"
)

// result says what became of a mutant that was made mechanically.
type result struct {
	ID      string  `json:"id"`
	Result  string  `json:"result"`
	By      string  `json:"by,omitempty"` // the test that failed
	Line    int     `json:"line"`
	What    string  `json:"what"`
	Seconds float64 `json:"seconds"`
}

// resultFile has a line for each result, written at once: what is judged is kept, whatever happens.
type resultFile struct {
	mu   sync.Mutex
	file *os.File
	last map[string]result // by ID
}

func (f *resultFile) add(r result) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last[r.ID] = r
	line, err := json.Marshal(r)
	if err != nil {
		return err
	}
	_, err = f.file.Write(append([]byte("\n"), line...)) // The line before may have been cut short.
	return err
}

func (f *resultFile) close() error { return f.file.Close() }

// printMutants prints a list of mutants.
func printMutants(w io.Writer, all []mutation.Mutant, equivalents mutants.Equivalents) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(table, "MUTANT\tLINE\tOF")
	for _, m := range all {
		what := m.What
		if reason := equivalents.ReasonFor(m.ID); reason != "" {
			what += "  (equivalent: " + reason + ")"
		}
		_, _ = fmt.Fprintf(table, "%s\t%d\t%s\n", m.ID, m.Line, what)
	}
	return table.Flush()
}

// summarize prints what became of the mutants. What nobody has explained, and no test has caught, is
// an error, as is an explanation of what a test did catch.
func summarize(
	w io.Writer, set *mutation.Set, chosen []mutation.Mutant, results map[string]result,
	equivalents mutants.Equivalents,
) (problems []error) {
	counts := map[string]int{}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(table, "\nMUTANT\tLINE\tRESULT\tSECONDS\tOF")
	for _, m := range chosen {
		r, judged := results[m.ID]
		explained := equivalents.ReasonFor(m.ID) != ""
		switch {
		case explained && r.Result == resultCaught:
			problems = append(problems, fmt.Errorf("%s is declared equivalent, and %s catches it", m.ID, r.By))
			fallthrough
		case explained:
			counts["explained"]++
			continue
		case !judged:
			counts["not judged"]++
			continue
		}
		counts[r.Result]++
		if r.Result != resultCaught {
			problems = append(problems, fmt.Errorf("%s %s: %s:%d: %s", r.Result, m.ID, m.File, m.Line, m.What))
		}
		_, _ = fmt.Fprintf(table, "%s\t%d\t%s %s\t%.0f\t%s\n", m.ID, m.Line, r.Result, r.By, r.Seconds, m.What)
	}
	_ = table.Flush()
	_, _ = fmt.Fprintf(w, "\n%d mutants made, %d of them do not compile; of the %d chosen: %d caught, %d survived, "+
		"%d not reached by any test, %d explained as equivalent, %d not judged\n",
		len(set.Mutants)+len(set.Broken), len(set.Broken), len(chosen), counts[resultCaught], counts[resultSurvived],
		counts[resultUnreached], counts["explained"], counts["not judged"])
	return problems
}
