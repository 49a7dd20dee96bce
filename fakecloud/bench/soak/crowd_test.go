package main

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// crowdBefore gathers a crowd whose balancer answers as the test has it: nil is
// no answer.
func crowdBefore(t *testing.T, answer func([]byte) []byte) *crowd {
	t.Helper()
	socket, err := net.ListenUDP("udp4", &net.UDPAddr{IP: frontAddress().AsSlice()})
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		buffer := make([]byte, 1<<10)
		for {
			n, from, err := socket.ReadFromUDPAddrPort(buffer)
			if err != nil {
				return
			}
			if a := answer(buffer[:n]); a != nil {
				_, _ = socket.WriteToUDPAddrPort(a, from)
			}
		}
	}()
	o := small()
	o.sessions = 8
	s := &soak{options: o, front: socket.LocalAddr().(*net.UDPAddr).AddrPort()}
	c, err := s.gather()
	require.NoError(t, err)
	t.Cleanup(func() {
		c.leave()
		_ = socket.Close()
		<-done
	})
	return c
}

func same(b []byte) []byte { return b }

// ticks are so many, and then no more.
func ticks(n int) <-chan time.Time {
	all := make(chan time.Time, n)
	for range n {
		all <- time.Time{}
	}
	return all
}

func TestACrashMeetsOpenSessions(t *testing.T) {
	c := crowdBefore(t, same)
	c.witness(func() {
		assert.EqualValues(t, 1, c.crashes.Load(), "it is under way")
		for _, m := range c.members {
			assert.EqualValues(t, 1, m.sent.Load())
			assert.EqualValues(t, 1, m.answered.Load())
		}
	})
	assert.EqualValues(t, 2, c.crashes.Load())
	assert.EqualValues(t, 8, c.open.Load())
	assert.EqualValues(t, 8*(1+lastWords), c.spoken.Load())
	assert.EqualValues(t, 8, c.settle())
	assert.Zero(t, c.failed.Load())
}

func TestSessionsWithoutAnAnswerAreNotOpen(t *testing.T) {
	c := crowdBefore(t, func(b []byte) []byte {
		if b[3] >= 5 { // the last of the member's number
			return nil
		}
		return b
	})
	c.witness(func() {})
	assert.EqualValues(t, 5, c.open.Load())
}

func TestNoAnswersForLongAreNoticed(t *testing.T) {
	c := crowdBefore(t, func([]byte) []byte { return nil })
	require.ErrorContains(t, c.converse(t.Context(), ticks(maxSilent+1)), "no datagram has been answered for 5s")
	assert.EqualValues(t, 8*maxSilent, c.spoken.Load())
}

func TestAnyAnswerBreaksTheSilence(t *testing.T) {
	c := crowdBefore(t, same)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	tick, done := make(chan time.Time), make(chan error)
	go func() { done <- c.converse(ctx, tick) }()
	for range 3 * maxSilent {
		heard := c.heard.Load()
		tick <- time.Time{}
		require.Eventually(t, func() bool { return c.heard.Load() > heard }, patience, time.Millisecond)
	}
	cancel()
	require.NoError(t, <-done)
}

func TestOthersAnswersAreFailures(t *testing.T) {
	for name, spoil := range map[string]func([]byte) []byte{
		"of another":   func(b []byte) []byte { b[3]++; return b },
		"of no number": func(b []byte) []byte { clear(b[4:12]); return b },
		"not yet said": func(b []byte) []byte { b[4]++; return b },
		"other text":   func(b []byte) []byte { b[20]++; return b },
		"too short":    func(b []byte) []byte { return b[:30] },
		"too long":     func(b []byte) []byte { return append(b, 0) },
	} {
		t.Run(name, func(t *testing.T) {
			c := crowdBefore(t, spoil)
			c.speak()
			require.Eventually(t, func() bool { return c.failed.Load() == 8 }, patience, time.Millisecond)
			assert.ErrorContains(t, c.found(report{}).errs[0], "was answered with")
			assert.Zero(t, c.heard.Load())
		})
	}
}
