package main

import (
	"context"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"k8s.io/klog/v2"
)

// attachedInterval is how late a change of the attached addresses is seen at most. A cloud's floating IP has
// moved within a second.
const attachedInterval = 250 * time.Millisecond

// followAttached passes on the addresses in a file, and each change of them, until ctx is done. It looks now and
// then: the kernel tells of a file's changes to 128 watchers of a user at most.
func followAttached(ctx context.Context, file string, set func([]netip.Addr)) {
	if file == "" {
		return
	}
	tick := time.NewTicker(attachedInterval)
	defer tick.Stop()
	var last []netip.Addr
	for {
		if now := readAttached(file); !slices.Equal(last, now) {
			klog.InfoS("The node's attached addresses have changed", "addresses", now)
			last = now
			set(now)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// readAttached reads the addresses of a file; what is none is left out.
func readAttached(file string) (addresses []netip.Addr) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil // There are none yet.
	}
	for line := range strings.Lines(string(text)) {
		if address, err := netip.ParseAddr(strings.TrimSpace(line)); err == nil && address.Is4() {
			addresses = append(addresses, address)
		}
	}
	return addresses
}
