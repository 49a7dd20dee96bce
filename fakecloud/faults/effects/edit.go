package effects

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
)

// ChangeAt returns a JSON value in which change has replaced what a JSON pointer (RFC 6901) points to.
// It fails if there is nothing. What it leaves keeps its bytes.
func ChangeAt(
	value json.RawMessage,
	pointer string,
	change func(json.RawMessage) (json.RawMessage, error),
) (json.RawMessage, error) {
	if pointer == "" {
		return change(value)
	}
	key, rest := PointerKeys(pointer)[0], ""
	if end := strings.Index(pointer[1:], "/"); end >= 0 {
		rest = pointer[1+end:]
	}
	object, list := decode(value)
	var err error
	if below, has := object[key]; has {
		if object[key], err = ChangeAt(below, rest, change); err != nil {
			return nil, err
		}
		return json.Marshal(object)
	}
	if i, notIndex := strconv.Atoi(key); notIndex == nil && 0 <= i && i < len(list) {
		if list[i], err = ChangeAt(list[i], rest, change); err != nil {
			return nil, err
		}
		return json.Marshal(list)
	}
	return nil, fmt.Errorf("it has nothing at %q", pointer)
}

// decode returns the fields of an object, or the items of a list, or neither.
func decode(value json.RawMessage) (object map[string]json.RawMessage, list []json.RawMessage) {
	if json.Unmarshal(value, &list) != nil && json.Unmarshal(value, &object) != nil {
		return nil, nil
	}
	return object, list
}

// PointerKeys returns the keys of a JSON pointer (RFC 6901).
func PointerKeys(pointer string) []string {
	if pointer == "" {
		return nil
	}
	keys := strings.Split(pointer[1:], "/")
	for i, key := range keys {
		keys[i] = strings.NewReplacer("~1", "/", "~0", "~").Replace(key)
	}
	return keys
}

// ShortenList leaves keep items at most in a list. Null, which some clouds say for a list with nothing
// in it, becomes an empty list.
func ShortenList(value json.RawMessage, keep int) (json.RawMessage, error) {
	var items []json.RawMessage
	if err := json.Unmarshal(value, &items); err != nil {
		return nil, err
	}
	return json.Marshal(append([]json.RawMessage{}, items[:min(keep, len(items))]...))
}

// RemoveField removes the field that keys lead to, if it is there. A list on the way has the field
// removed from each item, or from one if the key is its index. Keys of maps may have dots: if all that
// is left of keys, joined by dots, is a key, then that one is removed.
func RemoveField(value json.RawMessage, keys ...string) (json.RawMessage, error) {
	if len(keys) == 0 {
		return nil, errors.New("there is no field at the end of an empty path")
	}
	object, list := decode(value)
	var err error
	for i := range list {
		below := keys
		if index, notIndex := strconv.Atoi(keys[0]); notIndex == nil {
			if i != index || len(keys) == 1 {
				continue
			}
			below = keys[1:]
		}
		if list[i], err = RemoveField(list[i], below...); err != nil {
			return nil, err
		}
	}
	switch {
	case list != nil:
		return json.Marshal(list)
	case object == nil:
		return value, nil // A value that is no object has no fields.
	}
	key := strings.Join(keys, ".")
	_, whole := object[key]
	if below, has := object[keys[0]]; has && !whole {
		if object[keys[0]], err = RemoveField(below, keys[1:]...); err != nil {
			return nil, err
		}
	}
	delete(object, key)
	return json.Marshal(object)
}

// HasField tells whether RemoveField would remove anything.
func HasField(value json.RawMessage, keys ...string) bool {
	without, err := RemoveField(value, keys...)
	return err == nil && !IsSame(value, without)
}

// IsSame tells whether two JSON texts say the same. What is no JSON is the same as anything.
func IsSame(a, b json.RawMessage) bool {
	var before, after any
	return json.Unmarshal(a, &before) != nil || json.Unmarshal(b, &after) != nil || reflect.DeepEqual(before, after)
}
