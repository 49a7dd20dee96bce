package client

// What an answer must have. Callers act on fields: one that is not there must not be taken for an
// empty one.

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
	"strings"
)

// incompleteError is an answer without a field that the API promises.
type incompleteError struct{ path, id string }

func (e *incompleteError) Error() string {
	if e.id == "" {
		return e.path + " is missing"
	}
	return fmt.Sprintf("%s of %s is missing", e.path, e.id)
}

// decodeWhole decodes a JSON value into out. It fails if the value lacks a field that openapi.yaml
// requires, which the generated types tell from optional ones by their tags, or one that must be
// there by what the others say.
func decodeWhole(content []byte, out any) error {
	if err := json.Unmarshal(content, out); err != nil {
		return err
	}
	raw := json.NewDecoder(bytes.NewReader(content))
	raw.UseNumber()
	var value any
	if err := raw.Decode(&value); err != nil {
		return err
	}
	if missing := findMissing(reflect.ValueOf(out).Elem(), value); missing != nil {
		return missing
	}
	return nil
}

// conditional is a type of which optional fields are required in some states.
type conditional interface{ MissingField() string }

// findMissing returns what the value lacks that decoded has a required field for, or nil.
func findMissing(decoded reflect.Value, value any) *incompleteError {
	switch decoded.Kind() {
	case reflect.Pointer:
		return findMissing(decoded.Elem(), value)
	case reflect.Slice:
		items, _ := value.([]any)
		for i := range min(len(items), decoded.Len()) {
			if missing := findMissing(decoded.Index(i), items[i]); missing != nil {
				return missing.within(strconv.Itoa(i))
			}
		}
	case reflect.Struct:
		if _, whole := decoded.Addr().Interface().(json.Unmarshaler); !whole { // Such as a time.
			return findMissingField(decoded, value)
		}
	}
	return nil
}

func findMissingField(decoded reflect.Value, value any) *incompleteError {
	object, _ := value.(map[string]any)
	for i := range decoded.NumField() {
		field := decoded.Type().Field(i)
		if field.Anonymous { // Its fields stand beside the others.
			if missing := findMissingField(decoded.Field(i), value); missing != nil {
				return missing
			}
			continue
		}
		name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		switch below := object[name]; {
		case below != nil:
			if missing := findMissing(decoded.Field(i), below); missing != nil {
				return missing.within(name).of(object)
			}
		case options == "":
			return (&incompleteError{path: name}).of(object)
		}
	}
	if c, ok := decoded.Addr().Interface().(conditional); ok {
		if name := c.MissingField(); name != "" {
			return (&incompleteError{path: name}).of(object)
		}
	}
	return nil
}

// of names the resource that lacks the field, unless one inside it is named already.
func (e *incompleteError) of(resource map[string]any) *incompleteError {
	if id, ok := resource["id"].(string); ok && e.id == "" {
		e.id = id
	}
	return e
}

// within leads to the field from one level higher.
func (e *incompleteError) within(key string) *incompleteError {
	e.path = key + "." + e.path
	return e
}
