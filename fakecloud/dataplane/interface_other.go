//go:build !linux

package dataplane

import (
	"errors"
	"net/netip"
)

var errOnlyLinux = errors.New(
	"addresses can be added to a network interface only on Linux; start fakecloud without --load-balancer-interface",
)

func addAddress(string, netip.Addr) (bool, error) { return false, errOnlyLinux }

func removeAddress(string, netip.Addr) error { return errOnlyLinux }

func announceAddress(string, netip.Addr) error { return errOnlyLinux }
