package cli

// How the command line behaves whatever the command is: what it says of a word
// that it does not know, what it completes, how much it tells.

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// rejectUnknownCommand is for a command that is nothing but its subcommands.
func rejectUnknownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	var names []string
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			names = append(names, sub.Name())
		}
	}
	return usagef("`%s` has no command %q%s", cmd.CommandPath(), args[0], didYouMean(args[0], names))
}

func requireNoArguments(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usagef("`%s` takes no arguments, and was given %q", cmd.CommandPath(), args)
	}
	return nil
}

// requireOneArgument is what the command's usage line names.
func requireOneArgument(cmd *cobra.Command, args []string) error {
	if len(args) == 1 {
		return nil
	}
	given := "nothing"
	if len(args) > 0 {
		given = fmt.Sprintf("%q", args)
	}
	_, wanted, _ := strings.Cut(cmd.Use, " ")
	return usagef("`%s` wants %s, and was given %s", cmd.CommandPath(), wanted, given)
}

// flagTypeNames are what values of flags are called, by pflag's names of their types,
// where its own message is that of the function that read the value.
var flagTypeNames = map[string]string{
	"int": "a whole number", "duration": "a duration, such as 30s or 10m", "bool": "true or false", "float64": "a number",
}

// rewordFlagError is the parser's error in the words of the other usage errors: what was
// wanted of a value, or which flag may have been meant.
func rewordFlagError(cmd *cobra.Command, err error) error {
	if invalid := (*pflag.InvalidValueError)(nil); errors.As(err, &invalid) {
		f := invalid.GetFlag()
		if kind := flagTypeNames[f.Value.Type()]; kind != "" {
			return usagef("--%s %q: want %s", f.Name, invalid.GetValue(), kind)
		}
		return usagef("--%s %q: %w", f.Name, invalid.GetValue(), invalid.Unwrap())
	}
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) || len(unknown.GetSpecifiedName()) < 2 {
		return usageError{err}
	}
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) { // Those of its parents are among them once it has parsed.
		if !f.Hidden {
			names = append(names, "--"+f.Name)
		}
	})
	return usagef("%w%s", err, didYouMean("--"+unknown.GetSpecifiedName(), names))
}

// didYouMean is the end of a message about a word that is none of the choices:
// "" unless some of them are nearly it.
func didYouMean(word string, choices []string) string {
	// cobra knows which of its commands are like a word, and tells of nothing else.
	cmd := &cobra.Command{SuggestionsMinimumDistance: 2}
	for _, choice := range choices {
		cmd.AddCommand(&cobra.Command{Use: choice, Run: func(*cobra.Command, []string) {}})
	}
	if like := cmd.SuggestionsFor(word); len(like) > 0 {
		return "; did you mean " + strings.Join(like, " or ") + "?"
	}
	return ""
}

// wrapArgumentErrors makes a wrong number of arguments, or an unknown command, a usage
// error everywhere.
func wrapArgumentErrors(cmd *cobra.Command) {
	check := cmd.Args
	switch {
	case check == nil && cmd.HasSubCommands():
		check = rejectUnknownCommand
	case check == nil:
		check = requireNoArguments
	}
	cmd.Args = func(c *cobra.Command, args []string) error {
		if err := check(c, args); err != nil {
			return usageError{err}
		}
		return nil
	}
	for _, sub := range cmd.Commands() {
		wrapArgumentErrors(sub)
	}
}
