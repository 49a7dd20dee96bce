package demoserver

import (
	"reflect"
	"regexp"
	"strings"
	"testing"
)

// The module requires no other one, a library of assertions neither: these few are its own.

func requireNoError(t *testing.T, err error, about ...any) {
	t.Helper()
	if err != nil {
		t.Fatal(err, about)
	}
}

func assertEqual[T any](t *testing.T, want, got T, about ...any) {
	t.Helper()
	if !reflect.DeepEqual(want, got) {
		t.Errorf("want %v, got %v; %v", want, got, about)
	}
}

func assertLen[T any](t *testing.T, want int, got []T, about ...any) {
	t.Helper()
	if len(got) != want {
		t.Errorf("want %d, got %v; %v", want, got, about)
	}
}

func assertContains(t *testing.T, text, part string, about ...any) {
	t.Helper()
	if !strings.Contains(text, part) {
		t.Errorf("want %q in %q; %v", part, text, about)
	}
}

func assertMatches(t *testing.T, pattern, text string) {
	t.Helper()
	if !regexp.MustCompile(pattern).MatchString(text) {
		t.Errorf("want %q to match %s", text, pattern)
	}
}
