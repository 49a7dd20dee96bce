package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/clikit"
)

// specifiedKind completes a kind by openapi.yaml: x-columns of its schema are the table's columns.
func specifiedKind[T any](k resourceKind[T], schema string) resourceKind[T] {
	text, _ := schemaOf(schema).Extensions["x-columns"].(string)
	var fields []string
	for _, column := range strings.Fields(text) {
		header, field, _ := strings.Cut(column, "=")
		k.columns, fields = strings.TrimSpace(k.columns+" "+header), append(fields, field)
	}
	k.row = func(one T) (cells []string) {
		has := toMap(one)
		for _, field := range fields {
			cells = append(cells, k.formatCell(field, has[field]))
		}
		return cells
	}
	return k
}

func schemaOf(name string) *openapi3.Schema {
	spec, err := loadSpec()
	if err != nil {
		panic(fmt.Sprintf("the API's spec: %v", err)) // It is embedded.
	}
	return spec.Components.Schemas[name].Value
}

func (a *app) formatCell(field string, value any) string {
	if text, ok := value.(string); ok && strings.HasSuffix(field, "At") {
		if at, err := time.Parse(time.RFC3339, text); err == nil {
			return a.formatAge(at)
		}
	}
	if value == nil {
		return "-"
	}
	return fmt.Sprint(value)
}

// referredKind is how the command line refers to resources of a kind, where the API has their IDs.
type referredKind struct {
	find     func(ctx context.Context, c *client.Client, ref string) (id string, err error)
	complete cobra.CompletionFunc
}

// createFlag is a flag for a field of the request that creates a resource: x-flag is "VALUE: usage".
type createFlag struct {
	field, name, value, text string
	refersTo                 string // a kind's key, as x-reference has it; "" if it refers to none
}

// createBySchema is the command that creates a resource by flags for the fields of the schema that have x-flag.
func createBySchema[T, C any](
	k resourceKind[T],
	schema, example string,
	referred map[string]referredKind,
	do func(*client.Client, context.Context, C) (*T, error),
) *cobra.Command {
	var flags []*createFlag
	var tags *api.Tags
	cmd := k.callCommand(&cobra.Command{
		Use: "create NAME", Short: "Create a " + k.name, Args: clikit.RequireArguments(1, 1), Example: example,
	}, func(ctx context.Context, c *client.Client, args []string) (*T, error) {
		given, missing, needs := map[string]any{"name": args[0], "tags": tags}, false, []string{}
		for _, f := range flags {
			given[f.field] = f.text
			if slices.Contains(schemaOf(schema).Required, f.field) {
				missing, needs = missing || f.text == "", append(needs, "--"+f.name+" "+f.value)
			}
		}
		if missing {
			return nil, clikit.Usagef("a %s needs %s", k.name, strings.Join(needs, " and "))
		}
		for _, f := range flags {
			if find := referred[f.refersTo].find; find != nil {
				var err error
				if given[f.field], err = find(ctx, c, f.text); err != nil {
					return nil, err
				}
			}
		}
		var body C
		text, err := json.Marshal(given)
		if err = errors.Join(err, json.Unmarshal(text, &body)); err != nil {
			return nil, err
		}
		return do(c, ctx, body)
	})
	properties := schemaOf(schema).Properties
	for _, field := range slices.Sorted(maps.Keys(properties)) {
		text, ok := properties[field].Value.Extensions["x-flag"].(string)
		if !ok {
			continue
		}
		f := &createFlag{field: field, name: strings.TrimSuffix(field, "Id")}
		value, usage, _ := strings.Cut(text, ": ")
		f.value = value
		flags = append(flags, f)
		cmd.Flags().StringVar(&f.text, f.name, "", usage)
		if f.refersTo, ok = properties[field].Value.Extensions["x-reference"].(string); ok {
			clikit.CompleteFlagBy(cmd, f.name, referred[f.refersTo].complete)
		}
	}
	addTags(cmd, &tags, "tag", "KEY=VALUE; repeatable")
	return cmd
}

func (a *app) referredKinds() map[string]referredKind {
	return map[string]referredKind{"instances": {
		find: func(ctx context.Context, c *client.Client, ref string) (string, error) {
			in, err := resolveInstance(ctx, c, ref)
			return api.ValueOf(in).ID, err
		},
		complete: a.instanceKind().completeRefs(),
	}}
}
