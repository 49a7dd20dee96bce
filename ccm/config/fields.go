package config

// How fields get their values: from the file, then from the environment, both by the same rules. Every error names the
// field.

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// reportFunc reports what is wrong with the field of that path.
type reportFunc func(path, format string, args ...any)

// field is a leaf of Config.
type field struct {
	path, env string
	value     reflect.Value
}

// fillStruct sets the fields of v from the file's content (given) and from the environment.
func fillStruct(
	v reflect.Value, prefix string, given map[string]any, getenv func(string) string, report reportFunc,
) {
	unknown := maps.Clone(given)
	var names []string
	for declared, value := range v.Fields() {
		name, _, _ := strings.Cut(declared.Tag.Get("json"), ",")
		names = append(names, name)
		f := field{path: prefix + name, env: declared.Tag.Get("env"), value: value}
		content := given[name]
		delete(unknown, name)
		if f.env == "" {
			below, ok := content.(map[string]any)
			if content != nil && !ok {
				report(f.path, "%s: want fields of its own below it, not %s", f.path, formatValue(content))
			}
			fillStruct(f.value, f.path+".", below, getenv, report)
			continue
		}
		if content != nil {
			f.setValue(content, f.path, report)
		}
		if text := getenv(f.env); text != "" {
			f.setValue(text, f.env, report)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(unknown)) {
		report(prefix+name, "unknown field %q: there are %s", prefix+name, strings.Join(names, ", "))
	}
}

// setValue sets the field to a value of the file or the environment. from is the name that the value has there.
func (f field) setValue(content any, from string, report reportFunc) {
	if want, ok := parseValue(f.value.Addr().Interface(), content); !ok {
		report(f.path, "%s: %s; want %s", from, formatValue(content), want)
	}
}

// parseValue sets what to points to. want describes the values that it takes.
func parseValue(to, content any) (want string, ok bool) {
	switch to := to.(type) {
	case *[]string:
		*to, ok = toStringList(content)
		return "a list of texts, e.g. [team, pool]; in the environment, team,pool", ok
	case *map[string]string:
		*to, ok = toPairs(content)
		return "texts by name, e.g. {drain: 30s}; in the environment, drain=30s;health-check=tcp", ok
	}
	switch content.(type) {
	case map[string]any, []any:
		return "one value", false
	}
	text, err := fmt.Sprint(content), error(nil)
	switch to := to.(type) {
	case *string:
		*to = text
	case *bool:
		want = "true or false"
		*to, err = strconv.ParseBool(text)
	case *int:
		want = "a whole number"
		*to, err = strconv.Atoi(text)
	case *float64:
		want = "a number"
		*to, err = strconv.ParseFloat(text, 64)
		return want, err == nil && !math.IsInf(*to, 0) && !math.IsNaN(*to)
	case *metav1.Duration:
		want = "a duration with its unit, e.g. 30s or 1m30s"
		to.Duration, err = time.ParseDuration(text)
	}
	return want, err == nil
}

func toStringList(content any) (items []string, ok bool) {
	if text, isText := content.(string); isText {
		for item := range strings.SplitSeq(text, ",") {
			if item = strings.TrimSpace(item); item != "" {
				items = append(items, item)
			}
		}
		return items, true
	}
	list, ok := content.([]any)
	for _, item := range list {
		text, isText := item.(string)
		items, ok = append(items, text), ok && isText
	}
	return items, ok
}

// toPairs takes a list with semicolons, since values have commas.
func toPairs(content any) (pairs map[string]string, ok bool) {
	given, ok := content.(map[string]any)
	if text, isText := content.(string); isText {
		given, ok = map[string]any{}, true
		for pair := range strings.SplitSeq(text, ";") {
			name, value, isPair := strings.Cut(pair, "=")
			given[strings.TrimSpace(name)], ok = strings.TrimSpace(value), ok && isPair
		}
	}
	for name, value := range given {
		switch value.(type) {
		case map[string]any, []any, nil:
			return nil, false
		}
		if pairs == nil {
			pairs = map[string]string{}
		}
		pairs[name] = fmt.Sprint(value)
	}
	return pairs, ok
}

// formatValue quotes a value roughly as it was written.
func formatValue(content any) string {
	b, err := json.Marshal(content)
	if err != nil {
		return fmt.Sprint(content)
	}
	return string(b)
}
