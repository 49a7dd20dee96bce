// This file answers: how does a client speak to the server at the least cost?

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"
)

const (
	dialTimeout = 5 * time.Second
	// callTimeout bounds one call, so that a server that hangs ends the row.
	callTimeout = 20 * time.Second
	// maxBody is far above the largest answer asked for: the whole event log.
	maxBody = 64 << 20
)

// conn is one keep-alive connection that carries one call at a time.
type conn struct {
	net  net.Conn
	in   *bufio.Reader
	body []byte // of the last answer; its room is used again
}

func dial(ctx context.Context, address string) (*conn, error) {
	n, err := (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	return &conn{net: n, in: bufio.NewReaderSize(n, 16<<10)}, nil
}

func (c *conn) close() { _ = c.net.Close() }

// do sends a whole request and reads the whole answer. The body is valid until
// the next call. After an error the connection is of no use.
func (c *conn) do(request []byte) (status int, body []byte, err error) {
	if err := c.net.SetDeadline(time.Now().Add(callTimeout)); err != nil {
		return 0, nil, err
	}
	if _, err := c.net.Write(request); err != nil {
		return 0, nil, err
	}
	status, c.body, err = readAnswer(c.in, c.body[:0])
	return status, c.body, err
}

// readAnswer appends the answer's body. It knows what net/http's server sends
// to a client that asked for nothing special, and takes anything else for an
// error.
func readAnswer(in *bufio.Reader, body []byte) (int, []byte, error) {
	status, length, err := readHead(in)
	switch {
	case err != nil:
		return 0, body, err
	case length == chunked:
		body, err = readChunks(in, body)
	case length == unknown && status != 204 && status != 304:
		err = fmt.Errorf("the answer (status %d) does not say how long it is", status)
	case length > 0:
		body, err = readInto(in, body, length)
	}
	return status, body, err
}

// What a head may say instead of a length.
const (
	unknown = -1
	chunked = -2
)

// readHead reads the status line and the header fields.
func readHead(in *bufio.Reader) (status, length int, err error) {
	line, err := readLine(in)
	if err != nil {
		return 0, 0, err
	}
	rest, ok := bytes.CutPrefix(line, []byte("HTTP/1.1 "))
	if !ok || len(rest) < 3 {
		return 0, 0, fmt.Errorf("%q is no HTTP/1.1 status line", line)
	}
	if status, err = strconv.Atoi(string(rest[:3])); err != nil {
		return 0, 0, fmt.Errorf("%q has no status", line)
	}
	length = unknown
	for {
		if line, err = readLine(in); err != nil {
			return 0, 0, err
		}
		if len(line) == 0 {
			return status, length, nil
		}
		name, value, ok := bytes.Cut(line, []byte(":"))
		value = bytes.TrimSpace(value)
		switch {
		case !ok:
			return 0, 0, fmt.Errorf("%q is no header field", line)
		case bytes.EqualFold(name, []byte("Transfer-Encoding")) && bytes.EqualFold(value, []byte("chunked")):
			length = chunked
		case bytes.EqualFold(name, []byte("Content-Length")):
			if length, err = strconv.Atoi(string(value)); err != nil || length < 0 {
				return 0, 0, fmt.Errorf("Content-Length %q is no length", value)
			}
		}
	}
}

func readChunks(in *bufio.Reader, body []byte) ([]byte, error) {
	for {
		line, err := readLine(in)
		if err != nil {
			return body, err
		}
		size, err := strconv.ParseUint(string(line), 16, 31)
		if err != nil {
			return body, fmt.Errorf("%q is no size of a chunk", line)
		}
		if size > 0 {
			if body, err = readInto(in, body, int(size)); err != nil {
				return body, err
			}
		}
		// What follows a chunk, and the last of them: an empty line.
		if line, err = readLine(in); err != nil {
			return body, err
		}
		if len(line) != 0 {
			return body, fmt.Errorf("%q follows a chunk", line)
		}
		if size == 0 {
			return body, nil
		}
	}
}

func readInto(in *bufio.Reader, body []byte, n int) ([]byte, error) {
	if n > maxBody-len(body) {
		return body, fmt.Errorf("the answer has more than %d bytes", maxBody)
	}
	at := len(body)
	if cap(body) < at+n {
		body = append(make([]byte, 0, 2*(at+n)), body...)
	}
	body = body[:at+n]
	_, err := io.ReadFull(in, body[at:])
	return body, noEOF(err)
}

// readLine gives a line without its end, valid until the next read.
func readLine(in *bufio.Reader) ([]byte, error) {
	line, err := in.ReadSlice('\n')
	if err != nil {
		return nil, noEOF(err)
	}
	return bytes.TrimRight(line, "\r\n"), nil
}

// noEOF makes an end in the middle of an answer an error of its own.
func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// request is a whole HTTP request. extra are further header lines, each with
// its end.
func request(method, path, host, extra string, body []byte) []byte {
	out := make([]byte, 0, 256+len(extra)+len(body))
	out = append(out, method...)
	out = append(out, ' ')
	out = append(out, path...)
	out = append(out, " HTTP/1.1\r\nHost: "...)
	out = append(out, host...)
	out = append(out, "\r\nUser-Agent: bench-cloud\r\n"...)
	out = append(out, extra...)
	if body != nil {
		out = append(out, "Content-Length: "...)
		out = strconv.AppendInt(out, int64(len(body)), 10)
		out = append(out, "\r\n"...)
	}
	out = append(out, "\r\n"...)
	return append(out, body...)
}
