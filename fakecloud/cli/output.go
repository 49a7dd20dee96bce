// This file answers: how are results shown?

package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"
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

// printYAML goes by way of JSON, so that names and absent fields are the same.
func printYAML(out io.Writer, value any) error {
	b, err := json.Marshal(value)
	if err != nil {
		return err
	}
	var node yaml.Node // JSON is YAML; a node keeps the order of the fields.
	if err := yaml.Unmarshal(b, &node); err != nil {
		return err
	}
	plainStyle(&node)
	e := yaml.NewEncoder(out)
	e.SetIndent(2)
	if err := e.Encode(&node); err != nil {
		return err
	}
	return e.Close()
}

// plainStyle turns JSON's brackets and quotes into YAML's own look.
func plainStyle(n *yaml.Node) {
	n.Style = 0 // The encoder still quotes what would be read as no string.
	for _, c := range n.Content {
		plainStyle(c)
	}
}
