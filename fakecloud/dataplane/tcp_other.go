//go:build !linux

package dataplane

import "net"

var listenConfig net.ListenConfig

// isConnectionLost tells whether a connection whose stream has ended is broken. Only Linux
// has a way to find out.
func isConnectionLost(*net.TCPConn) bool { return false }

// bytesWaiting returns 0: only Linux splices, so nobody else need count.
func bytesWaiting(uintptr) int { return 0 }
