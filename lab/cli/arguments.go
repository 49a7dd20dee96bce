package cli

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// rejectUnknownCommand is cobra.Command.Args of a command that only has subcommands.
// Any argument is an unknown subcommand.
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

// requireNoArguments is cobra.Command.Args of a command without arguments.
func requireNoArguments(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usagef("`%s` takes no arguments, and was given %q", cmd.CommandPath(), args)
	}
	return nil
}

// requireOneArgument is cobra.Command.Args of a command with one argument, which the
// usage line names.
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

// flagTypeNames describe the values of flags by pflag's name of their type. They
// replace pflag's own message, which is that of the function that parsed the value.
var flagTypeNames = map[string]string{
	"int": "a whole number", "duration": "a duration, such as 30s or 10m", "bool": "true or false",
	"float64": "a number",
}

// rewordFlagError words an error of the flag parser as other usage errors are worded.
// It says which value was wanted, or which flag may have been meant.
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
	cmd.Flags().VisitAll(func(f *pflag.Flag) { // After parsing, these include the parents' flags.
		if !f.Hidden {
			names = append(names, "--"+f.Name)
		}
	})
	return usagef("%w%s", err, didYouMean("--"+unknown.GetSpecifiedName(), names))
}

// checkChoice fails if the value of a flag is not one of the choices.
func checkChoice(flag, value string, choices []string) error {
	if slices.Contains(choices, value) {
		return nil
	}
	return usagef("--%s %q: want one of %s%s", flag, value, strings.Join(choices, ", "), didYouMean(value, choices))
}

// didYouMean returns the end of an error message about a word that is not one of the
// choices. It is empty unless some choices are similar to the word.
func didYouMean(word string, choices []string) string {
	// cobra suggests only names of commands, so each choice becomes one.
	cmd := &cobra.Command{SuggestionsMinimumDistance: 2}
	for _, choice := range choices {
		cmd.AddCommand(&cobra.Command{Use: choice, Run: func(*cobra.Command, []string) {}})
	}
	if like := cmd.SuggestionsFor(word); len(like) > 0 {
		return "; did you mean " + strings.Join(like, " or ") + "?"
	}
	return ""
}

// wrapArgumentErrors makes a wrong number of arguments, or an unknown command, a
// usageError. It does so for cmd and all its subcommands.
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
