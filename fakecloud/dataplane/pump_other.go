//go:build !linux

package dataplane

import (
	"io"
	"net"
)

// run moves bytes until the end of the stream, which is no error. Otherwise it
// tells whose connection broke.
func (p *pump) run() (*net.TCPConn, error) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := p.from.Read(buffer)
		if n > 0 {
			if _, err := p.to.Write(buffer[:n]); err != nil {
				return p.to, err
			}
			p.moved(n)
		}
		if err == io.EOF { //nolint:errorlint // Read says just that.
			return nil, nil
		}
		if err != nil {
			return p.from, err
		}
	}
}

// gone tells whether a connection has broken at the end of whose stream we are.
// Here the system has no way to say.
func gone(*net.TCPConn) bool { return false }
