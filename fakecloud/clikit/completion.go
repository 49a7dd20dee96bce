package clikit

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// describeCompletion replaces cobra's long help of the completion commands by a short example
// for each shell. It also makes their wrong arguments the same usage errors as elsewhere.
func describeCompletion(root *cobra.Command) {
	completion, _, err := root.Find([]string{"completion"})
	if err != nil {
		return
	}
	examples := map[string]string{
		"bash": "source <(%s completion bash)", "zsh": "source <(%s completion zsh)",
		"fish":       "%s completion fish | source",
		"powershell": "%s completion powershell | Out-String | Invoke-Expression",
	}
	completion.Example = "  " + fmt.Sprintf(examples["bash"], root.Name()) + "   # now; into ~/.bashrc for good"
	completion.Args, completion.RunE = nil, func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	for _, shell := range completion.Commands() {
		shell.Args = nil
		shell.Example = "  " + fmt.Sprintf(examples[shell.Name()], root.Name())
		if shell.Name() == "bash" {
			shell.Long = bashCompletion
		}
	}
}

const bashCompletion = `bash prints what makes bash complete this program's commands, flags and values.

It stands on functions of the package bash-completion (apt-get install
bash-completion, dnf install bash-completion, brew install bash-completion@2),
which a shell has loaded first: begin a new one once it is installed. Without it,
bash says at a TAB "_get_comp_words_by_ref: command not found".`

// CompleteFlag completes a flag with some values, and never with file names.
func CompleteFlag(cmd *cobra.Command, flag string, values ...string) {
	CompleteFlagBy(cmd, flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
}

// CompleteFlagBy completes a flag by a function, whatever the arguments are.
func CompleteFlagBy(cmd *cobra.Command, flag string, complete cobra.CompletionFunc) {
	if err := cmd.RegisterFlagCompletionFunc(
		flag,
		func(cmd *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
			return complete(cmd, nil, prefix)
		},
	); err != nil {
		panic(err) // The flag is missing: a mistake in the program.
	}
}

// CompleteListValue completes the last value of a list with commas. It offers the
// values that the list does not have yet.
func CompleteListValue(values func() []string) cobra.CompletionFunc {
	return func(_ *cobra.Command, _ []string, toComplete string) ([]string, cobra.ShellCompDirective) {
		before := toComplete[:strings.LastIndex(toComplete, ",")+1]
		given := strings.Split(before, ",")
		var all []string
		for _, v := range values() {
			if !slices.Contains(given, v) {
				all = append(all, before+v)
			}
		}
		return all, cobra.ShellCompDirectiveNoFileComp
	}
}
