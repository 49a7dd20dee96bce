//go:build !linux

package dataplane

import "net"

var listenConfig net.ListenConfig
