package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/fakecloud/clikit"
	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/timeline"
	"github.com/ccmlab/ccmlab/lab/watch"
)

const watchHelp = `watch shows in one stream, ordered by time, what happens in the lab, and what
has happened so far. Each line has the seconds since the lab's start, the
source, the subject, what happened, and details. The sources are
  cloud    what became of instances, load balancers and routes
  cluster  what became of Nodes, Services and Pods
  event    what controllers say: Kubernetes Events that are Warnings, that are
           about Services, or that take Nodes and Pods away
  call     who called the cloud's API, and what the cloud answered
  lab      components that start and end, machines that boot and halt

Of the calls, those that changed something or failed are shown (--calls
changes): every CCM reads all the time.

With -o json, each line is an object:
  time, seconds, source, subject (kind/name), what   always
  detail     in words
  caller     who called, or which controller tells
  failed     true for a refused call, a Warning, a balancer in error, a Node
             that is not ready
  id         the cloud's ID of the subject
  call       of a call: method, path, status (0: broken off), code, fault,
             milliseconds, requestId; what is the operation
  cloudSeq   the number of the cloud's event
  eventKey   the Event's UID, and how often it came

What is not recorded for the moment is said on standard error. watch ends with
Ctrl-C, or when the lab goes down.`

func newWatch(o *globalOptions) *cobra.Command {
	var f watchFlags
	cmd := &cobra.Command{
		Use:   "watch",
		Short: "Show what happened, and what happens, to nodes, services and the cloud",
		Long:  watchHelp,
		Example: `  lab watch                              # in another terminal: kubectl expose …, and see it become a balancer
  lab watch --since 30s --subject '*/node-4'   # all that is called node-4: instance, machine, Node
  lab watch --only call --caller ccm --calls all   # what the CCM asks, reads too
  lab watch --failed                     # only what is refused, warned of, or broken
  lab watch --only cluster,event --calls none
  lab watch --follow=false -o json | jq -r 'select(.call.fault) | .call.path'`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			filter, err := f.timelineFilter(time.Now())
			if err != nil {
				return err
			}
			l, err := o.openLab()
			if err != nil {
				return err
			}
			show := timelinePrinter(cmd.OutOrStdout())
			if clikit.Output(cmd) == "json" {
				enc := json.NewEncoder(cmd.OutOrStdout())
				show = func(e timeline.Entry) error { return enc.Encode(e) }
			}
			err = watch.Watch(cmd.Context(), l, watch.Options{
				Filter: filter, Follow: f.follow,
			}, show, func(text string) {
				_, _ = fmt.Fprintln(cmd.ErrOrStderr(), "lab:", text)
			})
			if errors.Is(err, context.Canceled) {
				return nil // Ctrl-C is the usual end.
			}
			return err
		},
	}
	f.addFlags(cmd, o)
	clikit.AddOutput(cmd, "table", "json")
	return cmd
}

// watchFlags are the flags of lab watch as they were given.
type watchFlags struct {
	follow, failed          bool
	only, subjects, callers []string
	calls, since            string
}

// sinceStart is the value of --since that means everything since the lab's start.
const sinceStart = "start"

// addFlags adds the flags to cmd. Their completion offers subjects and callers from the
// timeline of the lab that o names.
func (f *watchFlags) addFlags(cmd *cobra.Command, o *globalOptions) {
	sources, calls := toStrings(timeline.Sources), toStrings(timeline.CallChoices)
	cmd.Flags().BoolVarP(&f.follow, "follow", "f", true, "wait for what comes")
	cmd.Flags().StringSliceVar(&f.only, "only", nil, "only these sources: "+strings.Join(sources, ", "))
	cmd.Flags().StringSliceVar(&f.subjects, "subject", nil, "only these subjects, e.g. node/node-4, 'service/*'")
	cmd.Flags().StringSliceVar(
		&f.callers, "caller", nil, "only what these called or told, e.g. ccm, operator, service-controller",
	)
	cmd.Flags().BoolVar(&f.failed, "failed", false, "only what failed")
	cmd.Flags().StringVar(&f.calls, "calls", calls[0], "which calls of the cloud: "+strings.Join(calls, ", "))
	cmd.Flags().StringVar(&f.since, "since", sinceStart, "only the last so long, e.g. 30s, or all since the start")
	clikit.CompleteFlag(cmd, "calls", calls...)
	clikit.CompleteFlag(cmd, "since", sinceStart, "30s", "5m", "1h")
	completeList := func(flag string, values func() []string) {
		_ = cmd.RegisterFlagCompletionFunc(flag, clikit.CompleteListValue(values))
	}
	completeList("only", func() []string { return sources })
	completeRecorded := func(flag string, of func(timeline.Entry) string, known ...string) {
		completeList(flag, func() []string {
			values := slices.Clone(known)
			if l, err := o.openLab(); err == nil {
				entries, _ := l.Timeline().Read() // After an error there is nothing to offer.
				for _, e := range entries {
					values = append(values, of(e))
				}
			}
			slices.Sort(values)
			return slices.DeleteFunc(slices.Compact(values), func(v string) bool { return v == "" })
		})
	}
	completeRecorded("subject", func(e timeline.Entry) string { return e.Subject })
	completeRecorded("caller", func(e timeline.Entry) string { return e.Caller }, cluster.Callers...)
}

// timelineFilter returns the filter that the flags describe, or a usageError.
func (f *watchFlags) timelineFilter(now time.Time) (timeline.Filter, error) {
	filter := timeline.Filter{
		Subjects: f.subjects, Callers: f.callers, Failed: f.failed, Calls: timeline.Calls(f.calls),
	}
	for _, s := range f.only {
		if !slices.Contains(timeline.Sources, timeline.Source(s)) {
			return filter, clikit.Usagef("--only %q: want some of %s", s, strings.Join(toStrings(timeline.Sources), ", "))
		}
		filter.Sources = append(filter.Sources, timeline.Source(s))
	}
	if !slices.Contains(timeline.CallChoices, filter.Calls) {
		return filter, clikit.Usagef(
			"--calls %q: want one of %s", f.calls, strings.Join(toStrings(timeline.CallChoices), ", "),
		)
	}
	if filter.Calls == timeline.CallsNone && slices.Equal(filter.Sources, []timeline.Source{timeline.SourceCall}) {
		return filter, clikit.Usagef("--only call --calls none leaves nothing to show")
	}
	var err error
	if filter.Since, err = parseSince(f.since, now); err == nil {
		err = filter.Check()
	}
	if err != nil {
		return filter, clikit.Usage(err)
	}
	return filter, nil
}

// parseSince returns the time that lies the duration since before now. It is zero for
// sinceStart.
func parseSince(since string, now time.Time) (time.Time, error) {
	if since == sinceStart || since == "" {
		return time.Time{}, nil
	}
	d, err := time.ParseDuration(since)
	if err != nil || d < 0 {
		return time.Time{}, fmt.Errorf("--since %q: want a duration such as 30s or 5m, or %s", since, sinceStart)
	}
	return now.Add(-d), nil
}

// toStrings converts values to strings.
func toStrings[T ~string](values []T) []string {
	all := make([]string, len(values))
	for i, v := range values {
		all[i] = string(v)
	}
	return all
}

// sourceColors are the terminal colours of timeline sources. What failed is red
// instead.
var sourceColors = map[timeline.Source]string{
	timeline.SourceCloud: "36", timeline.SourceEvent: "33", timeline.SourceCall: "35", timeline.SourceLab: "2",
}

// timelinePrinter returns a function that prints an entry as one line on w.
func timelinePrinter(w io.Writer) func(timeline.Entry) error {
	s := screenOf(w)
	return func(e timeline.Entry) error {
		color := sourceColors[e.Source]
		if e.Failed {
			color = "31"
		}
		what := e.What
		if e.Call != nil {
			what = e.Caller // The details have the request.
		}
		return s.printLine(color, strings.TrimRight(
			fmt.Sprintf("%8.2f %-7s %-22s %-16s %s", e.Seconds, e.Source, e.Subject, what, e.Detail), " ",
		))
	}
}
