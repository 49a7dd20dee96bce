package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/fakecloud/clikit"
	"github.com/ccmlab/ccmlab/lab"
	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/lifecycle"
	"github.com/ccmlab/ccmlab/lab/publish"
	"github.com/ccmlab/ccmlab/lab/state"
	"github.com/ccmlab/ccmlab/lab/timeline"
	"github.com/ccmlab/ccmlab/lab/watch"
)

// foregroundFlags are the flags of a lab that lives as long as its command. Containers
// need that.
type foregroundFlags struct {
	enabled bool
	ports   []string
}

// addForeground adds --foreground and --publish to cmd.
func addForeground(cmd *cobra.Command) *foregroundFlags {
	f := &foregroundFlags{}
	cmd.Flags().BoolVar(
		&f.enabled, "foreground", false,
		"stay, show what happens, and take the lab down at the end (Ctrl-C, SIGTERM); one that was there before keeps its state, as after lab down --keep-state, or goes on running where it is of containers",
	)
	cmd.Flags().StringArrayVar(
		&f.ports, "publish", nil,
		"with --foreground: `[ADDRESS:]PORT[=[NAMESPACE/]SERVICE[:PORT]]` of this machine that leads to the Service's load balancer (default address 127.0.0.1, default Service "+
			publish.Default+"); can be repeated",
	)
	_ = cmd.RegisterFlagCompletionFunc("publish", cobra.NoFileCompletions)
	return f
}

// listenOnPorts opens the ports of --publish. It is called before anything is started,
// so that a port in use is reported at once.
func (f *foregroundFlags) listenOnPorts(ctx context.Context) (*publish.Listeners, error) {
	if len(f.ports) > 0 && !f.enabled {
		return nil, clikit.Usagef("--publish works as long as the command does: give --foreground too")
	}
	var ports []publish.Port
	for _, text := range f.ports {
		p, err := publish.Parse(text)
		if err != nil {
			return nil, clikit.Usagef("--publish %w", err)
		}
		ports = append(ports, p)
	}
	return publish.Listen(ctx, ports)
}

// watchUntilEnd serves the published ports and prints the timeline. It returns when
// another command takes the lab down. When ctx ends, it ends the lab.
func (f *foregroundFlags) watchUntilEnd(
	ctx context.Context,
	cmd *cobra.Command,
	l *lab.Lab,
	outcome lifecycle.Outcome,
	published *publish.Listeners,
) error {
	kube, err := l.Cluster.Observer()
	if err != nil {
		return err
	}
	serving, stop := context.WithCancel(ctx)
	defer stop()
	served := make(chan error, 1)
	go func() { served <- published.Serve(serving, kube, slog.New(slog.NewTextHandler(os.Stderr, nil))) }()
	for _, text := range f.ports {
		_, _ = fmt.Fprintf(cmd.OutOrStdout(), "  Published     %s\n", text)
	}
	_, _ = fmt.Fprintln(cmd.OutOrStdout())
	// printUpSummary has shown what was before.
	watched := watch.Options{Follow: true, Filter: timeline.Filter{Since: time.Now()}}
	following := watch.Watch(ctx, l, watched, timelinePrinter(cmd.OutOrStdout()), func(text string) {
		_, _ = fmt.Fprintln(cmd.ErrOrStderr(), "lab:", text)
	})
	stop()
	if err := <-served; err != nil && !errors.Is(err, os.ErrClosed) {
		following = errors.Join(following, err)
	}
	if ctx.Err() == nil {
		return following
	}
	return endForegroundLab(context.WithoutCancel(ctx), l, outcome)
}

// endForegroundLab takes the lab down if this command has created it. A lab that
// existed before belongs to somebody, so its state is kept.
func endForegroundLab(ctx context.Context, l *lab.Lab, outcome lifecycle.Outcome) error {
	name := l.State.Name
	say := func(format string, args ...any) { _, _ = fmt.Fprintf(os.Stderr, format+"\n", args...) }
	_, pausable := l.Cluster.(cluster.Pausable)
	var err error
	switch {
	case outcome.Result == lifecycle.Created:
		say("Taking the lab down.")
		_, err = lifecycle.Down(ctx, name)
	case pausable:
		say(
			"Stopping the lab; it was there before, so its state is kept: `lab up --name %[1]s` comes back to it, `lab down --name %[1]s` deletes it.",
			name,
		)
		_, err = lifecycle.Pause(ctx, name)
	default:
		say(
			"The lab goes on running: it was there before, and its state is in its containers; `lab down --name %s` deletes it.",
			name,
		)
	}
	if errors.Is(err, state.ErrNone) {
		return nil
	}
	return err
}
