//go:build !linux

package dataplane

import (
	"io"
	"net"
)

// run copies until the end of the stream, which is no error. With an error it returns the
// connection that failed.
func (p *pump) run() (*net.TCPConn, error) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := p.from.Read(buffer)
		if n > 0 {
			if _, err := p.to.Write(buffer[:n]); err != nil {
				return p.to, err
			}
			p.countMoved(n)
		}
		if err == io.EOF { //nolint:errorlint // Read says just that.
			return nil, nil
		}
		if err != nil {
			return p.from, err
		}
	}
}

// isConnectionLost tells whether a connection whose stream has ended is broken. Only Linux
// has a way to find out.
func isConnectionLost(*net.TCPConn) bool { return false }
