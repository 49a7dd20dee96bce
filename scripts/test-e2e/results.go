package main

import (
	"fmt"
	"io"
	"regexp"
	"strings"
	"time"

	"github.com/ccmlab/ccmlab/lab/process"
)

// resultPrinter reads ginkgo's output and prints one line for each test that has ended.
type resultPrinter struct {
	process.LineWriter
	w       io.Writer
	started time.Time
	// result and seconds are of the test whose name is on the next line.
	result, seconds string
	// explains is whether the reason of a test that was skipped or has failed is yet to come.
	explains bool
	// summarizes is whether ginkgo's list of failures has begun, which is printed as it is.
	summarizes bool
	count      map[string]int
}

func newResultPrinter(w io.Writer) *resultPrinter {
	p := &resultPrinter{w: w, started: time.Now(), count: map[string]int{}}
	p.Tell = func(line string) error {
		p.readLine(line)
		return nil
	}
	return p
}

var (
	// resultLine is what ginkgo prints before a test's name: "• [12.345 seconds]", "• [FAILED] [0.1
	// seconds]", or "S [SKIPPED] [0.1 seconds]".
	resultLine = regexp.MustCompile(`^[•SP!] (?:\[([A-Z ]+)\] )*\[([0-9.]+) seconds\]$`)
	// reasonLine ends what ginkgo prints of a test that was skipped or has failed.
	reasonLine = regexp.MustCompile(`^  \[[A-Z ]+\] (.+)$`)
	// eventLine looks like a reason, and is a part of the test's timeline.
	eventLine = regexp.MustCompile(`^  \[[A-Z ]+\] in \[`)
	// nameNoise is what a test's name has beside the name: where the test ended, and its labels.
	nameNoise = regexp.MustCompile(`\[It\] | \[sig-[^][]*\]$`)
)

func (p *resultPrinter) readLine(line string) {
	if p.summarizes = p.summarizes || strings.HasPrefix(line, "Summarizing "); p.summarizes {
		_, _ = fmt.Fprintln(p.w, line)
		return
	}
	if p.result != "" {
		p.printResult(nameNoise.ReplaceAllString(line, ""))
		return
	}
	if m := reasonLine.FindStringSubmatch(line); m != nil && p.explains && !eventLine.MatchString(line) {
		_, _ = fmt.Fprintf(p.w, "%25s%s\n", "", m[1])
		p.explains = false
		return
	}
	m := resultLine.FindStringSubmatch(line)
	if m == nil {
		return
	}
	p.seconds = m[2]
	switch m[1] {
	case "", "SLOW TEST":
		p.result = "passed"
	case "SKIPPED", "PENDING":
		p.result = "skipped"
	default:
		p.result = "failed"
	}
}

// printResult prints the result of the test with that name.
func (p *resultPrinter) printResult(name string) {
	p.count[p.result]++
	_, _ = fmt.Fprintf(p.w, "%4.0fs  %-7s %7ss  %s\n", time.Since(p.started).Seconds(), p.result, p.seconds, name)
	p.explains, p.result = p.result != "passed", ""
}

// Summarize prints how many tests have passed, failed and were skipped.
func (p *resultPrinter) Summarize() {
	_, _ = fmt.Fprintf(p.w, "%d passed, %d failed, %d skipped, in %s\n", p.count["passed"], p.count["failed"],
		p.count["skipped"], time.Since(p.started).Round(time.Second))
}
