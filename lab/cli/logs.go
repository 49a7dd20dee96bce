package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/ccmlab/ccmlab/fakecloud/clikit"
	"github.com/ccmlab/ccmlab/lab"
	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/watch"
)

// relistInterval is how often lab logs -f looks for new logs to follow.
const relistInterval = time.Second

// logsFlags are the flags of lab logs.
type logsFlags struct {
	follow, all bool
	tail        int
	since       string
}

func newLogs(o *globalOptions) *cobra.Command {
	var f logsFlags
	cmd := &cobra.Command{
		Use:   "logs [COMPONENT...]",
		Short: "Print components' logs; without one, list them",
		Long: `logs prints what components have written, by their names in lab status. Of
several, or with --all, each line begins with the component's name. With -f it
goes on through restarts until Ctrl-C, or until the lab goes down.

--since goes by the time at the beginning of each line; a line without one
belongs to the line before.`,
		Example: `  lab logs                          # which logs there are
  lab logs ccm -f                   # what the CCM does, as it does it
  lab logs node/node-1 --tail 50
  lab logs ccm kube-controller-manager -f --since 1m
  lab logs -f                       # everything at once, new machines too
  lab logs --all | grep -i error`,
		Args: cobra.ArbitraryArgs,
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			l, err := o.openLab()
			if err != nil {
				return nil, cobra.ShellCompDirectiveError
			}
			logs, _ := l.Cluster.Logs(cmd.Context())
			return without(logNames(logs), args), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			since, err := f.validateFlags(args)
			if err != nil {
				return err
			}
			l, err := o.openLab()
			if err != nil {
				return err
			}
			p := &logPrinter{lab: l, flags: f, since: since, out: screenOf(cmd.OutOrStdout()), notify: func(text string) {
				_, _ = fmt.Fprintln(cmd.ErrOrStderr(), "lab:", text)
			}}
			if len(args) == 0 && !f.all && !f.follow {
				return p.printLogList(cmd.Context())
			}
			return p.printLogs(cmd.Context(), args)
		},
	}
	cmd.Flags().BoolVarP(&f.follow, "follow", "f", false, "wait for what comes")
	cmd.Flags().BoolVar(&f.all, "all", false, "all components")
	cmd.Flags().IntVar(&f.tail, "tail", 0, "only the last so many lines of each (0: all)")
	cmd.Flags().StringVar(&f.since, "since", sinceStart, "only the last so long, e.g. 30s, or all since the start")
	clikit.CompleteFlag(cmd, "tail", "20", "100", "1000")
	clikit.CompleteFlag(cmd, "since", sinceStart, "30s", "5m", "1h")
	return cmd
}

// validateFlags checks the flags, and returns the time that --since means.
func (f logsFlags) validateFlags(args []string) (since time.Time, err error) {
	switch {
	case f.tail < 0:
		return since, clikit.Usagef("--tail %d: want 0 or more", f.tail)
	case f.all && len(args) > 0:
		return since, clikit.Usagef("--all is every component; leave out %s, or --all", strings.Join(args, " "))
	}
	if since, err = parseSince(f.since, time.Now()); err != nil {
		err = clikit.Usage(err)
	}
	return since, err
}

// logPrinter prints the logs of a lab's components. A single component's log is printed
// as it is. With several, each line begins with the component's name.
type logPrinter struct {
	lab    *lab.Lab
	flags  logsFlags
	since  time.Time
	out    screen
	notify func(string)
}

// printLogList prints which logs there are, and where.
func (p *logPrinter) printLogList(ctx context.Context) error {
	logs, err := p.lab.Cluster.Logs(ctx)
	if err != nil {
		return err
	}
	for _, log := range logs {
		_, _ = fmt.Fprintf(p.out.w, "%-26s %s\n", log.Name, log.Where)
	}
	return nil
}

// printLogs prints the logs that args name, all without args, and follows them with
// --follow.
func (p *logPrinter) printLogs(ctx context.Context, args []string) error {
	logs, err := p.lab.Cluster.Logs(ctx)
	if err != nil {
		return err
	}
	components, err := p.lab.Cluster.Components(ctx)
	if err != nil && len(args) > 0 {
		components = nil // Components that have a log are known anyway.
	}
	names, err := chooseLogs(args, logNames(logs), components, p.flags.follow)
	if err != nil {
		return err
	}
	lines := newLogLines(p.out, names, len(args) != 1, p.since)
	if p.flags.follow {
		return p.followAll(ctx, lines, logs, names, len(args) == 0)
	}
	for _, log := range logs {
		if !slices.Contains(names, log.Name) {
			continue
		}
		if err := p.copyLog(ctx, lines, log, false); err != nil {
			return err
		}
	}
	return nil
}

// copyLog copies one log to its writer of lines. It copies all of a log that is new
// while others are followed, whatever --tail says.
func (p *logPrinter) copyLog(ctx context.Context, lines *logLines, log cluster.Log, isNew bool) error {
	last := p.flags.tail
	if isNew { // All its lines came after the command began.
		last = 0
	}
	w := lines.writerFor(log.Name)
	if err := errors.Join(log.Copy(ctx, w, last, p.flags.follow), w.Flush()); err != nil && ctx.Err() == nil {
		return fmt.Errorf("log of %s: %w", log.Name, err)
	}
	return nil
}

// followOne follows one log. If that fails, perhaps because the machine ended, it
// reports the error and lets the other logs go on. It returns an error only if the
// output cannot be written.
func (p *logPrinter) followOne(ctx context.Context, lines *logLines, log cluster.Log, isNew bool) error {
	err := p.copyLog(ctx, lines, log, isNew)
	if out := (outputError{}); err == nil || errors.As(err, &out) {
		return err
	}
	// Otherwise the lab is gone, which followAll reports.
	if _, statErr := os.Stat(p.lab.State.Path()); statErr == nil {
		p.notify(err.Error())
	}
	return nil
}

// followAll follows the named logs that exist and those that appear later. With anyNew
// it follows every log that appears.
func (p *logPrinter) followAll(
	ctx context.Context,
	lines *logLines,
	logs []cluster.Log,
	names []string,
	anyNew bool,
) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		if how := watch.WaitForEnd(ctx, p.lab); how != "" {
			p.notify(how)
		}
		cancel()
		return nil
	})
	group.Go(func() error {
		followed := map[string]bool{}
		tick := time.NewTicker(relistInterval)
		defer tick.Stop()
		for isNew := false; ; isNew = true {
			for _, log := range logs {
				if !followed[log.Name] && (anyNew || slices.Contains(names, log.Name)) {
					followed[log.Name] = true
					group.Go(func() error { return p.followOne(ctx, lines, log, isNew) })
				}
			}
			if !anyNew && len(followed) == len(names) {
				return nil
			}
			select {
			case <-ctx.Done():
				return nil
			case <-tick.C:
			}
			var err error
			if logs, err = p.lab.Cluster.Logs(ctx); err != nil && ctx.Err() == nil {
				return err
			}
		}
	})
	if err := group.Wait(); err != nil && ctx.Err() == nil {
		return err
	}
	return nil
}

// chooseLogs returns the names of the logs to print, all without args. With follow a
// name may be that of a component without a log yet.
func chooseLogs(args, have []string, components []cluster.Component, follow bool) ([]string, error) {
	if len(args) == 0 {
		return have, nil
	}
	var names []string
	for _, arg := range args {
		name := arg
		if machine, ok := strings.CutPrefix(arg, "node-"); ok && !slices.Contains(have, arg) {
			name = "node/" + machine
		}
		known := slices.ContainsFunc(components, func(c cluster.Component) bool { return c.Name == name })
		switch {
		case slices.Contains(names, name):
			continue
		case slices.Contains(have, name), known && follow:
			names = append(names, name)
		case known:
			return nil, fmt.Errorf(
				"%s has no log yet: it has not been started; `lab logs %s -f` waits for it", name, name,
			)
		default:
			return nil, clikit.Usagef(
				"no component %q has a log%s; there are: %s", arg, similarNameHint(arg, have), strings.Join(have, ", "),
			)
		}
	}
	return names, nil
}

// similarNameHint returns a hint for an error message if one of the names is similar to
// arg, else "".
func similarNameHint(arg string, names []string) string {
	for _, name := range names {
		if strings.Contains(name, arg) || strings.Contains(arg, name) || strings.HasSuffix(name, "/"+arg) {
			return fmt.Sprintf(" (did you mean %s?)", name)
		}
	}
	return ""
}

// logNames returns the names of logs.
func logNames(logs []cluster.Log) []string {
	names := make([]string, len(logs))
	for i, log := range logs {
		names[i] = log.Name
	}
	return names
}
