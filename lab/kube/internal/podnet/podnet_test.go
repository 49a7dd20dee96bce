package podnet

import (
	"net/netip"
	"testing"
)

func TestToLoopback(t *testing.T) {
	for given, want := range map[string]string{
		"10.30.128.5":        "127.30.128.5",
		"::ffff:10.30.128.5": "127.30.128.5",
		"127.30.16.1":        "127.30.16.1",
		"192.0.2.7":          "192.0.2.7",
		"2001:db8::1":        "2001:db8::1",
	} {
		if got := ToLoopback(netip.MustParseAddr(given)).String(); got != want {
			t.Errorf("Realised(%s) = %s, want %s", given, got, want)
		}
	}
}

func TestToLoopbackStringRejectsNames(t *testing.T) {
	if got, err := ToLoopbackString("web.default"); err == nil {
		t.Errorf("a name became the address %q", got)
	}
}
