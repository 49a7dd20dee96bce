package serviceproxy

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
)

// spliceConnections copies in both directions until both have ended, or ctx is done. It passes a
// half-close on: a client that has sent everything still gets its answer. An error resets both
// connections.
func spliceConnections(ctx context.Context, client, server *net.TCPConn) {
	release := context.AfterFunc(ctx, func() { resetConnections(client, server) })
	defer release()
	var both sync.WaitGroup
	both.Go(func() { copyOneWay(client, server) })
	both.Go(func() { copyOneWay(server, client) })
	both.Wait()
	_ = client.Close()
	_ = server.Close()
}

// copyOneWay copies one direction and then half-closes to.
func copyOneWay(from, to *net.TCPConn) {
	if _, err := io.Copy(to, from); err != nil {
		if !errors.Is(err, net.ErrClosed) {
			resetConnections(from, to)
		}
		return
	}
	if err := to.CloseWrite(); err != nil {
		resetConnections(from, to)
	}
}

// resetConnections closes connections with RST.
func resetConnections(connections ...*net.TCPConn) {
	for _, connection := range connections {
		_ = connection.SetLinger(0)
		_ = connection.Close()
	}
}
