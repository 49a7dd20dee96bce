package runtime

import (
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// slowListener's Accept returns only after the second Close.
type slowListener struct {
	net.Listener
	closed           atomic.Int32
	accepting, letGo chan struct{}
}

func (s *slowListener) Accept() (net.Conn, error) {
	close(s.accepting)
	<-s.letGo
	return nil, net.ErrClosed
}

func (s *slowListener) Close() error {
	if s.closed.Add(1) == 2 {
		close(s.letGo)
	}
	return s.Listener.Close()
}

// On a busy machine a listener may be closed while its server is still in Accept. No request is cut
// off by that, and the container exits with 0.
func TestDrainWithSlowListener(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	l := &slowListener{Listener: inner, accepting: make(chan struct{}), letGo: make(chan struct{})}
	s := &portServer{http: &http.Server{ReadHeaderTimeout: time.Minute}, listeners: []net.Listener{l}}
	served := make(chan error, 1)
	go func() { served <- s.http.Serve(l) }()
	<-l.accepting
	assert.True(t, s.drainRequests(time.Minute), "it had nothing to do, and was killed")
	assert.Error(t, <-served)
}
