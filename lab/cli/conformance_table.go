package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"

	"github.com/ccmlab/ccmlab/fakecloud/clikit"
	"github.com/ccmlab/ccmlab/lab/conformance"
	"github.com/ccmlab/ccmlab/lab/conformance/report"
)

func newConformanceTable() *cobra.Command {
	return &cobra.Command{
		Use:   "table FILE...",
		Short: "Write what came out for several CCMs as a page of Markdown",
		Long: `Write what came out for several CCMs as a page of Markdown: a table, and for each CCM how it
was judged, what it failed and what it was not asked. A FILE is a report.yaml of
--report-dir, or what make bench-ccm prints with -o json.`,
		Example: `  lab conformance table ours/report.yaml theirs/report.yaml theirs/thousand-nodes.json > REPORTS.md`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return clikit.Usagef("table: name the report.yaml of at least one run (lab conformance --report-dir DIR)")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			var reports []*conformance.Report
			var figures []report.Figure
			for _, file := range args {
				r, f, err := readJudgement(file)
				if err != nil {
					return err
				}
				if r != nil {
					reports = append(reports, r)
				} else {
					figures = append(figures, *f)
				}
			}
			return report.WriteTable(cmd.OutOrStdout(), reports, figures)
		},
	}
}

// readJudgement reads a report, or a figure.
func readJudgement(file string) (*conformance.Report, *report.Figure, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, nil, err
	}
	r, f := &conformance.Report{}, &report.Figure{}
	if err := yaml.Unmarshal(data, r); err == nil && r.Kind == "ConformanceReport" {
		return r, nil, nil
	}
	if err := yaml.Unmarshal(data, f); err != nil || f.CCM == "" || len(f.Lines) == 0 {
		return nil, nil, fmt.Errorf("%s is neither a report.yaml of lab conformance nor the JSON of make bench-ccm", file)
	}
	return nil, f, nil
}

// describeRun is the command line that judges the CCM again, on any machine: files have no folders, and what is about
// this run's output alone is left out.
func describeRun(cmd *cobra.Command, ccmArgs []string) string {
	words := []string{cmd.CommandPath()}
	cmd.Flags().Visit(func(f *pflag.Flag) {
		switch f.Name {
		case "report-dir", "output", "keep", "name", "ccm-version":
			return
		}
		values := []string{f.Value.String()}
		if several, ok := f.Value.(pflag.SliceValue); ok {
			values = several.GetSlice()
		}
		for _, v := range values {
			if filepath.IsAbs(v) || strings.HasPrefix(v, ".") {
				v = "./" + filepath.Base(v)
			}
			if f.Value.Type() == "bool" {
				words = append(words, "--"+f.Name)
				continue
			}
			words = append(words, "--"+f.Name, quoteWord(v))
		}
	})
	if len(ccmArgs) > 0 {
		words = append(words, "--")
	}
	for _, arg := range ccmArgs {
		words = append(words, quoteWord(arg))
	}
	return strings.Join(words, " ")
}

// quoteWord quotes a word for a shell where it needs that.
func quoteWord(word string) string {
	if strings.ContainsAny(word, " '\"$&|;()<>*?`\\") || word == "" {
		return shellQuote(word)
	}
	return word
}
