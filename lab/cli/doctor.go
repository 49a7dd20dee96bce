package cli

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/fakecloud/clikit"
	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/doctor"
)

func newDoctor(o *globalOptions) *cobra.Command {
	kind := cluster.DefaultKind
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check this machine, with a fix for each finding",
		Long: `doctor looks for what would make "lab up" fail on this machine: its limits, its
loopback, what holds the lab's ports, what earlier labs left. It changes nothing.

Each finding is "ok"; "info", worth knowing; or "FIX", with what mends it. The
exit code is 1 when something must be mended.`,
		Example: `  lab doctor
  lab doctor -q                     # what must be mended, and nothing else
  lab doctor --cluster kind         # kind needs a container engine
  lab doctor -o json | jq -r '.[] | select(.level == "fix") | .fix'`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := clikit.CheckChoice("cluster", kind, cluster.KindNames()); err != nil {
				return err
			}
			findings := doctor.Examine(cmd.Context(), doctor.ThisMachine(kind))
			if err := clikit.Print(cmd, findings, func(w io.Writer) error {
				printFindings(w, findings, o.quiet)
				return nil
			}); err != nil {
				return err
			}
			if doctor.Problems(findings) > 0 {
				return silentError{errors.New("problems found")}
			}
			return nil
		},
	}
	cmd.Flags().StringVar(
		&kind, "cluster", kind,
		"kind of cluster that the machine is to be fit for: "+strings.Join(cluster.KindNames(), ", "),
	)
	clikit.CompleteFlag(cmd, "cluster", cluster.KindNames()...)
	clikit.AddOutput(cmd, "table", "json", "yaml")
	return cmd
}

// levelMarks are the first column of a finding.
var levelMarks = map[doctor.Level]string{doctor.OK: "ok  ", doctor.Info: "info", doctor.Fix: "FIX "}

// printFindings prints the findings with their fixes. With quiet it prints only what
// must be fixed.
func printFindings(w io.Writer, findings []doctor.Finding, quiet bool) {
	for _, f := range findings {
		if quiet && f.Level != doctor.Fix {
			continue
		}
		_, _ = fmt.Fprintf(
			w, "%s  %-11s %s\n", levelMarks[f.Level], f.Check, strings.ReplaceAll(f.Seen, "\n", "\n                  "),
		)
		if f.Fix != "" {
			_, _ = fmt.Fprintf(w, "      %-11s → %s\n", "", f.Fix)
		}
	}
}
