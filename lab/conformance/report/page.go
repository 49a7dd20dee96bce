package report

// The report as people read it: one HTML page that needs nothing else, with what
// happened in each test on one clock. Whatever is in it may come from a hostile
// log: html/template escapes it, and the page's own policy runs no script but
// its own.

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	_ "embed" // The page's parts.
	"encoding/base64"
	"fmt"
	"html/template"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ccmlab/ccmlab/lab/conformance"
	"github.com/ccmlab/ccmlab/lab/conformance/record"
)

//go:embed page/page.html
var pageHTML string

//go:embed page/page.css
var pageCSS string

//go:embed page/page.js
var pageJS string

// maxRows is how many entries all timelines of a page have together: a row is
// 200 bytes or so, and 1 KB at most.
const maxRows = 20_000

// HTML is the report as a page.
func HTML(r *conformance.Report) ([]byte, error) {
	p := newPage(r)
	var out bytes.Buffer
	err := pageTemplate.Execute(&out, p)
	return out.Bytes(), err
}

var pageTemplate = template.Must(template.New("page").Funcs(template.FuncMap{
	"links": splitLinks, "seconds": func(s float64) string { return formatDecimal(s, 1) },
}).Parse(pageHTML))

// page is what the template is filled with.
type page struct {
	*conformance.Report
	CSS     template.CSS
	JS      template.JS
	Policy  string
	Verdict string
	Good    bool
	Tests   []pageTest
	Kinds   []kind
	Missing []missing // declared unsupported
	Rows    int
	MaxRows int
}

type missing struct{ Name, Why string }

// kind of entry, as it is shown.
type kind struct {
	Class, Name, Title string
	of                 record.Source
}

var kinds = []kind{
	{"s", "suite", "what the suite did and waited for", record.SourceStep},
	{"c", "call", "calls of the cloud by the CCM", record.SourceCall},
	{"n", "node", "changes of Nodes", record.SourceNode},
	{"v", "service", "changes of Services", record.SourceService},
	{"e", "event", "Kubernetes Events", record.SourceEvent},
	{"l", "log", "the CCM's log", record.SourceLog},
}

type pageTest struct {
	conformance.TestReport
	Class   string // of its result
	Word    string
	Open    bool
	Rows    []row
	Lanes   []lane
	Ticks   []tick
	LeftOut int
	Beside  bool // some of it may be other tests'
	Height  int
}

// row is an entry.
type row struct {
	At, Kind, Class, Subject, Text, More string
	Gap                                  int // left out before it
}

func newPage(r *conformance.Report) page {
	p := page{Report: r, CSS: template.CSS(pageCSS), JS: template.JS(pageJS), Kinds: kinds, MaxRows: maxRows, Good: r.Passed()} //nolint:gosec // Our own.
	p.Policy = fmt.Sprintf("default-src 'none'; style-src '%s'; script-src '%s'", cspHash(pageCSS), cspHash(pageJS))
	p.Verdict = r.Verdict()
	for _, f := range slices.Sorted(maps.Keys(r.Unsupported)) {
		p.Missing = append(p.Missing, missing{f, r.Unsupported[f]})
	}
	most := rowsEach(r)
	for _, t := range r.Tests {
		p.Tests = append(p.Tests, pageTestOf(t, r.Timelines[t.ID], most[t.Result == conformance.Failed]))
		p.Rows += len(p.Tests[len(p.Tests)-1].Rows)
	}
	return p
}

func cspHash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
}

// rowsEach is how many entries a failed (true) and another test may have: those
// that failed get theirs first.
func rowsEach(r *conformance.Report) map[bool]int {
	lengths := map[bool][]int{}
	for _, t := range r.Tests {
		if line := r.Timelines[t.ID]; line != nil {
			lengths[t.Result == conformance.Failed] = append(lengths[t.Result == conformance.Failed], len(line.Entries))
		}
	}
	left := maxRows
	each := map[bool]int{true: fairShare(lengths[true], maxRows*2/3)}
	for _, n := range lengths[true] {
		left -= min(n, each[true])
	}
	each[false] = fairShare(lengths[false], left)
	return each
}

func pageTestOf(t conformance.TestReport, line *record.Timeline, most int) pageTest {
	p := pageTest{TestReport: t, Class: string(t.Result), Word: string(t.Result)}
	p.Open = t.Result == conformance.Failed && t.Required
	if t.Result == conformance.Failed && !t.Required {
		p.Class, p.Word = "tolerated", "not required"
	}
	if line == nil || len(line.Entries) == 0 {
		return p
	}
	whole := *line
	whole.Cut(most)
	p.LeftOut = whole.LeftOut
	for i, e := range whole.Entries {
		row := rowOf(e, whole.Began)
		if i == whole.Head {
			row.Gap = whole.LeftOut
		}
		p.Rows, p.Beside = append(p.Rows, row), p.Beside || e.Beside
	}
	p.Lanes, p.Ticks = drawStrip(line)
	p.Height = len(p.Lanes)*laneHeight + ticksHeight
	return p
}

func kindOf(s record.Source) kind {
	i := slices.IndexFunc(kinds, func(k kind) bool { return k.of == s })
	return kinds[max(i, 0)]
}

func rowOf(e record.Entry, began time.Time) row {
	k := kindOf(e.Source)
	r := row{At: formatDecimal(e.At.Sub(began).
		Seconds(), 2), Kind: k.Name, Class: k.Class, Subject: e.Subject, Text: e.Text}
	if e.Failed {
		r.Class += " x"
	}
	if e.Beside {
		r.Class += " b"
	}
	if e.Took >= 10*time.Millisecond {
		r.More = "took " + formatDecimal(e.Took.Seconds(), 2) + " s"
	}
	if e.Times > 1 {
		r.More = strings.TrimPrefix(
			fmt.Sprintf("%s, %d times, the last at %s", r.More, e.Times, formatDecimal(e.Last.Sub(began).Seconds(), 2)),
			", ",
		)
	}
	return r
}

func formatDecimal(v float64, places int) string { return strconv.FormatFloat(v, 'f', places, 64) }

// The strip is a picture of the timeline: a lane for each kind, a mark for each
// entry. It is so many units wide, and has one mark in a unit at most.
const (
	stripWidth, laneHeight, ticksHeight = 1000, 16, 16
	mostTicks                           = 10
)

// lane of a strip: marks, those of what failed, and how long things took.
type lane struct {
	Class, Name      string
	Y                int // of its middle
	Marks, Bad, Bars string
}

type tick struct {
	X    int
	Text string
}

func drawStrip(line *record.Timeline) ([]lane, []tick) {
	whole := max(line.Took.Seconds(), 0.01)
	at := func(t time.Time) int {
		return min(max(int(t.Sub(line.Began).Seconds()/whole*stripWidth), 0), stripWidth)
	}
	var lanes []lane
	for _, k := range kinds {
		l := lane{Class: k.Class, Name: k.Name, Y: len(lanes)*laneHeight + laneHeight/2}
		seen := map[[2]int]bool{}
		for _, e := range line.Entries {
			if kindOf(e.Source).of == k.of {
				l.addMark(e, at, seen)
			}
		}
		if len(seen) > 0 {
			lanes = append(lanes, l)
		}
	}
	var ticks []tick
	for s := 0.0; s <= whole; s += tickStep(whole) {
		ticks = append(ticks, tick{int(s / whole * stripWidth), strconv.FormatFloat(s, 'f', -1, 32) + " s"})
	}
	return lanes, ticks
}

// addMark draws an entry, unless there is one of its kind in its place.
func (l *lane) addMark(e record.Entry, at func(time.Time) int, seen map[[2]int]bool) {
	for _, then := range []time.Time{e.At, e.Last} {
		place := [2]int{at(then), 0}
		if e.Failed {
			place[1] = 1
		}
		if then.IsZero() || seen[place] {
			continue
		}
		seen[place] = true
		mark := fmt.Sprintf("M%d %dv8", place[0], l.Y-4)
		if e.Failed {
			l.Bad += mark
		} else {
			l.Marks += mark
		}
	}
	if from, to := at(e.At), at(e.At.Add(e.Took)); to > from && len(l.Bars) < 8<<10 {
		l.Bars += fmt.Sprintf("M%d %dH%d", from, l.Y, to)
	}
}

// tickStep between ticks: round, and so that there are not too many.
func tickStep(whole float64) float64 {
	for _, s := range []float64{0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600} {
		if whole/s <= mostTicks {
			return s
		}
	}
	return whole
}

// link is a part of a text; URL is "" for what is none.
type link struct{ Text, URL string }

var urlPattern = regexp.MustCompile(`https?://[^\s<>"')\]]*[^\s<>"')\].,;:]`)

// splitLinks finds the addresses in a text.
func splitLinks(text string) (parts []link) {
	for text != "" {
		found := urlPattern.FindStringIndex(text)
		if found == nil {
			return append(parts, link{Text: text})
		}
		if found[0] > 0 {
			parts = append(parts, link{Text: text[:found[0]]})
		}
		url := text[found[0]:found[1]]
		parts, text = append(parts, link{url, url}), text[found[1]:]
	}
	return parts
}

// scoreText is how many of the tests that were not skipped have passed, for a table.
func scoreText(s *conformance.Summary) string {
	if s == nil || s.Statistics.Asked() == 0 {
		return "–"
	}
	return fmt.Sprintf("%d/%d", s.Statistics.Passed, s.Statistics.Asked())
}

// profileRow sums a profile up.
type profileRow struct {
	Name                         conformance.Profile
	Core, Extended               string
	CoreIs, ExtendedIs           conformance.Verdict
	NotRequired, Blocked, Missed int
}

// Summaries are the profiles' for the page's table.
func (p page) Summaries() (rows []profileRow) {
	for _, one := range p.Profiles {
		core, extended := cmp.Or(one.Core, &conformance.Summary{}), cmp.Or(one.Extended, &conformance.Summary{})
		rows = append(rows, profileRow{
			Name: one.Name, Core: scoreText(core), Extended: scoreText(extended), CoreIs: core.Result,
			ExtendedIs:  extended.Result,
			NotRequired: len(core.NotRequired) + len(extended.NotRequired),
			Blocked:     core.Statistics.Blocked + extended.Statistics.Blocked,
			Missed:      core.Statistics.Skipped + extended.Statistics.Skipped,
		})
	}
	return rows
}

// fairShare returns how many entries each of several timelines may have, so that they
// have no more than total together: the short ones all of theirs.
func fairShare(lengths []int, total int) int {
	sorted := slices.Clone(lengths)
	slices.Sort(sorted)
	for i, n := range sorted {
		if each := total / (len(sorted) - i); n > each {
			return each
		}
		total -= n
	}
	return cmp.Or(slices.Max(append(sorted, 0)), 1)
}
