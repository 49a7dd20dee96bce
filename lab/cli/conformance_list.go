package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/fakecloud/clikit"
	"github.com/ccmlab/ccmlab/lab/conformance"
	"github.com/ccmlab/ccmlab/lab/conformance/profiles"
)

// listedTest is a test in `lab conformance list -o json`.
type listedTest struct {
	ID         string                 `json:"id"`
	Profile    conformance.Profile    `json:"profile"`
	Level      conformance.Level      `json:"level"`
	Capability conformance.Capability `json:"capability,omitempty"`
	Needs      []conformance.Feature  `json:"needs,omitempty"`
	BuildsOn   []string               `json:"buildsOn,omitempty"`
	Requires   string                 `json:"requires"`
	Source     string                 `json:"source"`
}

func newConformanceList() *cobra.Command {
	var s *selection
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "Print every test: what is required, of whom, and who says so",
		Example: "  lab conformance list",
		RunE: func(cmd *cobra.Command, _ []string) error {
			tests, _, _, err := s.selectTests(profiles.All())
			if err != nil {
				return err
			}
			// The tests of a profile stand together here, though some run at the very end.
			slices.SortStableFunc(tests, func(a, b conformance.Test) int {
				return cmp.Compare(
					slices.Index(conformance.Profiles, a.Profile), slices.Index(conformance.Profiles, b.Profile),
				)
			})
			var list []listedTest
			for _, t := range tests {
				list = append(
					list, listedTest{t.ID, t.Profile, t.Level, t.Capability, t.Needs, t.BuildsOn, t.Requires, t.Source},
				)
			}
			return clikit.Print(cmd, list, func(w io.Writer) error { return printTestList(w, list) })
		},
	}
	s = addSelectionFlags(cmd)
	clikit.AddOutput(cmd, "table", "json", "yaml")
	return cmd
}

// printTestList prints the tests by profile. It does not print a table, because the
// requirement and its source need lines of their own.
func printTestList(w io.Writer, list []listedTest) error {
	var errs []error
	p := func(format string, args ...any) {
		_, err := fmt.Fprintf(w, format+"\n", args...)
		errs = append(errs, err)
	}
	var profile conformance.Profile
	for _, t := range list {
		if t.Profile != profile {
			profile = t.Profile
			p("%s", profile)
		}
		what := string(t.Level)
		if t.Capability != "" {
			what += " " + string(t.Capability)
		}
		if len(t.Needs) > 0 {
			what += fmt.Sprintf(", needs %s", strings.Trim(fmt.Sprint(t.Needs), "[]"))
		}
		if len(t.BuildsOn) > 0 {
			what += ", builds on " + strings.Join(t.BuildsOn, " ")
		}
		p("  %-44s %s\n      %s\n      %s", t.ID, what, t.Requires, t.Source)
	}
	return errors.Join(errs...)
}
