// This file answers: how are results shown?

package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"
)

// addOutput gives a command the flag -o.
func (a *app) addOutput(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&a.output, "output", "o", "table", "table, json or yaml")
	noFiles(cmd, map[string][]string{"output": {"table", "json", "yaml"}})
}

func (a *app) checkOutput() error {
	switch a.output {
	case "", "table", "json", "yaml":
		return nil
	}
	return misuse("--output %q: choose table, json or yaml", a.output)
}

// noFiles completes flags with what they take, and nothing with file names.
func noFiles(cmd *cobra.Command, values map[string][]string) {
	for flag, v := range values {
		if err := cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(v, cobra.ShellCompDirectiveNoFileComp)); err != nil {
			panic(err) // The flag is missing: a mistake in this package.
		}
	}
}

// print shows a value as JSON or YAML, or its rows as a table.
func (a *app) print(out io.Writer, value any, header string, rows [][]string) error {
	if a.capture != nil {
		a.capture(header, rows)
		return nil
	}
	switch a.output {
	case "json":
		e := json.NewEncoder(out)
		e.SetIndent("", "  ")
		return e.Encode(value)
	case "yaml":
		return printYAML(out, value)
	}
	t := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	if _, err := fmt.Fprintln(t, strings.ReplaceAll(header, " ", "\t")); err != nil {
		return err
	}
	for _, r := range rows {
		if _, err := fmt.Fprintln(t, strings.Join(r, "\t")); err != nil {
			return err
		}
	}
	return t.Flush()
}

func printYAML(out io.Writer, value any) error {
	text, err := yaml.Marshal(value)
	if err != nil {
		return err
	}
	_, err = out.Write(text)
	return err
}
