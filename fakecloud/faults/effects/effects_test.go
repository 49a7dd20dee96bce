package effects_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/faults/effects"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
)

func TestRemoveField(t *testing.T) {
	const thing = `{"id":1234567890123456789,"a":{"b":"<1>","c":2},"tags":{"x.y/z":"1","k":"2"},
		"list":[{"b":1},{"b":2,"c":3}]}`
	for path, want := range map[string]string{
		"id":  `{"a":{"b":"<1>","c":2},"tags":{"x.y/z":"1","k":"2"},"list":[{"b":1},{"b":2,"c":3}]}`,
		"a b": `{"id":1234567890123456789,"a":{"c":2},"tags":{"x.y/z":"1","k":"2"},"list":[{"b":1},{"b":2,"c":3}]}`,
		"list b": `{"id":1234567890123456789,"a":{"b":"<1>","c":2},"tags":{"x.y/z":"1","k":"2"},
			"list":[{},{"c":3}]}`,
		"list 1 b": `{"id":1234567890123456789,"a":{"b":"<1>","c":2},"tags":{"x.y/z":"1","k":"2"},
			"list":[{"b":1},{"c":3}]}`,
		"tags x y/z": `{"id":1234567890123456789,"a":{"b":"<1>","c":2},"tags":{"k":"2"},"list":[{"b":1},{"b":2,"c":3}]}`,
		"none b":     thing,
		"id b":       thing,
		"list 7 b":   thing,
	} {
		got := must.Do(effects.RemoveField(json.RawMessage(thing), strings.Fields(path)...))(t, path)
		assert.JSONEq(t, want, string(got), path)
		if path != "id" {
			assert.Contains(t, string(got), "1234567890123456789", "numbers keep their digits")
		}
	}
	_, err := effects.RemoveField(json.RawMessage(thing))
	require.ErrorContains(t, err, "empty path")
}

func TestChangeAt(t *testing.T) {
	const whole = `{"a/b":[{"list":[1,2,3]},{"list":null}],"thing":{}}`
	keepOne := func(list json.RawMessage) (json.RawMessage, error) { return effects.ShortenList(list, 1) }
	for pointer, want := range map[string]string{
		"/a~1b/0/list": `{"a/b":[{"list":[1]},{"list":null}],"thing":{}}`,
		"/a~1b/1/list": `{"a/b":[{"list":[1,2,3]},{"list":[]}],"thing":{}}`,
		"/a~1b":        `{"a/b":[{"list":[1,2,3]}],"thing":{}}`,
	} {
		got := must.Do(effects.ChangeAt(json.RawMessage(whole), pointer, keepOne))(t, pointer)
		assert.JSONEq(t, want, string(got), pointer)
	}
	for _, pointer := range []string{"/none", "/a~1b/2", "/a~1b/list", "/thing/list", ""} {
		_, err := effects.ChangeAt(json.RawMessage(whole), pointer, keepOne)
		require.Error(t, err, pointer)
	}
}

func TestCaptureIsBounded(t *testing.T) {
	answer := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		assert.Empty(t, r.Header)
		w.WriteHeader(http.StatusEarlyHints)
		_, _ = w.Write([]byte("four"))
		_, _ = w.Write([]byte("more"))
	})
	r := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
	r.Header.Set("If-None-Match", `"1"`)
	a, err := effects.Capture(answer, r, 8)
	require.NoError(t, err)
	assert.Equal(t, effects.Answer{Status: http.StatusOK, Header: http.Header{}, Body: []byte("fourmore")}, a)
	_, err = effects.Capture(answer, r, 7)
	require.ErrorIs(t, err, effects.ErrTooLong)
	a = must.Do(effects.Capture(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), r, 7))(t)
	assert.Equal(t, http.StatusOK, a.Status, "a handler that writes nothing")
}

// A question is answered as it was first. What no place is left for is answered truly, and an error is
// not kept.
func TestAnswers(t *testing.T) {
	var kept effects.Answers
	get := func(question, now string, failure error) (string, error) {
		a, err := kept.GetOrCapture(question, func() (effects.Answer, error) {
			return effects.Answer{Body: []byte(now)}, failure
		})
		return string(a.Body), err
	}
	_, err := get("a", "", errors.New("no"))
	require.Error(t, err)
	for _, now := range []string{"first", "second"} {
		got := must.Do(get("a", now, nil))(t)
		assert.Equal(t, "first", got)
	}
	huge := strings.Repeat("x", 32<<20)
	for _, now := range []string{huge, "small"} {
		got := must.Do(get("b", now, nil))(t)
		assert.Len(t, got, len(now))
	}
	simultaneous := must.Do(kept.GetOrCapture("c", func() (effects.Answer, error) {
		_, err := get("c", "first", nil)
		return effects.Answer{Body: []byte("second")}, err
	}))(t)
	assert.Equal(t, "first", string(simultaneous.Body))
}
