package cli

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/clikit"
)

func (a *app) clockCommand() *cobra.Command {
	return groupCommand("clock", "The cloud's time; a virtual one can be moved", `  fakecloud clock get
  fakecloud clock advance 5m`,
		a.clockGet(), a.clockAdvance())
}

// clockTimeout is how long a table waits for the cloud's time, and how long that is then
// used without asking again.
const clockTimeout = time.Second

// cloudNow is the cloud's time, or this machine's if the cloud does not answer.
func (a *app) cloudNow() time.Time {
	if time.Since(a.clockReadAt) >= clockTimeout {
		a.clockReadAt, a.cloudTime = time.Now(), nil
		ctx, cancel := context.WithTimeout(a.ctx, clockTimeout)
		defer cancel()
		if c, err := a.newClient(); err == nil {
			if clock, err := c.Clock(ctx); err == nil && clock.Mode == api.ClockVirtual {
				a.cloudTime = &clock.Now
			}
		}
	}
	if a.cloudTime != nil {
		return *a.cloudTime
	}
	return time.Now()
}

// refuseVirtualClock refuses to wait if the clock is virtual: nobody would move it meanwhile.
func (a *app) refuseVirtualClock(ctx context.Context, what string) error {
	c, err := a.newClient()
	if err != nil {
		return clikit.Usage(err)
	}
	clock, err := c.Clock(ctx)
	if err == nil && clock.Mode == api.ClockVirtual {
		return clikit.Usagef(
			"%s: the cloud's clock is virtual and stands still: do without, and move it with `fakecloud clock advance`",
			what,
		)
	}
	return err
}

func (a *app) clockGet() *cobra.Command {
	cmd := &cobra.Command{
		Use: "get", Short: "Show the cloud's time", Example: "  fakecloud clock get -o json",
		RunE: a.withClient(func(cmd *cobra.Command, c *client.Client, _ []string) error {
			clock, err := c.Clock(cmd.Context())
			if err != nil {
				return err
			}
			return a.printOutput(
				cmd, clock, "MODE NOW",
				[][]string{{string(clock.Mode), clock.Now.Format(time.RFC3339Nano)}},
			)
		}),
	}
	a.addOutput(cmd)
	return cmd
}

func (a *app) clockAdvance() *cobra.Command {
	cmd := &cobra.Command{
		Use: "advance DURATION|TIME", Short: "Move a virtual clock, and run what falls due on the way",
		Args: clikit.RequireArguments(1, 1),
		Long: `Move a virtual clock by a duration, or to a time (RFC 3339), and let happen what
falls due on the way, in order. Moving by 0s makes happen what is due now.`,
		Example: `  fakecloud clock advance 5m
  fakecloud clock advance 2027-01-01T00:00:00Z`,
		RunE: a.withClient(func(cmd *cobra.Command, c *client.Client, args []string) error {
			by, notDuration := time.ParseDuration(args[0])
			until, notTime := time.Parse(time.RFC3339, args[0])
			if notDuration != nil && notTime != nil || by < 0 {
				return clikit.Usagef("%q: want a duration such as 5m, or a time such as 2027-01-01T00:00:00Z", args[0])
			}
			var moved *api.ClockAdvanced
			var err error
			if notDuration == nil {
				moved, err = c.AdvanceClock(cmd.Context(), by)
			} else {
				moved, err = c.AdvanceClockTo(cmd.Context(), until)
			}
			if err != nil {
				return err
			}
			if !moved.Complete {
				_, _ = fmt.Fprintf(
					cmd.ErrOrStderr(), "it stopped early, after %d transitions: move it on from there\n",
					moved.Transitions,
				)
			}
			return a.printOutput(cmd, moved, "FROM NOW TRANSITIONS", [][]string{
				{
					moved.From.Format(time.RFC3339Nano), moved.Now.Format(time.RFC3339Nano),
					strconv.Itoa(moved.Transitions),
				},
			})
		}),
	}
	a.addOutput(cmd)
	return cmd
}
