package cli

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/clikit"
	"github.com/ccmlab/ccmlab/fakecloud/server"
)

func (a *app) faultsCommand() *cobra.Command {
	k := a.faultKind()
	get := k.getCommand("Show a fault rule", "  fakecloud faults get f-01jd3n9y5c7r -o yaml")
	get.Use, get.Args = "get ID", clikit.RequireArguments(1, 1)
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
  fakecloud faults delete --all`, Args: cobra.ArbitraryArgs, ValidArgsFunction: a.faultKind().completeRefs(),
		RunE: a.withClient(func(cmd *cobra.Command, c *client.Client, args []string) error {
			if all == (len(args) > 0) {
				return clikit.Usagef("give the IDs of the faults to delete, or --all")
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
	match := f.Match.Text()
	if e := f.Effect; match == "" && (e.Stuck || e.Fail != "" || e.Crash || e.ZoneOutage != "") {
		match = "every resource"
	}
	return []string{
		f.ID, cmp.Or(match, "every call"), f.Effect.Text(), f.TurnsText(), hits, strconv.Itoa(f.Matched),
		a.formatAge(f.CreatedAt),
	}
}

// faultFlags are the flags of `faults create`. Those with a field of the same meaning in the
// request set it.
type faultFlags struct {
	api.FaultCreate
	project  string
	throttle api.FaultThrottle
}

func (a *app) faultsCreate() *cobra.Command {
	var f faultFlags
	cmd := &cobra.Command{
		Use: "create", Short: "Make calls or life cycles go wrong",
		Long: `Make calls or life cycles go wrong.

A fault has an effect, which says what happens; it may have a match, which says
to which calls or resources (without one: to all of the project's), and turns,
which say when.

Effects on calls: a --delay (and --jitter), and one way to end: --status, --hang,
--drop, --body, --empty-list, --throttle, --stale, or --partial-list and
--omit-field, which go together. Nothing changes in the cloud by a call that a
fault answers or breaks off, unless --carry-out has it take effect first, and
lose its answer. The match may have --token, --operation, --resource, --tag, --project. The
calls of "fakecloud faults" are never matched: a fault can always be lifted.

Effects on life cycles, one to a fault: --stuck, --fail, --crash, --zone-outage.
The match may have --resource, --tag, --project and, for --stuck and --fail,
--kind.

Turns: --skip leaves the first N alone, --every takes each Nth of the rest,
--probability each of those by chance (the same --seed draws the same), --times
ends it after N; --from, --until, --after and --for are a window of time.

When several faults match a call, the oldest whose turn it is applies. Faults
survive a restart of the cloud.`,
		Example: `  # every third call of the CCM fails; then one in ten, always the same ones
  fakecloud faults create --token ccm --status 503 --every 3
  fakecloud faults create --token ccm --status 500 --probability 0.1 --seed 7
  # slow, throttled, never answered
  fakecloud faults create --operation createLoadBalancer --delay 3s --jitter 2s
  fakecloud faults create --token ccm --throttle 2 --burst 5
  fakecloud faults create --token ccm --hang --after 10s --for 1m
  # a create that took effect, though its answer was lost
  fakecloud faults create --operation createLoadBalancer --drop --carry-out --times 1
  # answers that are not the truth
  fakecloud faults create --operation listInstances --partial-list 1
  fakecloud faults create --operation getInstance,listInstances --stale
  fakecloud faults create --operation getInstance --omit-field addresses
  fakecloud faults create --token ccm --operation getInstance --status 404 --answer-project p-other
  # life cycles
  fakecloud faults create --stuck --kind load-balancer
  fakecloud faults create --fail "the host has no disk left" --tag role=worker
  fakecloud faults create --crash --tag name=node-2 --times 1
  fakecloud faults create --zone-outage nebula-1a --for 2m`,
		RunE: a.withClient(func(cmd *cobra.Command, c *client.Client, _ []string) error {
			if err := f.completeFault(cmd); err != nil {
				return err
			}
			if f.project != "" {
				p, err := resolveProject(cmd.Context(), c, f.project)
				if err != nil {
					return err
				}
				f.Match.Project = p.ID
			}
			made, err := c.CreateFault(cmd.Context(), f.FaultCreate)
			return a.faultKind().printOne(cmd, made, err)
		}),
	}
	a.addOutput(cmd)
	f.addMatch(cmd)
	a.addProjectFlag(cmd, &f.project)
	cmd.Flag("project").Usage = "name or ID of the project whose calls or resources are meant (default: your token's own)"
	f.addTurns(cmd)
	f.addEffects(cmd)
	clikit.CompleteFlagBy(cmd, "operation", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		operations, _ := server.Operations() // None to offer, if any error.
		return operations, cobra.ShellCompDirectiveNoFileComp
	})
	clikit.CompleteFlagBy(cmd, "token", a.tokenKind(new(string)).completeRefs())
	clikit.CompleteFlag(cmd, "kind", "instance", "load-balancer")
	clikit.CompleteFlagBy(cmd, "zone-outage", a.completeZones())
	return cmd
}

func (f *faultFlags) addMatch(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.Match.Token, "token", "", "only calls of the token of this name")
	flags.StringSliceVar(
		&f.Match.Operations, "operation", nil, "only calls of this operation, by its operationId; repeatable",
	)
	flags.StringVar(&f.Match.Resource, "resource", "", "only calls about the resource of this ID, or its life cycle")
	flags.StringVar(
		&f.Match.Tag, "tag", "",
		"only calls about resources with this KEY or KEY=VALUE, or their life cycles; never lists",
	)
	addField(
		cmd, "kind", "strings", "with --stuck or --fail, only instance or load-balancer",
		func(text string) error {
			for kind := range strings.SplitSeq(text, ",") {
				f.Match.Kinds = append(f.Match.Kinds, api.FaultMatchKinds(kind))
			}
			return nil
		},
	)
}

func (f *faultFlags) addTurns(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.IntVar(&f.Times, "times", 0, "how many it is applied to (default: until it is deleted)")
	flags.IntVar(&f.Skip, "skip", 0, "skip the first N that match")
	flags.IntVar(&f.Every, "every", 0, "take each Nth only, from 2")
	flags.Float64Var(&f.Probability, "probability", 0, "take each with this probability, above 0 and at most 1")
	flags.Int64Var(&f.Seed, "seed", 0, "what --probability and --jitter are drawn with (default: drawn, and shown)")
	addTime(cmd, &f.From, "from", "begin, such as 2026-01-02T15:04:05Z, by the cloud's clock")
	addTime(cmd, &f.Until, "until", "end, such as 2026-01-02T15:04:05Z, by the cloud's clock")
	addMilliseconds(cmd, "after", "begin this long from now", func(n int) { f.AfterSeconds = float64(n) / 1000 })
	addMilliseconds(cmd, "for", "end this long after the beginning", func(n int) { f.ForSeconds = float64(n) / 1000 })
}

func addMilliseconds(cmd *cobra.Command, flag, usage string, set func(milliseconds int)) {
	addDuration(cmd, time.Millisecond, time.Millisecond, flag, usage, "give whole milliseconds, 1ms or more", set)
}

func addTime(cmd *cobra.Command, field **time.Time, flag, usage string) {
	addField(cmd, flag, "string", usage, func(text string) error {
		if *field = nil; text == "" {
			return nil
		}
		t, err := time.Parse(time.RFC3339, text)
		if err != nil {
			return clikit.Usagef("--%s %q: give a time such as 2026-01-02T15:04:05Z", flag, text)
		}
		*field = &t
		return nil
	})
}

func (f *faultFlags) addEffects(cmd *cobra.Command) {
	flags, e := cmd.Flags(), &f.Effect
	addMilliseconds(cmd, "delay", "wait this long before anything else", func(n int) { e.DelayMilliseconds = n })
	addMilliseconds(
		cmd, "jitter", "wait up to this much longer, drawn for each call", func(n int) { e.JitterMilliseconds = n },
	)
	flags.IntVar(&e.Status, "status", 0, "answer with this status, 400 to 599")
	addDuration(
		cmd, time.Second, time.Second, "retry-after", "with --status, tell the caller to wait this long",
		"give whole seconds, 1s or more", func(n int) { e.RetryAfterSeconds = n },
	)
	flags.StringVar(
		&e.Project, "answer-project", "",
		"with --status 404, the ID of the project that the answer names (default: the caller's)",
	)
	flags.BoolVar(&e.Hang, "hang", false, "never answer")
	flags.BoolVar(&e.Drop, "drop", false, "reset the connection without an answer")
	addField(cmd, "body", "string", "answer with status 200 and this text", func(text string) error {
		e.Body = &text
		return nil
	})
	flags.StringVar(&e.ContentType, "content-type", "", "with --body, its type (default application/json)")
	flags.BoolVar(&e.EmptyList, "empty-list", false, "answer lists as empty")
	flags.Float64Var(
		&f.throttle.PerSecond, "throttle", 0,
		"let this many calls a second through, and answer the others with 429 and Retry-After",
	)
	flags.IntVar(&f.throttle.Burst, "burst", 0, "with --throttle, let this many through at once (default 1)")
	flags.BoolVar(&e.Stale, "stale", false, "answer reads as they were at first, to the same token and URL")
	flags.IntVar(&e.PartialList, "partial-list", 0, "answer lists with their first N items only")
	flags.StringSliceVar(
		&e.OmitFields, "omit-field", nil,
		"leave this field out of answers, or of each item of a list; a dot leads into a field; repeatable",
	)
	flags.BoolVar(
		&e.CarryOut, "carry-out", false,
		"with --status, --hang, --drop or --body: carry out the request, and lose the answer",
	)
	flags.BoolVar(&e.Stuck, "stuck", false, "resources stay in the transitional state they are in")
	flags.StringVar(&e.Fail, "fail", "", "what would be built ends in error, with this reason")
	flags.BoolVar(&e.Crash, "crash", false, "instances that run go to error")
	flags.StringVar(
		&e.ZoneOutage, "zone-outage", "",
		"the zone of this name is lost: its instances go to error, and come back when the fault ends",
	)
}

// effectFlags are the flags of effects, of which a fault has one.
var effectFlags = []string{
	"status", "hang", "drop", "body", "empty-list", "throttle", "stale", "partial-list", "omit-field", "stuck", "fail",
	"crash", "zone-outage",
}

// completeFault checks the flags together, and completes the fault. What it does not check,
// the cloud does.
func (f *faultFlags) completeFault(cmd *cobra.Command) error {
	changed := cmd.Flags().Changed
	given := slices.DeleteFunc(slices.Clone(effectFlags), func(name string) bool { return !changed(name) })
	edits := len(given) == 2 && given[0] == "partial-list" && given[1] == "omit-field"
	switch {
	case len(given) > 1 && !edits:
		return clikit.Usagef("--%s and --%s: a fault has one effect only, beside a delay", given[0], given[1])
	case len(given) == 0 && !changed("delay") && !changed("jitter"):
		return clikit.Usagef(
			"a fault needs an effect: --delay, or one of --status, --hang, --drop, --body, --empty-list, --throttle, --stale, --partial-list, --omit-field, --stuck, --fail, --crash and --zone-outage",
		)
	case changed("times") && f.Times < 1:
		return clikit.Usagef("--times %d: give 1 or more, or leave it out", f.Times)
	case changed("probability") && (f.Probability <= 0 || f.Probability > 1):
		return clikit.Usagef("--probability %v: give more than 0 and at most 1", f.Probability)
	case changed("burst") && !changed("throttle"):
		return clikit.Usagef("--burst goes with --throttle")
	}
	if changed("throttle") {
		f.Effect.Throttle = &f.throttle
	}
	return nil
}
