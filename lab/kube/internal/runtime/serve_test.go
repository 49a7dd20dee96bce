package runtime

import (
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"time"
)

// slowListener goes on accepting after it was closed, until it is closed again.
type slowListener struct {
	net.Listener
	closed           atomic.Int32
	accepting, letGo chan struct{}
}

func (l *slowListener) Accept() (net.Conn, error) {
	close(l.accepting)
	<-l.letGo
	return nil, net.ErrClosed
}

func (l *slowListener) Close() error {
	if l.closed.Add(1) == 2 {
		close(l.letGo)
	}
	return l.Listener.Close()
}

// On a busy machine a listener may be closed that its server has not let go of yet:
// that is no request that was cut off, and the container ends as it was told to.
func TestDrainIsDoneWhereAServerIsSlow(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &slowListener{Listener: inner, accepting: make(chan struct{}), letGo: make(chan struct{})}
	s := &portServer{http: &http.Server{ReadHeaderTimeout: time.Minute}, listeners: []net.Listener{l}}
	served := make(chan error, 1)
	go func() { served <- s.http.Serve(l) }()
	<-l.accepting
	if !s.drain(time.Minute) {
		t.Error("it had nothing to do, and was killed")
	}
	if err := <-served; err == nil {
		t.Error("Serve ended without an error")
	}
}
