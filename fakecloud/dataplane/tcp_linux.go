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

// isConnectionLost tells whether a connection whose stream has ended, and which is still
// written to, is broken. The kernel reports a reset only once: if the writer gets the
// report, the reader sees what looks like an orderly end of the stream.
func isConnectionLost(c *net.TCPConn) bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return true
	}
	var closed bool
	err = raw.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		closed = err == nil && info.State == unix.BPF_TCP_CLOSE // The kernel's TCP_CLOSE.
	})
	return closed || err != nil // An error means that this process has closed it meanwhile.
}

// bytesWaiting returns how many bytes a connection has received that are not read yet.
func bytesWaiting(fd uintptr) int {
	n, _ := unix.IoctlGetInt(int(fd), unix.SIOCINQ) // 0 with an error.
	return n
}
