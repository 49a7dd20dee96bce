package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

const (
	dialTimeout = 5 * time.Second
	// callTimeout bounds one call, so that a row ends if the server hangs.
	callTimeout = 20 * time.Second
	// maxBody is far above the largest answer, the whole event log.
	maxBody = 64 << 20
)

// conn is a keep-alive connection that carries one call at a time. Unlike http.Client's
// connections it has no goroutines, which would take processor time from the server.
type conn struct {
	net  net.Conn
	in   *bufio.Reader
	body bytes.Buffer // of the last answer; its memory is reused
}

func dialConn(ctx context.Context, address string) (*conn, error) {
	n, err := (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	return &conn{net: n, in: bufio.NewReaderSize(n, 16<<10)}, nil
}

func (c *conn) close() { _ = c.net.Close() }

// sendRequest writes a request and reads the head of the answer.
func (c *conn) sendRequest(request []byte) (*http.Response, error) {
	if err := c.net.SetDeadline(time.Now().Add(callTimeout)); err != nil {
		return nil, err
	}
	if _, err := c.net.Write(request); err != nil {
		return nil, err
	}
	return http.ReadResponse(c.in, nil)
}

// exchange writes a request and reads the whole answer. The body is valid until the next
// call. After an error the connection cannot be used any more.
func (c *conn) exchange(request []byte) (status int, body []byte, err error) {
	r, err := c.sendRequest(request) //nolint:bodyclose // It is read to its end, or the connection is closed.
	if err != nil {
		return 0, nil, err
	}
	c.body.Reset()
	if _, err = c.body.ReadFrom(io.LimitReader(r.Body, maxBody+1)); err == nil && c.body.Len() > maxBody {
		err = fmt.Errorf("the answer has more than %d bytes", maxBody)
	}
	return r.StatusCode, c.body.Bytes(), err
}

// callOnce makes one call on a connection of its own.
func callOnce(ctx context.Context, address string, call call) ([]byte, error) {
	c, err := dialConn(ctx, address)
	if err != nil {
		return nil, err
	}
	defer c.close()
	_, err = c.makeCall(call)
	return c.body.Bytes(), err
}

// httpRequest is an HTTP request with head and body. extra are further header lines, each with
// its line end.
func httpRequest(method, path, host, extra string, body []byte) []byte {
	if body != nil {
		extra += fmt.Sprintf("Content-Length: %d\r\n", len(body))
	}
	head := fmt.Appendf(
		nil, "%s %s HTTP/1.1\r\nHost: %s\r\nUser-Agent: bench-cloud\r\n%s\r\n", method, path, host, extra,
	)
	return append(head, body...)
}
