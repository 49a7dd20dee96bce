package soak

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestSoakEndsInTime(t *testing.T) {
	o := flagOptions()
	o.connections, o.limit = 1<<30, 500*time.Millisecond
	o.datagrams, o.sessions = 0, 0 // Nothing to wait for in the end.
	r, err := run(t.Context(), o)
	require.NoError(t, err)
	r.end.resident = r.begin.resident
	require.NoError(t, r.verdict())
	assert.Equal(t, fmt.Sprintf(
		"NOT ALL WAS MADE: stopped by -for 500ms after %d of 1073741824 connections; nothing failed", r.made,
	), r.closingLine(nil))
}

// newSoakBefore is a soak with a listener of the test in place of the balancer.
func newSoakBefore(t *testing.T, serve func(*soak, *net.TCPConn)) *soak {
	t.Helper()
	l, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: frontAddress().AsSlice()})
	require.NoError(t, err)
	s := &soak{options: flagOptions(), front: l.Addr().(*net.TCPAddr).AddrPort(), changeDue: make(chan struct{}, 1)}
	done := make(chan struct{})
	t.Cleanup(func() {
		_ = l.Close()
		<-done
	})
	go func() {
		defer close(done)
		for {
			c, err := l.AcceptTCP()
			if err != nil {
				return
			}
			serve(s, c)
			_ = c.Close()
		}
	}()
	return s
}

// A failure is accounted for only by a crash of the connection's own target.
func TestCrashAccountsForFailures(t *testing.T) {
	s := newSoakBefore(t, func(_ *soak, c *net.TCPConn) {
		_, _ = c.Write([]byte{0, 0, 0, 1})
		_, _ = c.Read(make([]byte, headerSize+maxBody))
		_ = c.SetLinger(0)
	})
	_, other := s.lives.beginLife("other")
	other.crashed.Store(true)
	_, own := s.lives.beginLife("own")
	c := newClient(s, 0)
	c.makeConnection()
	assert.EqualValues(t, 1, s.failed.Load())
	require.ErrorIs(t, s.errs[0], syscall.ECONNRESET)
	require.ErrorContains(t, s.errs[0], "target own")
	own.crashed.Store(true)
	c.makeConnection()
	assert.EqualValues(t, 1, s.failed.Load())
	assert.EqualValues(t, 1, s.crashed.Load())
}

func TestFailureWithoutTargetNeedsCrash(t *testing.T) {
	var meanwhile atomic.Int64
	s := newSoakBefore(t, func(s *soak, _ *net.TCPConn) { s.crashes.Add(meanwhile.Load()) })
	c := newClient(s, 0)
	c.makeConnection()
	assert.EqualValues(t, 1, s.failed.Load())
	meanwhile.Store(2)
	c.makeConnection()
	assert.EqualValues(t, 1, s.failed.Load())
	assert.EqualValues(t, 1, s.crashed.Load())
}

func TestWrongAnswersAreFailures(t *testing.T) {
	s := newSoakBefore(t, func(_ *soak, c *net.TCPConn) {
		_, _ = c.Write(make([]byte, 4+maxBody+1)) // It sends its number, and zeros.
		_ = c.CloseWrite()
		_, _ = io.Copy(io.Discard, c)
	})
	s.lives.beginLife("own")
	newClient(s, 0).makeConnection()
	assert.EqualValues(t, 1, s.failed.Load())
	require.ErrorContains(t, s.errs[0], "the answer is not what was asked")
}

func TestVerdict(t *testing.T) {
	fine := report{
		made: 10, datagramsSent: 200, datagramsLost: 34, clients: 2, crashes: 1, sessions: 10, fewestOpen: 5,
		before: figures{10, 3, 1, 10}, begin: figures{20, 10, 1, 20}, end: figures{20, 10, 8.5, 60},
		after: figures{10, 3, 1, 30},
	}
	require.NoError(t, fine.verdict())
	for want, spoil := range map[string]func(*report){
		"1 failures that no crash accounts for, among them:\nbecause": func(r *report) {
			r.failed, r.errs = 1, []error{errors.New("because")}
		},
		"no connection was made": func(r *report) { r.made = 0 },
		"35 of 200 datagrams were lost; crashes account for 34 at most": func(r *report) { r.datagramsLost++ },
		"only 4 of 10 sessions were open when a target crashed":         func(r *report) { r.fewestOpen-- },
		"21 files are open after the connections, 20 were before":       func(r *report) { r.end.files++ },
		"4 goroutines run after the balancers, 3 did before":            func(r *report) { r.after.goroutines++ },
		"the heap grew by 8.5 MiB, more than 8":                         func(r *report) { r.end.heap++ },
		"resident memory grew by 50.0 MiB, more than 48":                func(r *report) { r.end.resident = 70 },
	} {
		r := fine
		spoil(&r)
		require.EqualError(t, r.verdict(), want)
	}
}

// The last line alone says how many connections were made.
func TestClosingLine(t *testing.T) {
	r := report{limit: 10 * time.Minute, wanted: 1_000_000, made: 50_000}
	assert.Equal(
		t, "NOT ALL WAS MADE: stopped by -for 10m0s after 50000 of 1000000 connections; nothing failed",
		r.closingLine(nil),
	)
	assert.Equal(t, "FAILED after 50000 of 1000000 connections", r.closingLine(errors.New("because")))
	r.made = r.wanted
	assert.Equal(t, "PASSED: 1000000 of 1000000 connections", r.closingLine(nil))
}
