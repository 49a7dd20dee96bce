package cli

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

func (a *app) faultsCommand() *cobra.Command {
	k := a.faultKind()
	get := k.getCommand("Show a fault rule", "  fakecloud faults get f-01jd3n9y5c7r -o yaml")
	get.Use, get.Args = "get ID", cobra.ExactArgs(1)
	return groupCommand("faults", "Calls and life cycles that go wrong, on purpose", `  fakecloud faults create --token ccm --status 503 --times 5
  fakecloud faults create --operation listInstances --empty-list
  fakecloud faults create --zone-outage nebula-1a --for 30s
  fakecloud faults list
  fakecloud faults delete --all`,
		k.listCommand(
			"List fault rules, oldest first, with how often each was applied", "  fakecloud faults list -o json",
		),
		get, a.faultsCreate(), a.faultsDelete())
}

func (a *app) faultKind() resourceKind[api.Fault] {
	return resourceKind[api.Fault]{
		app: a, refs: "ID", get: (*client.Client).GetFault,
		list: func(ctx context.Context, c *client.Client, _ string) ([]api.Fault, error) {
			return c.ListFaults(ctx)
		},
		columns: "ID MATCH EFFECT +WHEN HITS +MATCHED AGE",
		row:     a.faultRow,
	}
}

func (a *app) faultsDelete() *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use: "delete ID... | --all", Short: "Lift faults",
		Long: `Lift faults. Calls and resources that they hold are let go of, and instances
that an outage took are started again.`,
		Example: `  fakecloud faults delete f-01jd3n9y5c7r
  fakecloud faults delete --all`, ValidArgsFunction: a.faultKind().completeRefs(),
		RunE: a.withClient(func(cmd *cobra.Command, c *client.Client, args []string) error {
			if all == (len(args) > 0) {
				return misuse("give the IDs of the faults to delete, or --all")
			}
			if all {
				return c.DeleteFaults(cmd.Context())
			}
			return doForEachRef(args, func(id string) error { return c.DeleteFault(cmd.Context(), id) })
		}),
	}
	cmd.Flags().BoolVar(&all, "all", false, "all faults of the project")
	return cmd
}

func (a *app) faultRow(f api.Fault) []string {
	hits := strconv.Itoa(f.Hits)
	if f.Times > 0 {
		hits += "/" + strconv.Itoa(f.Times)
	}
	match := matchText(f.Match)
	if e := f.Effect; match == "" && (e.Stuck || e.Fail != "" || e.Crash || e.ZoneOutage != "") {
		match = "every resource"
	}
	return []string{
		f.ID, cmp.Or(match, "every call"), effectText(f.Effect), whenText(f), hits, strconv.Itoa(f.Matched),
		a.formatAge(f.CreatedAt),
	}
}

// joinNonEmpty joins the parts that are not empty.
func joinNonEmpty(parts ...string) string {
	var there []string
	for _, p := range parts {
		if p != "" {
			there = append(there, p)
		}
	}
	return strings.Join(there, " ")
}

// nameValue is name=value, or empty for the zero value.
func nameValue[T comparable](name string, value T) string {
	var zero T
	if value == zero {
		return ""
	}
	return fmt.Sprintf("%s=%v", name, value)
}

// nameIfSet is the name, or empty if it is not set.
func nameIfSet(name string, set bool) string {
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
	return joinNonEmpty(
		nameValue("token", m.Token), nameValue("operation", strings.Join(m.Operations, "|")),
		nameValue("resource", m.Resource), nameValue("tag", m.Tag), nameValue("kind", strings.Join(kinds, "|")),
		nameValue("project", m.Project),
	)
}

func effectText(e api.FaultEffect) string {
	ms := func(n int) time.Duration { return time.Duration(n) * time.Millisecond }
	throttle := ""
	if e.Throttle != nil {
		throttle = fmt.Sprintf("throttle=%g/s", e.Throttle.PerSecond)
	}
	return joinNonEmpty(nameValue("delay", ms(e.DelayMilliseconds)), nameValue(
		"jitter", ms(e.JitterMilliseconds),
	), nameIfSet("carry-out", e.CarryOut),
		nameValue("status", e.Status), nameValue("retry-after", time.Duration(e.RetryAfterSeconds)*time.Second),
		nameValue("project", e.Project),
		nameIfSet("hang", e.Hang), nameIfSet("drop", e.Drop), nameIfSet("body", e.Body != nil),
		nameIfSet("empty-list", e.EmptyList), throttle,
		nameIfSet("stale", e.Stale), nameValue("partial-list", e.PartialList),
		nameValue("omit-field", strings.Join(e.OmitFields, "|")),
		nameIfSet("stuck", e.Stuck), nameIfSet("fail", e.Fail != ""), nameIfSet("crash", e.Crash),
		nameValue("zone-outage", e.ZoneOutage))
}

func whenText(f api.Fault) string {
	at := func(t *time.Time) string {
		if t == nil {
			return ""
		}
		return t.UTC().Format("15:04:05")
	}
	return cmp.Or(joinNonEmpty(nameValue("skip", f.Skip), nameValue("every", f.Every), nameValue(
		"probability", f.Probability,
	), nameValue("seed", f.Seed),
		nameValue("from", at(f.From)), nameValue("until", at(f.Until)), nameIfSet("spent", f.Spent)), "always")
}
