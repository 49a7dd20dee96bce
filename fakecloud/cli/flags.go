package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/ccmlab/ccmlab/fakecloud/clikit"
)

// fileFlags are the flags that take file names.
var fileFlags = []string{"token-file", "ca-file", "data", "out", "filename", "tls-cert", "tls-key", "token"}

// disableFileCompletion turns off the shell's completion with file names, for arguments and
// flags without a completion of their own, except fileFlags.
func disableFileCompletion(cmd *cobra.Command) {
	if cmd.ValidArgsFunction == nil {
		cmd.ValidArgsFunction = cobra.NoFileCompletions
	}
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if _, has := cmd.GetFlagCompletionFunc(f.Name); !has && !slices.Contains(fileFlags, f.Name) {
			clikit.CompleteFlagBy(cmd, f.Name, cobra.NoFileCompletions)
		}
	})
	for _, sub := range cmd.Commands() {
		disableFileCompletion(sub)
	}
}

// addTagFilter adds --tag, which filters a list.
func addTagFilter(cmd *cobra.Command, tags *[]string) {
	cmd.Flags().StringArrayVar(tags, "tag", nil, "only those with this KEY or KEY=VALUE; repeatable")
}

// addStateFlag adds --state, which filters a list. all are the states that it takes.
func addStateFlag[T ~string](cmd *cobra.Command, given *[]T, all ...string) {
	choose := strings.Join(all, ", ")
	set := func(text string) error {
		for word := range strings.SplitSeq(text, ",") {
			if !slices.Contains(all, word) {
				return fmt.Errorf("%q is not a state: choose among %s", word, choose)
			}
			*given = append(*given, T(word))
		}
		return nil
	}
	cmd.Flags().Var(stateValue(set), "state", "only those in one of these states: "+choose)
	clikit.CompleteFlag(cmd, "state", all...)
}

type stateValue func(text string) error

func (s stateValue) Type() string          { return "strings" }
func (s stateValue) String() string        { return "" }
func (s stateValue) Set(text string) error { return s(text) }
