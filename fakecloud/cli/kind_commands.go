package cli

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/clikit"
)

//go:generate go run -trimpath -tags=osusergo,netgo,sqlite_omit_load_extension ./flagtable

// referredKind is how the command line refers to resources of a kind. Without find, the API has their names, too.
type referredKind struct {
	find     func(ctx context.Context, c *client.Client, ref string) (id string, err error)
	complete cobra.CompletionFunc
}

func (a *app) referredKinds() map[string]referredKind {
	return map[string]referredKind{
		"instances": referTo(a.instanceKind()), "networks": referTo(a.networkKind()),
		"addresses": referTo(a.addressKind()), "certificates": referTo(a.certificateKind()), "projects": referTo(a.projectKind()),
		"zones": {complete: a.completeZones()}, "tokens": {complete: a.tokenKind(new(string)).completeRefs()},
	}
}

func referTo[T any](k resourceKind[T]) referredKind {
	find := func(ctx context.Context, c *client.Client, ref string) (string, error) {
		one, err := k.findByRef(ctx, c, ref)
		if err != nil {
			return "", err
		}
		return k.idOf(*one), nil
	}
	return referredKind{find, k.completeRefs()}
}

// parsers read what stands for an object, by its schema. Their errors say what they want.
var parsers = map[string]func(text string) (any, error){
	"FirewallRule": parseFirewallRule, "HealthCheck": parseHealthCheck, "Listener": parseListener,
}

// requestReader makes a request's fields of the flags given.
type requestReader struct {
	cmd      *cobra.Command
	fields   []flagField
	values   []any // pointers
	referred map[string]referredKind
}

func (a *app) addRequestFlags(cmd *cobra.Command, schema string) *requestReader {
	r := &requestReader{cmd: cmd, fields: requestFlags[schema], referred: a.referredKinds()}
	flags := cmd.Flags()
	for _, f := range r.fields {
		var value any
		switch f.kind {
		case "string", "time", "file":
			value = flags.String(f.name, "", f.usage)
		case "integer":
			value = flags.Int64(f.name, 0, f.usage)
		case "number":
			value = flags.Float64(f.name, 0, f.usage)
		case "boolean":
			value = flags.Bool(f.name, false, f.usage)
		case "duration", "fraction":
			value = flags.Duration(f.name, 0, f.usage)
		case "strings":
			value = flags.StringSlice(f.name, nil, f.usage)
		case "stringArray":
			value = flags.StringArray(f.name, nil, f.usage)
		case "stringToString":
			value = flags.StringToString(f.name, nil, f.usage)
		}
		r.values = append(r.values, value)
		if f.enum != nil {
			clikit.CompleteFlag(cmd, f.name, f.enum...)
		} else if f.reference != "" {
			clikit.CompleteFlagBy(cmd, f.name, r.referred[f.reference].complete)
		}
	}
	return r
}

// read makes the fields of a request, as JSON has them.
func (r *requestReader) read(ctx context.Context, c *client.Client) (map[string]any, error) {
	given := map[string]any{}
	for i, f := range r.fields {
		value := reflect.ValueOf(r.values[i]).Elem().Interface()
		if !r.cmd.Flags().Changed(f.name) || f.omitEmpty && value == "" {
			continue
		}
		value, err := r.convert(ctx, c, f, value)
		if err != nil {
			return nil, err
		}
		setField(given, strings.Split(f.path, "."), value)
	}
	return given, nil
}

// checkRequired returns an error if a text that the request needs was not given.
func (r *requestReader) checkRequired(kind string) error {
	missing, needs := false, []string{}
	for i, f := range r.fields {
		if text, ok := r.values[i].(*string); ok && f.required {
			missing, needs = missing || *text == "", append(needs, "--"+f.name+" "+f.value)
		}
	}
	if missing {
		return clikit.Usagef("a %s needs %s", kind, strings.Join(needs, " and "))
	}
	return nil
}

func setField(fields map[string]any, path []string, value any) {
	for _, step := range path[:len(path)-1] {
		inner, ok := fields[step].(map[string]any)
		if !ok {
			inner = map[string]any{}
			fields[step] = inner
		}
		fields = inner
	}
	fields[path[len(path)-1]] = value
}

// convert makes what the API takes of a flag's value.
func (r *requestReader) convert(ctx context.Context, c *client.Client, f flagField, value any) (any, error) {
	switch value := value.(type) {
	case time.Duration:
		return f.convertDuration(value)
	case string:
		if _, err := time.Parse(time.RFC3339, value); f.kind == "time" && err != nil {
			return nil, clikit.Usagef("--%s %q: give a time such as 2026-01-02T15:04:05Z", f.name, value)
		}
		if f.kind == "file" {
			content, err := os.ReadFile(value)
			return string(content), err
		}
		if value == "" && f.reference != "" {
			return value, nil // It refers to nothing any more.
		}
		return r.convertText(ctx, c, f, value)
	case []string:
		all := []any{}
		for _, text := range value {
			one, err := r.convertText(ctx, c, f, text)
			if err != nil {
				return nil, err
			}
			all = append(all, one)
		}
		return all, nil
	}
	return value, nil
}

func (r *requestReader) convertText(ctx context.Context, c *client.Client, f flagField, text string) (any, error) {
	if f.parse != "" {
		value, err := parsers[f.parse](text)
		if err != nil {
			return nil, clikit.Usagef("--%s %q: %w", f.name, text, err)
		}
		return toMap(value), nil
	}
	find := r.referred[f.reference].find
	if find == nil {
		return text, nil
	}
	if _, err := netip.ParseAddr(text); err == nil && f.item != "" {
		return map[string]any{"ip": text}, nil // A target.
	}
	id, err := find(ctx, c, text)
	if err == nil && f.item != "" {
		return map[string]any{f.item: id}, nil
	}
	return id, err
}

// convertDuration makes the number of a duration's units, which are whole seconds or milliseconds.
func (f flagField) convertDuration(d time.Duration) (any, error) {
	unit, name := time.Second, "seconds"
	if f.kind == "fraction" || strings.HasSuffix(f.path, "Milliseconds") {
		unit, name = time.Millisecond, "milliseconds"
	}
	switch {
	case d%unit != 0:
		return nil, clikit.Usagef("--%s %s: give whole %s", f.name, d, name)
	case f.positive && d < unit:
		return nil, clikit.Usagef("--%s %s: give whole %s, %s or more", f.name, d, name, unit)
	case f.kind == "fraction":
		return d.Seconds(), nil
	}
	return int(d / unit), nil
}

// listBy makes a kind's list of the client's call.
func listBy[T, F any](list func(*client.Client, context.Context, F) ([]T, error)) func(
	context.Context, *client.Client, map[string]any,
) ([]T, error) {
	return func(ctx context.Context, c *client.Client, filter map[string]any) ([]T, error) {
		f, err := decodeInto[F](filter)
		if err != nil {
			return nil, err
		}
		return list(c, ctx, f)
	}
}

// request is how a kind's resources are created or updated: the request's schema, and the call.
type request[T any] struct {
	schema string
	send   func(ctx context.Context, c *client.Client, id string, fields map[string]any) (*T, error)
}

func updateBy[T, U any](update func(*client.Client, context.Context, string, U) (*T, error)) request[T] {
	return request[T]{
		reflect.TypeFor[U]().Name(),
		func(ctx context.Context, c *client.Client, id string, fields map[string]any) (*T, error) {
			body, err := decodeInto[U](fields)
			if err != nil {
				return nil, err
			}
			return update(c, ctx, id, body)
		},
	}
}

func createBy[T, C any](create func(*client.Client, context.Context, C) (*T, error)) request[T] {
	return updateBy(func(c *client.Client, ctx context.Context, _ string, body C) (*T, error) {
		return create(c, ctx, body)
	})
}

// createCommand completes the command that creates a resource. If its Use has [NAME], the cloud chooses a name otherwise.
func (k resourceKind[T]) createCommand(cmd *cobra.Command) *cobra.Command {
	least, most := strings.Count(cmd.Use, " NAME"), strings.Count(cmd.Use, "NAME")
	cmd.Args = clikit.RequireArguments(least, most)
	if most == 0 {
		cmd.Args = nil
	}
	var w waiter
	flags := k.addRequestFlags(cmd, k.create.schema)
	cmd.RunE = k.withClient(func(cmd *cobra.Command, c *client.Client, args []string) error {
		if err := flags.checkRequired(k.name); err != nil {
			return err
		}
		given, err := flags.read(cmd.Context(), c)
		if err != nil {
			return err
		}
		if len(args) == 1 {
			if other, ok := given["name"]; ok && other != args[0] {
				return clikit.Usagef("two names, %q and %q: give one", args[0], other)
			}
			given["name"] = args[0]
		}
		return k.change(cmd, c, &w, given, nil, func(ctx context.Context) (*T, error) { return k.create.send(ctx, c, "", given) })
	})
	return k.withWait(cmd, &w)
}

// withWait adds -o and, if the kind's changes take time, --wait.
func (k resourceKind[T]) withWait(cmd *cobra.Command, w *waiter) *cobra.Command {
	k.addOutput(cmd)
	if k.await != nil {
		w.addFlags(k.app, cmd)
	}
	return cmd
}

// updateCommand completes the command that changes a resource.
func (k resourceKind[T]) updateCommand(cmd *cobra.Command) *cobra.Command {
	cmd.Use, cmd.Args, cmd.ValidArgsFunction = "update NAME|ID", clikit.RequireArguments(1, 1), k.completeRefs()
	var w waiter
	flags := k.addRequestFlags(cmd, k.update.schema)
	emptied := map[string]*bool{}
	for _, f := range flags.fields {
		if f.none != "" {
			emptied[f.path] = cmd.Flags().Bool("no-"+f.name+"s", false, f.none)
		}
	}
	cmd.RunE = k.withClient(func(cmd *cobra.Command, c *client.Client, args []string) error {
		for _, f := range flags.fields {
			if none := emptied[f.path]; none != nil && *none && cmd.Flags().Changed(f.name) {
				return clikit.Usagef("--no-%ss, and a --%s: give one of the two", f.name, f.name)
			}
		}
		if !slices.ContainsFunc(flags.fields, func(f flagField) bool {
			return cmd.Flags().Changed(f.name) || f.none != "" && *emptied[f.path]
		}) {
			return clikit.Usagef("nothing to update: see `%s --help`", cmd.CommandPath())
		}
		one, err := k.findByRef(cmd.Context(), c, args[0])
		if err != nil {
			return err
		}
		given, err := flags.read(cmd.Context(), c)
		if err != nil {
			return err
		}
		for _, f := range flags.fields {
			if f.none != "" && *emptied[f.path] {
				given[f.path] = map[bool]any{true: map[string]any{}, false: []any{}}[f.kind == "stringToString"]
			}
		}
		return k.change(cmd, c, &w, given, one, func(ctx context.Context) (*T, error) {
			return k.update.send(ctx, c, k.idOf(*one), given)
		})
	})
	return k.withWait(cmd, &w)
}

// change completes a request, sends it, waits for the change if --wait asks for that, and prints the resource.
func (k resourceKind[T]) change(
	cmd *cobra.Command,
	c *client.Client,
	w *waiter,
	given map[string]any,
	has *T,
	send func(context.Context) (*T, error),
) error {
	if k.completeRequest != nil {
		if err := k.completeRequest(cmd, given, has); err != nil {
			return err
		}
	}
	changed := make([]T, 1)
	err := w.recordOperation(cmd.Context(), func(ctx context.Context) (string, error) {
		one, err := send(ctx)
		if err != nil {
			return "", err
		}
		changed[0] = *one
		return k.idOf(*one), nil
	})
	if err != nil {
		return err
	}
	if k.await != nil {
		err = k.await(w, cmd, c, changed)
	}
	return k.printFound(cmd, changed, 1, err)
}

// header is the table's header, and the field of each column, by x-columns of the kind's schema.
func (k resourceKind[T]) header() (header string, fields []string) {
	var names []string
	for _, column := range strings.Fields(tableColumns[reflect.TypeFor[T]().Name()]) {
		name, field, _ := strings.Cut(column, "=")
		names, fields = append(names, name), append(fields, field)
	}
	return strings.Join(names, " "), fields
}

// cellsOf is a resource's row: those cells that the kind has a function for, by their header, and fields otherwise.
func (k resourceKind[T]) cellsOf(one T) (cells []string) {
	header, fields := k.header()
	has := toMap(one)
	for i, name := range strings.Fields(header) {
		if cell := k.cells[strings.TrimPrefix(name, "+")]; cell != nil {
			cells = append(cells, cell(one))
			continue
		}
		outer, inner, nested := strings.Cut(fields[i], ".")
		value := has[outer]
		if within, ok := value.(map[string]any); ok && nested {
			value = within[inner]
		}
		cells = append(cells, k.formatCell(name, value))
	}
	return cells
}

func (a *app) formatCell(header string, value any) string {
	switch value := value.(type) {
	case nil:
		return "-"
	case bool:
		return map[bool]string{true: "yes", false: "no"}[value]
	case []any:
		return fmt.Sprint(len(value))
	case map[string]any:
		tags := map[string]string{}
		for key, v := range value {
			tags[key] = fmt.Sprint(v)
		}
		return tagText(tags)
	case float64:
		return strconv.FormatFloat(value, 'f', -1, 64)
	case string:
		at, err := time.Parse(time.RFC3339, value)
		switch {
		case err == nil && header == "AGE":
			return a.formatAge(at)
		case err == nil:
			return at.Format(time.RFC3339)
		}
	}
	return fmt.Sprint(value)
}

// renameCommand is the updateCommand of a kind of which only the name and the tags can change.
func (k resourceKind[T]) renameCommand() *cobra.Command {
	k.await = nil // It is done at once.
	return k.updateCommand(&cobra.Command{
		Short: "Rename one " + k.name + ", or replace its tags",
		Example: fmt.Sprintf(`  fakecloud %s update one --name other
  fakecloud %s update one --tag a=b --tag c=d`, k.group, k.group),
	})
}

// kindCommand is the group of the commands that all kinds have. one is a name for examples.
func (k resourceKind[T]) kindCommand(short, example, one string, create, update *cobra.Command) *cobra.Command {
	command := "  fakecloud " + k.group
	return groupCommand(k.group, short, example,
		k.filteredListCommand("List "+k.group+", oldest first", command+" list --tag cluster=lab"),
		k.getCommand("Show "+k.group, command+" get "+one+" -o yaml"),
		create, update,
		k.deleteCommand("delete", "Delete "+cmp.Or(k.removable, k.group), command+" delete "+one, k.remove))
}
