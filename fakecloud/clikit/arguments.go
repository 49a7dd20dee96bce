// Package clikit is what the command lines of fakecloud and lab share: usage errors that name
// the wrong word and a similar one, the flag -o with its tables, JSON and YAML, and completion.
//
// It knows cobra, and neither the cloud nor the lab. A command line calls Finish for its root
// command.
package clikit

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// UsageError is a mistake in the command line. The exit code is then 2.
type UsageError struct{ error }

// Usage makes err a UsageError.
func Usage(err error) error { return UsageError{err} }

// Usagef returns a UsageError with the formatted message.
func Usagef(format string, args ...any) error { return UsageError{fmt.Errorf(format, args...)} }

// IsUsage reports whether err, or one that it wraps or joins, is a UsageError.
func IsUsage(err error) bool {
	var usage UsageError
	return errors.As(err, &usage)
}

// Unwrap returns the mistake.
func (e UsageError) Unwrap() error { return e.error }

// Finish completes a root command whose subcommands are all there: wrong flags, arguments and
// subcommands become UsageErrors, and the command completion gets short help texts.
func Finish(root *cobra.Command) {
	root.SetFlagErrorFunc(rewordFlagError)
	root.InitDefaultCompletionCmd()
	describeCompletion(root)
	wrapArgumentErrors(root)
}

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
	return fmt.Errorf("`%s` has no command %q%s", cmd.CommandPath(), args[0], DidYouMean(args[0], names))
}

// RejectArguments is cobra.Command.Args of a command without arguments.
func RejectArguments(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("`%s` takes no arguments, and was given %q", cmd.CommandPath(), args)
	}
	return nil
}

// RequireArguments is cobra.Command.Args of a command with least to most arguments, which the
// usage line names. A most of 0 is no bound.
func RequireArguments(least, most int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) >= least && (most == 0 || len(args) <= most) {
			return nil
		}
		given := "nothing"
		if len(args) > 0 {
			given = fmt.Sprintf("%q", args)
		}
		_, wanted, _ := strings.Cut(cmd.Use, " ")
		return fmt.Errorf("`%s` wants %s, and was given %s", cmd.CommandPath(), wanted, given)
	}
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
	if IsUsage(err) {
		return err
	}
	if invalid := (*pflag.InvalidValueError)(nil); errors.As(err, &invalid) {
		f := invalid.GetFlag()
		if kind := flagTypeNames[f.Value.Type()]; kind != "" {
			return Usagef("--%s %q: want %s", f.Name, invalid.GetValue(), kind)
		}
		return Usagef("--%s %q: %w", f.Name, invalid.GetValue(), invalid.Unwrap())
	}
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) || len(unknown.GetSpecifiedName()) < 2 {
		return Usage(err)
	}
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) { // After parsing, these include the parents' flags.
		if !f.Hidden {
			names = append(names, "--"+f.Name)
		}
	})
	return Usagef("%w%s", err, DidYouMean("--"+unknown.GetSpecifiedName(), names))
}

// CheckChoice fails if the value of a flag is not one of the choices.
func CheckChoice(flag, value string, choices []string) error {
	if slices.Contains(choices, value) {
		return nil
	}
	return Usagef("--%s %q: want one of %s%s", flag, value, strings.Join(choices, ", "), DidYouMean(value, choices))
}

// DidYouMean returns the end of an error message about a word that is not one of the
// choices. It is empty unless some choices are similar to the word.
func DidYouMean(word string, choices []string) string {
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
// UsageError. It does so for cmd and all its subcommands.
func wrapArgumentErrors(cmd *cobra.Command) {
	check := cmd.Args
	switch {
	case check == nil && cmd.HasSubCommands():
		check = rejectUnknownCommand
	case check == nil:
		check = RejectArguments
	}
	cmd.Args = func(c *cobra.Command, args []string) error {
		if err := check(c, args); err != nil {
			return Usage(err)
		}
		return nil
	}
	for _, sub := range cmd.Commands() {
		wrapArgumentErrors(sub)
	}
}
