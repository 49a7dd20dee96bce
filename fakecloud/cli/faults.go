package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

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
		list: func(ctx context.Context, c *client.Client, _ map[string]any) ([]api.Fault, error) {
			return c.ListFaults(ctx)
		},
		create: createBy((*client.Client).CreateFault), completeRequest: checkFault,
		cells: map[string]func(api.Fault) string{
			"MATCH": faultMatch, "HITS": faultHits, "WHEN": api.Fault.TurnsText,
			"EFFECT": func(f api.Fault) string { return f.Effect.Text() },
		},
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

func faultHits(f api.Fault) string {
	if f.Times > 0 {
		return fmt.Sprintf("%d/%d", f.Hits, f.Times)
	}
	return strconv.Itoa(f.Hits)
}

func faultMatch(f api.Fault) string {
	match := f.Match.Text()
	if e := f.Effect; match == "" && (e.Stuck || e.Fail != "" || e.Crash || e.ZoneOutage != "") {
		match = "every resource"
	}
	return cmp.Or(match, "every call")
}

func (a *app) faultsCreate() *cobra.Command {
	cmd := a.faultKind().createCommand(&cobra.Command{
		Use: "create", Short: "Make calls or life cycles go wrong",
		Long: `Make calls or life cycles go wrong.

A fault has an effect, which says what happens; it may have a match, which says
to which calls or resources (without one: to all of the project's), and turns,
which say when.

Effects on calls: a --delay (and --jitter), and one way to end: --status, --dialect-code, --hang,
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
  # an error of another cloud, where this one speaks as it does
  fakecloud faults create --operation 'hcloud POST /v1/load_balancers' --dialect-code conflict --times 3
  # life cycles
  fakecloud faults create --stuck --kind load-balancer
  fakecloud faults create --fail "the host has no disk left" --tag role=worker
  fakecloud faults create --crash --tag name=node-2 --times 1
  fakecloud faults create --zone-outage nebula-1a --for 2m`,
	})
	clikit.CompleteFlagBy(cmd, "operation", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		operations, _ := server.Operations() // None to offer, if any error.
		return operations, cobra.ShellCompDirectiveNoFileComp
	})
	return cmd
}

// effectFlags are the flags of effects, of which a fault has one.
var effectFlags = []string{
	"status", "dialect-code", "hang", "drop", "body", "empty-list", "throttle", "stale", "partial-list", "omit-field",
	"stuck", "fail", "crash", "zone-outage",
}

// checkFault checks the flags together. What it does not check, the cloud does.
func checkFault(cmd *cobra.Command, fields map[string]any, _ *api.Fault) error {
	changed := cmd.Flags().Changed
	given := slices.DeleteFunc(slices.Clone(effectFlags), func(name string) bool { return !changed(name) })
	edits := len(given) == 2 && given[0] == "partial-list" && given[1] == "omit-field"
	times, _ := fields["times"].(int64)
	probability, _ := fields["probability"].(float64)
	switch {
	case len(given) > 1 && !edits:
		return clikit.Usagef("--%s and --%s: a fault has one effect only, beside a delay", given[0], given[1])
	case len(given) == 0 && !changed("delay") && !changed("jitter"):
		return clikit.Usagef(
			"a fault needs an effect: --delay, or one of --%s and --zone-outage",
			strings.Join(effectFlags[:len(effectFlags)-1], ", --"),
		)
	case changed("times") && times < 1:
		return clikit.Usagef("--times %d: give 1 or more, or leave it out", times)
	case changed("probability") && (probability <= 0 || probability > 1):
		return clikit.Usagef("--probability %v: give more than 0 and at most 1", probability)
	case changed("burst") && !changed("throttle"):
		return clikit.Usagef("--burst goes with --throttle")
	}
	return nil
}
