package dataplane

import (
	"errors"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// listenConfig turns on TCP keep-alives after 15 silent seconds, to notice clients that
// have vanished. On Linux connections inherit that from the listener, which saves four
// system calls for each connection.
var listenConfig = net.ListenConfig{KeepAlive: -1, Control: func(network, _ string, c syscall.RawConn) error {
	if network != "tcp4" && network != "tcp6" {
		return nil
	}
	var err error
	failed := c.Control(func(fd uintptr) {
		err = errors.Join(
			unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1),
			unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, 15),
			unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, 15),
			unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_KEEPCNT, 9),
		)
	})
	return errors.Join(failed, err)
}}
