package cli

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

func (a *app) printFaults(cmd *cobra.Command, value any, items []api.Fault) error {
	var rows [][]string
	for _, f := range items {
		hits := strconv.Itoa(f.Hits)
		if f.Times > 0 {
			hits += "/" + strconv.Itoa(f.Times)
		}
		match := matchText(f.Match)
		if e := f.Effect; match == "" && (e.Stuck || e.Fail != "" || e.Crash || e.ZoneOutage != "") {
			match = "every resource"
		}
		rows = append(rows, []string{f.ID, cmp.Or(match, "every call"), effectText(f.Effect), whenText(f), hits, strconv.Itoa(f.Matched), a.age(f.CreatedAt)})
	}
	return a.print(cmd.OutOrStdout(), value, "ID MATCH EFFECT +WHEN HITS +MATCHED AGE", rows)
}

// words joins those that are there.
func words(parts ...string) string {
	var there []string
	for _, p := range parts {
		if p != "" {
			there = append(there, p)
		}
	}
	return strings.Join(there, " ")
}

// word is name=value, or nothing for a value that is not set.
func word[T comparable](name string, value T) string {
	var zero T
	if value == zero {
		return ""
	}
	return fmt.Sprintf("%s=%v", name, value)
}

// flag is the name of what is set.
func flag(name string, set bool) string {
	if !set {
		return ""
	}
	return name
}

func matchText(m api.FaultMatch) string {
	var kinds []string
	for _, k := range m.Kinds {
		kinds = append(kinds, string(k))
	}
	return words(word("token", m.Token), word("operation", strings.Join(m.Operations, "|")), word("resource", m.Resource),
		word("tag", m.Tag), word("kind", strings.Join(kinds, "|")), word("project", m.Project))
}

func effectText(e api.FaultEffect) string {
	ms := func(n int) time.Duration { return time.Duration(n) * time.Millisecond }
	throttle := ""
	if e.Throttle != nil {
		throttle = fmt.Sprintf("throttle=%g/s", e.Throttle.PerSecond)
	}
	return words(word("delay", ms(e.DelayMilliseconds)), word("jitter", ms(e.JitterMilliseconds)), flag("carry-out", e.CarryOut),
		word("status", e.Status), word("retry-after", time.Duration(e.RetryAfterSeconds)*time.Second), word("project", e.Project),
		flag("hang", e.Hang), flag("drop", e.Drop), flag("body", e.Body != nil), flag("empty-list", e.EmptyList), throttle,
		flag("stale", e.Stale), word("partial-list", e.PartialList), word("omit-field", strings.Join(e.OmitFields, "|")),
		flag("stuck", e.Stuck), flag("fail", e.Fail != ""), flag("crash", e.Crash), word("zone-outage", e.ZoneOutage))
}

func whenText(f api.Fault) string {
	at := func(t *time.Time) string {
		if t == nil {
			return ""
		}
		return t.UTC().Format("15:04:05")
	}
	return cmp.Or(words(word("skip", f.Skip), word("every", f.Every), word("probability", f.Probability), word("seed", f.Seed),
		word("from", at(f.From)), word("until", at(f.Until)), flag("spent", f.Spent)), "always")
}
