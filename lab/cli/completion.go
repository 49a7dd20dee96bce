package cli

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/lab/state"
)

// describeShellCompletion replaces cobra's long help of the completion commands by a
// short example for each shell. It also makes their wrong arguments the same usage
// errors as elsewhere.
func describeShellCompletion(root *cobra.Command) {
	completion, _, err := root.Find([]string{"completion"})
	if err != nil {
		return
	}
	examples := map[string]string{
		"bash": "source <(lab completion bash)", "zsh": "source <(lab completion zsh)",
		"fish":       "lab completion fish | source",
		"powershell": "lab completion powershell | Out-String | Invoke-Expression",
	}
	completion.Example = "  " + examples["bash"] + "   # now; into ~/.bashrc for good"
	completion.Args, completion.RunE = nil, func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	for _, shell := range completion.Commands() {
		shell.Args = nil
		shell.Example = "  " + examples[shell.Name()]
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

// completeValues completes a flag with some values, and never with file names.
func completeValues(cmd *cobra.Command, flag string, values ...string) {
	_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
}

// completeListValue completes the last value of a list with commas. It offers the
// values that the list does not have yet.
func completeListValue(values func() []string) cobra.CompletionFunc {
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

// completeLabs completes names of existing labs, up to most arguments.
func completeLabs(most int) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		names, err := state.List()
		if err != nil || len(args) >= most {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return slices.DeleteFunc(
			names, func(name string) bool { return slices.Contains(args, name) },
		), cobra.ShellCompDirectiveNoFileComp
	}
}
