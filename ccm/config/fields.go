package config

// How fields get their values: from the file, then from the environment, both by the
// same rules. Every error names the field.

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

// fieldError is what is wrong with one field.
type fieldError struct {
	path string
	err  error
}

func (e *fieldError) Error() string { return e.err.Error() }
func (e *fieldError) Unwrap() error { return e.err }

// field is a leaf of Config.
type field struct {
	path, env string
	value     reflect.Value
}

// fillFields sets the fields of c from the file's content (given) and from the
// environment.
func fillFields(c *Config, given map[string]any, getenv func(string) string) (errs []*fieldError) {
	return fillStruct(reflect.ValueOf(c).Elem(), "", given, getenv)
}

func fillStruct(
	v reflect.Value, prefix string, given map[string]any, getenv func(string) string,
) (errs []*fieldError) {
	unknown := maps.Clone(given)
	var names []string
	for i := range v.NumField() {
		name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
		names = append(names, name)
		f := field{path: prefix + name, env: v.Type().Field(i).Tag.Get("env"), value: v.Field(i)}
		content, isSet := given[name]
		delete(unknown, name)
		if f.env == "" {
			below, ok := content.(map[string]any)
			if content != nil && !ok {
				errs = append(errs, &fieldError{f.path, fmt.Errorf(
					"%s: want fields of its own below it, not %s", f.path, formatValue(content))})
			}
			errs = append(errs, fillStruct(f.value, f.path+".", below, getenv)...)
			continue
		}
		if isSet && content != nil {
			errs = appendErr(errs, f.setValue(content, f.path))
		}
		if value := getenv(f.env); value != "" {
			errs = appendErr(errs, f.setValue(value, f.env))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(unknown)) {
		errs = append(errs, &fieldError{prefix + name, fmt.Errorf(
			"unknown field %q: there are %s", prefix+name, strings.Join(names, ", "))})
	}
	return errs
}

func appendErr(errs []*fieldError, err *fieldError) []*fieldError {
	if err == nil {
		return errs
	}
	return append(errs, err)
}

// setValue sets the field to a value of the file or the environment. from is the name
// that the value has there.
func (f field) setValue(content any, from string) *fieldError {
	wrong := func(want string) *fieldError {
		return &fieldError{f.path, fmt.Errorf("%s: %s; want %s", from, formatValue(content), want)}
	}
	if list, ok := f.value.Addr().Interface().(*[]string); ok {
		items, ok := toStringList(content)
		if !ok {
			return wrong("a list of texts, e.g. [team, pool]; in the environment, team,pool")
		}
		*list = items
		return nil
	}
	if pairs, ok := f.value.Addr().Interface().(*map[string]string); ok {
		if *pairs, ok = toPairs(content); !ok {
			return wrong("texts by name, e.g. {drain: 30s}; in the environment, drain=30s;health-check=tcp")
		}
		return nil
	}
	switch content.(type) {
	case map[string]any, []any:
		return wrong("one value")
	}
	s := fmt.Sprint(content)
	var err error
	switch to := f.value.Addr().Interface().(type) {
	case *string:
		*to = s
	case *bool:
		if *to, err = strconv.ParseBool(s); err != nil {
			return wrong("true or false")
		}
	case *int:
		if *to, err = strconv.Atoi(s); err != nil {
			return wrong("a whole number")
		}
	case *float64:
		if *to, err = strconv.ParseFloat(s, 64); err != nil || math.IsInf(*to, 0) || math.IsNaN(*to) {
			return wrong("a number")
		}
	case *metav1.Duration:
		if to.Duration, err = time.ParseDuration(s); err != nil {
			return wrong("a duration with its unit, e.g. 30s or 1m30s")
		}
	default:
		return wrong(fmt.Sprintf("nothing: no value of kind %T can be set", to))
	}
	return nil
}

func toStringList(content any) (items []string, ok bool) {
	switch content := content.(type) {
	case string:
		for item := range strings.SplitSeq(content, ",") {
			if item = strings.TrimSpace(item); item != "" {
				items = append(items, item)
			}
		}
		return items, true
	case []any:
		for _, item := range content {
			s, ok := item.(string)
			if !ok {
				return nil, false
			}
			items = append(items, s)
		}
		return items, true
	}
	return nil, false
}

// toPairs takes a list with semicolons, since values have commas.
func toPairs(content any) (pairs map[string]string, ok bool) {
	switch content := content.(type) {
	case string:
		pairs = map[string]string{}
		for pair := range strings.SplitSeq(content, ";") {
			name, value, ok := strings.Cut(pair, "=")
			if !ok {
				return nil, false
			}
			pairs[strings.TrimSpace(name)] = strings.TrimSpace(value)
		}
		return pairs, true
	case map[string]any:
		if len(content) > 0 {
			pairs = map[string]string{}
		}
		for name, value := range content {
			switch value.(type) {
			case map[string]any, []any, nil:
				return nil, false
			}
			pairs[name] = fmt.Sprint(value)
		}
		return pairs, true
	}
	return nil, false
}

// formatValue quotes a value roughly as it was written.
func formatValue(content any) string {
	b, err := json.Marshal(content)
	if err != nil {
		return fmt.Sprint(content)
	}
	return string(b)
}
