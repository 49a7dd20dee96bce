package record

// What happened while a test ran, on one clock: which entries there are, which
// of them are a test's, and how many of them are kept.

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ccmlab/ccmlab/lab/conformance/internal/plaintext"
)

// Source is who tells of something.
type Source string

// Sources, in the order in which they are shown.
const (
	SourceStep    Source = "step"    // the suite: what it did, and what it waited for
	SourceCall    Source = "call"    // the cloud: a call by the CCM
	SourceNode    Source = "node"    // a change of a Node
	SourceService Source = "service" // a change of a Service
	SourceEvent   Source = "event"   // a Kubernetes Event
	SourceLog     Source = "log"     // a line of the CCM's log
)

// Sources are all of them.
var Sources = []Source{SourceStep, SourceCall, SourceNode, SourceService, SourceEvent, SourceLog}

// Entry is something that happened.
type Entry struct {
	// At is when it began, by this machine's clock. Took is 0 where only one moment is known.
	At      time.Time
	Took    time.Duration
	Source  Source
	Subject string // what it is about; may be ""
	Text    string
	Failed  bool
	// Times is how often in a row it happened, the last time at Last.
	Times int
	Last  time.Time
	// Beside says that it may belong to another test, which ran at the same time.
	Beside bool
}

// Timeline is what happened from a test's begin to its end.
type Timeline struct {
	Began   time.Time
	Took    time.Duration
	Entries []Entry
	// LeftOut is how many entries were left out after the first Head entries.
	LeftOut, Head int
}

const (
	// KeptOfFailed is how many entries of a failed test are kept.
	KeptOfFailed = 2000
	// KeptOfPassed is how many entries of a passed test are kept.
	KeptOfPassed = 600
	// keptBeside is how many of them may belong to other tests as well.
	keptBeside = 200
	// MaxTextLength is how many characters of a text are kept.
	MaxTextLength = 400
)

// Cut leaves so many entries at most, of the begin and the end as many.
func (t *Timeline) Cut(most int) {
	n := len(t.Entries)
	if n <= most {
		return
	}
	t.Head = most / 2
	t.LeftOut += n - most
	t.Entries = slices.Concat(t.Entries[:t.Head], t.Entries[n-(most-t.Head):])
}

// item is an entry that is not yet in anybody's timeline.
type item struct {
	Entry
	owner *Trace // whose it is; nil if that is to be found out
}

// displayText returns what can be shown of a text, on one line and no longer than MaxTextLength.
func displayText(text string) string {
	text = plaintext.Lines([]string{strings.Join(strings.Fields(text), " ")})[0]
	if len(text) <= MaxTextLength { // Bytes are at least as many as characters.
		return text
	}
	if r := []rune(text); len(r) > MaxTextLength {
		return string(r[:MaxTextLength]) + " …"
	}
	return text
}

// ownership finds the tests whose things a text is about. Names have a serial number of this run in
// them, and the cloud's IDs are known from the test that made them.
type ownership struct {
	serial  *regexp.Regexp
	serials map[int64]*Trace
	ids     map[string]*Trace
	names   map[string]string // of IDs
}

func newOwnership(run string) ownership {
	return ownership{
		serial:  regexp.MustCompile("-" + regexp.QuoteMeta(run) + "-([0-9]+)"),
		serials: map[int64]*Trace{}, ids: map[string]*Trace{}, names: map[string]string{},
	}
}

func (o *ownership) ownersOf(texts ...string) (all []*Trace) {
	add := func(t *Trace) {
		if t != nil && !slices.Contains(all, t) {
			all = append(all, t)
		}
	}
	for _, text := range texts {
		for _, m := range o.serial.FindAllStringSubmatch(text, -1) {
			if n, err := strconv.ParseInt(m[1], 10, 64); err == nil {
				add(o.serials[n])
			}
		}
		for word := range strings.FieldsFuncSeq(text, isIDSeparator) {
			add(o.ids[strings.Trim(word, ".")])
		}
	}
	return all
}

func isIDSeparator(r rune) bool {
	return (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && r != '-' && r != '_' && r != '.'
}

// timelineOf chooses the items of a test's timeline: those about the test's things, and those about no
// test's. The latter may be other tests' as well, if some ran at the same time.
func (o *ownership) timelineOf(t *Trace, all []*item) *Timeline {
	line := &Timeline{Began: t.began, Took: t.ended.Sub(t.began)}
	beside := 0
	for _, i := range all {
		if i.At.Before(t.began) || i.At.After(t.ended) {
			continue
		}
		e := i.Entry
		switch owners := o.ownersOf(e.Subject, e.Text); {
		case i.owner != nil && i.owner != t, i.owner == nil && len(owners) > 0 && !slices.Contains(owners, t):
			continue
		case i.owner == nil && len(owners) == 0 && !t.alone:
			e.Beside = true
		}
		if name := o.names[e.Subject]; name != "" {
			e.Subject += " (" + name + ")"
		}
		line.Entries = append(line.Entries, e)
	}
	slices.SortStableFunc(line.Entries, func(a, b Entry) int { return a.At.Compare(b.At) })
	line.Entries = slices.DeleteFunc(mergeRepeats(line.Entries), func(e Entry) bool {
		if e.Beside {
			beside++
		}
		return e.Beside && beside > keptBeside
	})
	line.LeftOut, line.Head = max(0, beside-keptBeside)+t.lost, len(line.Entries)
	if t.failed {
		line.Cut(KeptOfFailed)
	} else {
		line.Cut(KeptOfPassed)
	}
	return line
}

// mergeRepeats makes one entry of equal ones that a source has told in a row.
func mergeRepeats(entries []Entry) []Entry {
	var out []Entry
	latest := map[Source]int{} // where in out
	for _, e := range entries {
		i, before := latest[e.Source]
		if before && e.Source != SourceStep && isRepeat(out[i], e) {
			out[i].Times, out[i].Last = max(out[i].Times, 1)+1, e.At
			continue
		}
		latest[e.Source] = len(out)
		out = append(out, e)
	}
	return out
}

func isRepeat(a, b Entry) bool {
	return a.Subject == b.Subject && a.Text == b.Text && a.Failed == b.Failed && a.Beside == b.Beside
}

// outcomeText is what is added to a step's text when the step is over.
func outcomeText(err error, detail string) string {
	switch {
	case err != nil:
		return fmt.Sprintf(": %v", err)
	case detail != "":
		return ": " + detail
	}
	return ""
}
