package cli

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/clikit"
)

// requestField is the value of a flag that sets a field of a request to the API. It keeps no
// value itself: a field that is left out is absent in the request.
type requestField struct {
	kind string // of the value, as --help shows it
	set  func(text string) error
}

func (r requestField) Type() string          { return r.kind }
func (r requestField) String() string        { return "" }
func (r requestField) Set(text string) error { return r.set(text) }

func addField(cmd *cobra.Command, flag, kind, usage string, set func(text string) error) {
	cmd.Flags().Var(requestField{kind, set}, flag, usage)
}

// addText adds a flag that sets a text or an enumerated value. An empty one counts as left
// out.
func addText[T ~string](cmd *cobra.Command, field **T, flag, usage string) {
	addField(cmd, flag, "string", usage, func(text string) error {
		*field = nil
		if text != "" {
			*field = new(T(text))
		}
		return nil
	})
}

// addBool adds a flag that sets a boolean. Without a value it is true.
func addBool(cmd *cobra.Command, field **bool, flag, usage string) {
	addField(cmd, flag, "bool", usage, func(text string) error {
		value, err := strconv.ParseBool(text)
		*field = &value
		return err
	})
	cmd.Flags().Lookup(flag).NoOptDefVal = "true"
}

// addDuration adds a flag that sets a duration. The API takes whole units only; want tells
// which durations it takes, and set is given their number.
func addDuration(cmd *cobra.Command, unit, least time.Duration, flag, usage, want string, set func(units int)) {
	addField(cmd, flag, "duration", usage, func(text string) error {
		d, err := time.ParseDuration(text)
		switch {
		case err != nil:
			return err
		case d < least || d%unit != 0:
			return clikit.Usagef("--%s %s: %s", flag, d, want)
		}
		set(int(d / unit))
		return nil
	})
}

// addTags adds a flag that sets tags.
func addTags(cmd *cobra.Command, field **api.Tags, flag, usage string) {
	tags := new(api.Tags)
	cmd.Flags().StringToStringVar((*map[string]string)(tags), flag, nil, usage)
	f := cmd.Flags().Lookup(flag)
	f.Value = tagsValue{f.Value, func() { *field = tags }}
}

// tagsValue is the value of a flag for tags, which tells when it is given.
type tagsValue struct {
	pflag.Value
	given func()
}

func (t tagsValue) Set(text string) error {
	t.given()
	return t.Value.Set(text)
}

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

// addStateFlag adds --state, which filters a list. all are the states that it takes, and of
// is whose states they are, for the error message.
func addStateFlag[T ~string](cmd *cobra.Command, given *[]T, of string, all ...T) {
	var names []string
	for _, s := range all {
		names = append(names, string(s))
	}
	choose := strings.Join(names, ", ")
	addField(cmd, "state", "strings", "only those in one of these states: "+choose, func(text string) error {
		for word := range strings.SplitSeq(text, ",") {
			if !slices.Contains(all, T(word)) {
				return fmt.Errorf("%q is not a state of %s: choose among %s", word, of, choose)
			}
			*given = append(*given, T(word))
		}
		return nil
	})
	clikit.CompleteFlag(cmd, "state", names...)
}
