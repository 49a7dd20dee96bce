package client

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// answeredField is a field of a kind of resource, by its dotted path.
type answeredField struct {
	path     string
	required bool // in what it is in, if that is there
}

// fieldsOf are all fields that openapi.yaml gives an object, those of objects and lists in it too.
func fieldsOf(s *openapi3.Schema, prefix string) (all []answeredField) {
	if s.Items != nil {
		return fieldsOf(s.Items.Value, prefix)
	}
	for _, part := range s.AllOf {
		all = append(all, fieldsOf(part.Value, prefix)...)
	}
	for name, field := range s.Properties {
		all = append(all, answeredField{prefix + name, slices.Contains(s.Required, name)})
		all = append(all, fieldsOf(field.Value, prefix+name+".")...)
	}
	return all
}

// fill sets each field of a value, also those that are optional.
func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem())
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			v.Set(reflect.ValueOf(time.Unix(1, 0).UTC()))
			return
		}
		for n := range v.NumField() {
			fill(v.Field(n))
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0))
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(reflect.Zero(v.Type().Key()), reflect.Zero(v.Type().Elem()))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.String:
		v.SetString("x")
	case reflect.Float64:
		v.SetFloat(1)
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(1)
	}
}

// without removes the field of a dotted path from a JSON value. It tells whether the field was there.
func without(value any, path string) (wasThere bool) {
	name, rest, isBelow := strings.Cut(path, ".")
	switch value := value.(type) {
	case []any:
		return without(value[0], path)
	case map[string]any:
		if isBelow {
			return without(value[name], rest)
		}
		_, wasThere = value[name]
		delete(value, name)
	}
	return wasThere
}

// An answer that lacks a field is refused, and the error names the field, exactly if openapi.yaml requires it.
func TestMissingFields(t *testing.T) {
	spec, err := openapi3.NewLoader().LoadFromData(api.Spec)
	require.NoError(t, err)
	for schema, out := range map[string]any{
		"Instance": &api.Instance{}, "LoadBalancer": &api.LoadBalancer{}, "Route": &api.Route{},
		"ReservedAddress": &api.ReservedAddress{}, "Project": &api.Project{}, "Event": &api.Event{},
	} {
		fill(reflect.ValueOf(out).Elem())
		whole, err := json.Marshal(out)
		require.NoError(t, err)
		require.NoError(t, decodeWhole(whole, out), schema)
		for _, field := range fieldsOf(spec.Components.Schemas[schema].Value, "") {
			var value map[string]any
			require.NoError(t, json.Unmarshal(whole, &value))
			require.True(t, without(value, field.path), "%s.%s", schema, field.path)
			partial, err := json.Marshal(value)
			require.NoError(t, err)
			err = decodeWhole(partial, reflect.New(reflect.TypeOf(out).Elem()).Interface())
			if field.required {
				last := field.path[strings.LastIndex(field.path, ".")+1:]
				assert.Regexp(t, `\b`+last+"( of x)? is missing$", err, "%s.%s", schema, field.path)
			} else {
				assert.NoError(t, err, "%s.%s", schema, field.path)
			}
		}
	}
}

// Some fields are required by what others say.
func TestMissingConditionalFields(t *testing.T) {
	var lb api.LoadBalancer
	var address api.ReservedAddress
	var event api.Event
	for want, out := range map[string]any{"ipv6Address": &lb, "holder": &address, "instance": &event} {
		fill(reflect.ValueOf(out).Elem())
		lb.IPFamilies, lb.IPv6Address = []api.IPFamily{api.IPv6}, ""
		address.State, address.Holder = api.AddressHeld, nil
		event.Resource, event.Instance = api.ResourceInstance, nil
		partial, err := json.Marshal(out)
		require.NoError(t, err)
		assert.ErrorContains(t, decodeWhole(partial, out), want+" of ")
	}
}

// Neither an answer nor an event that lacks a field is passed on.
func TestAnswersAreWhole(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/events" {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = fmt.Fprint(w, "id: 1\nevent: updated\ndata: {}\n\n")
			return
		}
		_, _ = fmt.Fprint(w, "{}")
	}))
	t.Cleanup(server.Close)
	token := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(token, []byte("secret"), 0o600))
	c, err := New(Config{URL: server.URL, TokenFile: token})
	require.NoError(t, err)
	_, err = c.GetInstance(t.Context(), "i-1")
	require.ErrorContains(t, err, "is not what its API promises: ")

	err = c.Watch(t.Context(), FromOldest, false, func(api.Event) error { return errors.New("it was passed on") })
	require.ErrorContains(t, err, "is not what the API promises: ")
}
