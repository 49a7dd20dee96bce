//go:build !linux

package dataplane

import (
	"errors"
	"log/slog"
)

// packetForwarder is the kernel's part of network balancers, which only Linux has.
type packetForwarder struct{}

func newPacketForwarder(string, *slog.Logger) (*packetForwarder, error) {
	return nil, errors.New("packets are forwarded on Linux only")
}

func (*packetForwarder) createTranslation() error { return nil }

func (*packetForwarder) close() error { return nil }

func (*packetForwarder) replaceElements(elements, elements) error { return nil }

func (*packetForwarder) readCounters() (map[element]packetCount, error) { return nil, nil }
