package faultproxy

// Answers with something missing.

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/ccmlab/ccmlab/lab/conformance"
)

// editAnswer leaves out of a JSON answer what a fault of this kind leaves out.
func editAnswer(body []byte, r Rule, kind conformance.FaultKind) ([]byte, error) {
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.UseNumber() // A number keeps its digits.
	var whole any
	if err := decoder.Decode(&whole); err != nil {
		return nil, fmt.Errorf("it is no JSON: %w", err)
	}
	var err error
	switch kind {
	case conformance.FaultMissingField:
		whole, err = omitStates(whole, r)
	case conformance.FaultPartialList:
		whole, err = shortenList(whole, r, 1)
	default:
		whole, err = shortenList(whole, r, 0)
	}
	if err != nil {
		return nil, err
	}
	return json.Marshal(whole)
}

// shortenList leaves so many items in the list, and nothing that says that there are more.
func shortenList(whole any, r Rule, keep int) (any, error) {
	whole, err := change(whole, *r.List, func(list any) (any, error) {
		items, err := itemsOf(list, r)
		return items[:min(keep, len(items))], err
	})
	for _, pointer := range r.NextPage {
		if err == nil {
			whole, err = remove(whole, pointer)
		}
	}
	return whole, err
}

// omitStates leaves out the fields that say what state things are in.
func omitStates(whole any, r Rule) (any, error) {
	omit := func(thing any) (any, error) {
		var err error
		for _, pointer := range r.StateFields {
			if thing, err = remove(thing, pointer); err != nil {
				return nil, err
			}
		}
		return thing, nil
	}
	if r.List == nil {
		return change(whole, r.Item, omit)
	}
	return change(whole, *r.List, func(list any) (any, error) {
		items, err := itemsOf(list, r)
		for i := range items {
			if err == nil {
				items[i], err = omit(items[i])
			}
		}
		return items, err
	})
}

// itemsOf is the list of an answer. Some clouds say null for one with nothing in it.
func itemsOf(list any, r Rule) ([]any, error) {
	if list == nil {
		return []any{}, nil
	}
	items, ok := list.([]any)
	if !ok {
		return nil, fmt.Errorf("it has no list at %q", *r.List)
	}
	return items, nil
}

// change replaces the value that a JSON pointer points to. It is an error if there is none.
func change(whole any, pointer string, with func(any) (any, error)) (any, error) {
	if pointer == "" {
		return with(whole)
	}
	key, rest := cutPointer(pointer)
	var err error
	switch value := whole.(type) {
	case map[string]any:
		if below, has := value[key]; has {
			value[key], err = change(below, rest, with)
			return value, err
		}
	case []any:
		if i, convErr := strconv.Atoi(key); convErr == nil && 0 <= i && i < len(value) {
			value[i], err = change(value[i], rest, with)
			return value, err
		}
	}
	return nil, fmt.Errorf("it has nothing at %q", pointer)
}

// remove removes the field that a JSON pointer points to, if it is there.
func remove(whole any, pointer string) (any, error) {
	at := strings.LastIndexByte(pointer, '/')
	if at < 0 {
		return nil, fmt.Errorf("JSON pointer %q points to no field", pointer)
	}
	key, _ := cutPointer(pointer[at:])
	changed, err := change(whole, pointer[:at], func(holder any) (any, error) {
		if object, ok := holder.(map[string]any); ok {
			delete(object, key)
		}
		return holder, nil
	})
	if err != nil { // There is nothing to remove it from.
		return whole, nil //nolint:nilerr // It is not there.
	}
	return changed, nil
}

// cutPointer is a pointer's first key, and what is left of the pointer.
func cutPointer(pointer string) (key, rest string) {
	key, rest, deeper := strings.Cut(pointer[1:], "/")
	if deeper {
		rest = "/" + rest
	}
	return strings.NewReplacer("~1", "/", "~0", "~").Replace(key), rest
}
