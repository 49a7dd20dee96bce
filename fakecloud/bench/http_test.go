package main

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// An answer that cannot be read completely is an error.
func TestUnreadableAnswers(t *testing.T) {
	for text, want := range map[string]string{
		"":                                    "unexpected EOF",
		"HTTP/1.1 2x0 OK\r\n\r\n":             "malformed HTTP status code",
		"HTTP/1.1 200 OK\r\nnonsense\r\n\r\n": "malformed MIME header",
		"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n":                                        "bad Content-Length",
		"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhel":                                      "unexpected EOF",
		"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n" + strings.Repeat("x", maxBody+1): "more than",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n":                          "invalid byte in chunk length",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhello\r\n":                  "malformed chunked encoding",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n":                  "unexpected EOF",
	} {
		ours, theirs := net.Pipe()
		go func() {
			_, _ = theirs.Read(make([]byte, 1))
			_, _ = io.WriteString(theirs, text)
			_ = theirs.Close()
		}()
		_, _, err := (&conn{net: ours, in: bufio.NewReader(ours)}).exchange([]byte("?"))
		assert.ErrorContains(t, err, want, text[:min(len(text), 100)])
	}
}

// Answers of net/http's server are read correctly, in whatever pieces they come, and nothing
// of the next answer is read.
func TestReadAnswersOfRealServer(t *testing.T) {
	var next atomic.Pointer[[]string]
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for _, piece := range *next.Load() {
			_, _ = io.WriteString(w, piece)
			w.(http.Flusher).Flush()
		}
	}))
	defer s.Close()
	c, err := dialConn(t.Context(), s.Listener.Addr().String())
	require.NoError(t, err)
	defer c.close()
	rapid.Check(t, func(t *rapid.T) {
		pieces := rapid.SliceOfN(rapid.StringN(0, 3000, -1), 0, 4).Draw(t, "pieces")
		next.Store(&pieces)
		status, body, err := c.exchange(httpRequest("GET", "/", "here", "", nil))
		require.NoError(t, err)
		assert.Equal(t, http.StatusOK, status)
		assert.Equal(t, strings.Join(pieces, ""), string(body))
	})
}
