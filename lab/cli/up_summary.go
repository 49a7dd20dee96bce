package cli

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"al.essio.dev/pkg/shellescape"
	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/lab"
	"github.com/ccmlab/ccmlab/lab/console"
	"github.com/ccmlab/ccmlab/lab/lifecycle"
	"github.com/ccmlab/ccmlab/lab/status"
	"github.com/ccmlab/ccmlab/lab/suite"
	"github.com/ccmlab/ccmlab/lab/timeline"
	"github.com/ccmlab/ccmlab/manifests"
)

// printPresetCommand prints how to run a dialect's CCM by hand, in a debugger say.
func printPresetCommand(cmd *cobra.Command, l *lab.Lab, dialect string) error {
	words, err := suite.PresetCommand(cmd.Context(), l, dialect)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "\nThe CCM by hand:\n%s\n", shellescape.QuoteCommand(words))
	return err
}

// printUpSummary prints the end of `lab up`: what happened in this run, and which
// commands to try now. Without a CCM of the dialect, it says how to use one.
func printUpSummary(
	cmd *cobra.Command,
	l *lab.Lab,
	st *status.Status,
	outcome lifecycle.Outcome,
	o lifecycle.Options,
	dialect string,
) error {
	w := cmd.OutOrStdout()
	p := func(format string, args ...any) { _, _ = fmt.Fprintf(w, format+"\n", args...) }
	entries, err := l.Timeline().Read()
	if err != nil {
		return err
	}
	self := invokedAs()
	nameFlag := ""
	if o.Name != "lab" {
		nameFlag = " --name " + o.Name
	}
	switch outcome.Result {
	case lifecycle.Unchanged:
		p("\nNothing was missing.\n")
	case lifecycle.Completed:
		entries = slices.DeleteFunc(entries, func(e timeline.Entry) bool { return e.Time.Before(outcome.Began) })
		p("\nCompleted: %s.", strings.Join(outcome.Did, "; "))
		fallthrough
	default:
		if entries = slices.DeleteFunc(
			entries, func(e timeline.Entry) bool { return !isInUpSummary(e) },
		); len(entries) > 0 {
			p("\nTimeline (seconds since start)")
			printTimeline(w, entries)
		}
		p("")
	}
	for _, s := range servicesToTry(st.Services) {
		p("  Try it        curl http://%s:%d/", s.Address, s.Port)
	}
	p("  Your shell    eval \"$(%s env%s)\"      # KUBECONFIG, kubectl, fakecloud", self, nameFlag)
	switch {
	case l.Cluster.Traits().NoCloudProvider:
		printSummaryWithoutProvider(p, self, o.Name)
	case dialect != "" && o.UseCCM == nil:
		p("  The CCM       %s ccm use%s --dialect %s PROGRAM, then %[1]s ccm start%[2]s", self, nameFlag, dialect)
	case o.WithoutCCM && slices.ContainsFunc(st.Nodes, func(n status.Node) bool { return n.Tainted }):
		p("  The CCM       %s ccm start%s          # watch the taints lift", self, nameFlag)
	case o.WithoutCCM:
		p("  The CCM       %s ccm start%s", self, nameFlag)
	}
	if url, err := console.Link(cmd.Context(), l, false, false); err == nil {
		p("  See it        %s", url)
	}
	p("  Watch         %s watch%s", self, nameFlag)
	if l.State.Nodes > 0 {
		p("  Break it      fakecloud instances stop node-%d      # then: start, terminate, create", l.State.Nodes)
	}
	p("  Stop          %s down%s", self, nameFlag)
	return nil
}

// printSummaryWithoutProvider prints what there is to see in a cluster without an
// external cloud provider, and how to compare it with one that has a CCM.
func printSummaryWithoutProvider(p func(format string, args ...any), self, name string) {
	other := "full"
	if name == other {
		other = "other"
	}
	p("  What to see   no taints, no zones, no provider IDs; pods run, service web stays pending for ever")
	p("  Beside it     %s up --name %s      # one that waits for a CCM, and has it", self, other)
	p("  Compare       %s compare %s %s", self, name, other)
}

// isInUpSummary tells whether the summary of `lab up` shows an entry. It shows what
// happened to nodes, services and the cloud.
func isInUpSummary(e timeline.Entry) bool {
	return (e.Source == timeline.SourceCloud || e.Source == timeline.SourceCluster) &&
		!strings.HasPrefix(e.Subject, "pod/")
}

// printTimeline prints a line for each entry.
func printTimeline(w io.Writer, entries []timeline.Entry) {
	for _, e := range entries {
		_, _ = fmt.Fprintln(w, timelineLine(e))
	}
}

// timelineLine formats an entry with its seconds since the lab's start.
func timelineLine(e timeline.Entry) string {
	return strings.TrimRight(fmt.Sprintf("%8.2f  %-22s %-16s %s", e.Seconds, e.Subject, e.What, e.Detail), " ")
}

// servicesToTry returns up to three Services that should answer. The demo comes first.
func servicesToTry(services []status.Service) []status.Service {
	const few = 3
	var all []status.Service
	for _, s := range services {
		switch {
		case s.Address == "" || s.ReadyEndpoints != nil && *s.ReadyEndpoints == 0:
		case manifests.IsDemoService(s.Namespace, s.Name):
			all = slices.Insert(all, 0, s)
		default:
			all = append(all, s)
		}
	}
	return all[:min(len(all), few)]
}
