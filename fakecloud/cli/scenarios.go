package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/scenarios"
)

// scenarioPoll is how often a watched scenario is read: scenarios have no events.
const scenarioPoll = 100 * time.Millisecond

func (a *app) scenariosCommand() *cobra.Command {
	return groupCommand("scenarios", "Faults and actions over time", `  fakecloud scenarios list --available
  fakecloud scenarios run zone-outage --watch
  fakecloud scenarios run incident.yaml`,
		a.scenariosRun(), a.scenariosList(),
		a.scenariosAct("get", "Show a scenario's steps, and how far it has come", (*client.Client).GetScenario),
		a.scenariosAct("stop", "Stop a scenario and lift its faults", (*client.Client).StopScenario),
		a.scenarioKind().deleteByRefCommand(
			"delete", "Stop scenarios and forget them", "  fakecloud scenarios delete s-01jd3n9y5c7r",
			(*client.Client).DeleteScenario,
		))
}

func (a *app) scenarioKind() resourceKind[api.Scenario] {
	return resourceKind[api.Scenario]{
		app: a, refs: "ID", get: (*client.Client).GetScenario,
		list: func(ctx context.Context, c *client.Client, _ string) ([]api.Scenario, error) {
			return c.ListScenarios(ctx)
		},
		columns: "ID NAME STATE STEPS SEED AGE",
		row: func(s api.Scenario) []string {
			done := 0
			for _, step := range s.Steps {
				if step.DoneAt != nil {
					done++
				}
			}
			return []string{
				s.ID, s.Name, string(s.State), fmt.Sprintf("%d/%d", done, len(s.Steps)),
				strconv.FormatInt(s.Seed, 10), a.formatAge(s.StartedAt),
			}
		},
	}
}

func (a *app) scenariosRun() *cobra.Command {
	var watch bool
	var seed int64
	cmd := &cobra.Command{
		Use: "run NAME|FILE", Short: "Run a ready scenario, or that of a YAML file", Args: cobra.ExactArgs(1),
		Long: `Run a ready scenario, or that of a YAML file. Each step has a time, counted from
the begin by the cloud's clock, and is a fault (as of "fakecloud faults create",
but in the API's words) or an action on instances or load balancers:

  name: bad-minute
  seed: 7
  steps:
    - at: 0s
      for: 30s
      fault:
        match: {token: ccm}
        effect: {throttle: {perSecond: 1}}
    - at: 10s
      action: crash           # or start, stop, reboot, terminate
      instances: {tag: role=worker, pick: 1}
    - at: 40s
      action: delete
      loadBalancers: {name: web}

With the same seed, the same instances are picked from those of the same names.
The scenario goes on without this command; a restart of the cloud ends it and
lifts its faults.`,
		Example: `  fakecloud scenarios run flapping-node --watch
  fakecloud scenarios run ./incident.yaml --seed 7`,
		ValidArgsFunction: completeReadyScenarios,
		RunE: a.withClient(func(cmd *cobra.Command, c *client.Client, args []string) error {
			body, err := scenarios.Find(args[0])
			if err != nil {
				return err
			}
			if cmd.Flags().Changed("seed") {
				body.Seed = seed
			}
			started, err := c.RunScenario(cmd.Context(), body)
			if err != nil {
				return err
			}
			if watch {
				return a.watchScenario(cmd, c, started)
			}
			return a.scenarioKind().printOne(cmd, started, nil)
		}),
	}
	a.addOutput(cmd)
	cmd.Flags().
		BoolVar(&watch, "watch", false, "show each step as it is done, until the scenario ends; fails if it does")
	cmd.Flags().Int64Var(&seed, "seed", 0, "what is drawn with (default: the file's, or drawn, and shown)")
	return cmd
}

func completeReadyScenarios(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	ready, _ := scenarios.Available() // None to offer, if any error.
	var names []string
	for _, s := range ready {
		names = append(names, s.Name)
	}
	return names, cobra.ShellCompDirectiveDefault // Or a file.
}

// watchScenario prints each step as it is done, until the scenario ends. As JSON or YAML it
// prints the ended scenario only.
func (a *app) watchScenario(cmd *cobra.Command, c *client.Client, s *api.Scenario) error {
	out, id := cmd.OutOrStdout(), s.ID
	if a.output != "table" {
		out = io.Discard
	}
	printed := map[string]bool{}
	printOnce := func(key, format string, args ...any) error {
		if printed[key] {
			return nil
		}
		printed[key] = true
		_, err := fmt.Fprintf(out, format+"\n", args...)
		return err
	}
	tick := time.NewTicker(scenarioPoll)
	defer tick.Stop()
	if err := printOnce("begin", "scenario %s (%s), seed %d", s.Name, id, s.Seed); err != nil {
		return err
	}
	for {
		for i, step := range s.Steps {
			var err error
			n := strconv.Itoa(i)
			switch {
			case step.Error != "":
				err = printOnce(n, "%s\t%s: failed: %s", step.At, step.Does, step.Error)
			case step.LiftedAt != nil:
				err = printOnce("lifted "+n, "%s\t%s: %s", step.At, step.Does, step.Result)
			case step.DoneAt != nil:
				err = printOnce(n, "%s\t%s: %s", step.At, step.Does, step.Result)
			}
			if err != nil {
				return err
			}
		}
		if s.State != api.ScenarioRunning {
			break
		}
		select {
		case <-cmd.Context().Done():
			return cmd.Context().Err()
		case <-tick.C:
		}
		now, err := c.GetScenario(cmd.Context(), id)
		if err != nil {
			return err
		}
		s = now
	}
	if err := printOnce("end", "%s", s.State); err != nil || a.output == "table" {
		return errors.Join(err, failedScenario(s))
	}
	return errors.Join(a.scenarioKind().printItems(cmd, s, nil), failedScenario(s))
}

func failedScenario(s *api.Scenario) error {
	if s.State == api.ScenarioFailed {
		return fmt.Errorf("scenario %s failed", s.ID)
	}
	return nil
}

func (a *app) scenariosList() *cobra.Command {
	var available bool
	cmd := a.scenarioKind().listCommand(
		"List the scenarios that were run, or those that are ready to", "  fakecloud scenarios list --available",
	)
	listRun := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if available {
			return a.printReadyScenarios(cmd.OutOrStdout())
		}
		return listRun(cmd, args)
	}
	cmd.Flags().BoolVar(&available, "available", false, "those that come with fakecloud; asks no cloud")
	return cmd
}

func (a *app) printReadyScenarios(out io.Writer) error {
	ready, err := scenarios.Available()
	if err != nil {
		return err
	}
	if a.output == "table" {
		for _, s := range ready {
			if _, err := fmt.Fprintf(out, "%s\n%s\n", s.Name, indentLines(s.Description)); err != nil {
				return err
			}
		}
		return nil
	}
	return a.printOutput(out, struct {
		Items []api.ScenarioCreate `json:"items"`
	}{ready}, "", nil)
}

// scenariosAct is a command that calls do for one scenario and prints it.
func (a *app) scenariosAct(
	verb, short string,
	do func(*client.Client, context.Context, string) (*api.Scenario, error),
) *cobra.Command {
	cmd := &cobra.Command{
		Use: verb + " ID", Short: short, Args: cobra.ExactArgs(1),
		Example:           "  fakecloud scenarios " + verb + " s-01jd3n9y5c7r",
		ValidArgsFunction: a.scenarioKind().completeRefs(),
		RunE: a.withClient(func(cmd *cobra.Command, c *client.Client, args []string) error {
			found, err := doForEach(args, func(id string) (*api.Scenario, error) { return do(c, cmd.Context(), id) })
			if err != nil {
				return err
			}
			return a.printSteps(cmd.OutOrStdout(), found[0])
		}),
	}
	a.addOutput(cmd)
	return cmd
}

func (a *app) printSteps(out io.Writer, s api.Scenario) error {
	var rows [][]string
	for _, step := range s.Steps {
		result := "-"
		switch {
		case step.Error != "":
			result = "failed: " + step.Error
		case step.DoneAt != nil:
			result = step.Result
		}
		rows = append(rows, []string{step.At, step.Does, result})
	}
	if a.output == "table" {
		if _, err := fmt.Fprintf(out, "%s (%s) is %s, seed %d\n", s.Name, s.ID, s.State, s.Seed); err != nil {
			return err
		}
	}
	return a.printOutput(out, s, "AT STEP RESULT", rows)
}

func indentLines(text string) string {
	out := ""
	for line := range strings.Lines(text) {
		out += "  " + line
	}
	return out
}
