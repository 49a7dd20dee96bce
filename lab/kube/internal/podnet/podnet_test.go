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
			t.Errorf("ToLoopback(%s) = %s, want %s", given, got, want)
		}
	}
}

// Ports below 1024 are moved where pods are served, and nowhere else.
func TestServedAt(t *testing.T) {
	for given, want := range map[string]string{
		"10.30.128.5:80":    "127.30.128.5:61080",
		"10.30.128.5:1023":  "127.30.128.5:62023",
		"10.30.128.5:1024":  "127.30.128.5:1024",
		"127.30.16.1:443":   "127.30.16.1:61443",
		"127.30.16.1:0":     "127.30.16.1:0",
		"192.0.2.7:80":      "192.0.2.7:80",
		"[2001:db8::1]:443": "[2001:db8::1]:443",
	} {
		if got := ServedAt(netip.MustParseAddrPort(given)).String(); got != want {
			t.Errorf("ServedAt(%s) = %s, want %s", given, got, want)
		}
	}
}
