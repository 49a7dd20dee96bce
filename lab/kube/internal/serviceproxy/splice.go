package serviceproxy

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
)

// splice copies both ways until both sides are done, or ctx is. The end of one
// direction is passed on as such (half-close): a client that has sent all still
// gets its answer. An error resets both sides, as a broken connection would.
func splice(ctx context.Context, client, server *net.TCPConn) {
	release := context.AfterFunc(ctx, func() { abort(client, server) })
	defer release()
	var both sync.WaitGroup
	both.Go(func() { pass(client, server) })
	both.Go(func() { pass(server, client) })
	both.Wait()
	_ = client.Close()
	_ = server.Close()
}

func pass(from, to *net.TCPConn) {
	if _, err := io.Copy(to, from); err != nil {
		if !errors.Is(err, net.ErrClosed) {
			abort(from, to)
		}
		return
	}
	if err := to.CloseWrite(); err != nil {
		abort(from, to)
	}
}

func abort(connections ...*net.TCPConn) {
	for _, connection := range connections {
		_ = connection.SetLinger(0)
		_ = connection.Close()
	}
}
