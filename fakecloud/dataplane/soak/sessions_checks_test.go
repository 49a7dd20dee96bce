package soak

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// newTestGroup opens a session group whose datagrams are answered by answer; nil is no answer.
func newTestGroup(t *testing.T, answer func([]byte) []byte) *sessionGroup {
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
	o := flagOptions()
	o.sessions = 8
	s := &soak{options: o, front: socket.LocalAddr().(*net.UDPAddr).AddrPort()}
	c, err := s.openSessionGroup()
	require.NoError(t, err)
	t.Cleanup(func() {
		c.closeSessions()
		_ = socket.Close()
		<-done
	})
	return c
}

func echo(b []byte) []byte { return b }

// ticks sends n ticks.
func ticks(n int) <-chan time.Time {
	all := make(chan time.Time, n)
	for range n {
		all <- time.Time{}
	}
	return all
}

func TestCrashMeetsOpenSessions(t *testing.T) {
	c := newTestGroup(t, echo)
	c.crashWithSessions(func() {
		assert.EqualValues(t, 1, c.crashes.Load(), "it is under way")
		for _, m := range c.members {
			assert.EqualValues(t, 1, m.sent.Load())
			assert.EqualValues(t, 1, m.answered.Load())
		}
	})
	assert.EqualValues(t, 2, c.crashes.Load())
	assert.EqualValues(t, 8, c.fewestOpen.Load())
	assert.EqualValues(t, 8*(1+sendsAfterCrash), c.groupSent.Load())
	assert.EqualValues(t, 8, c.establishSessions())
	assert.Zero(t, c.failed.Load())
}

func TestUnansweredSessionsAreNotOpen(t *testing.T) {
	c := newTestGroup(t, func(b []byte) []byte {
		if b[3] >= 5 { // the last byte of the session's number
			return nil
		}
		return b
	})
	c.crashWithSessions(func() {})
	assert.EqualValues(t, 5, c.fewestOpen.Load())
}

func TestLongSilenceIsError(t *testing.T) {
	c := newTestGroup(t, func([]byte) []byte { return nil })
	require.ErrorContains(
		t, c.keepSessionsAlive(t.Context(), ticks(maxUnansweredRounds+1)), "no datagram has been answered for 5s",
	)
	assert.EqualValues(t, 8*maxUnansweredRounds, c.groupSent.Load())
}

func TestAnyAnswerEndsSilence(t *testing.T) {
	c := newTestGroup(t, echo)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	tick, done := make(chan time.Time), make(chan error)
	go func() { done <- c.keepSessionsAlive(ctx, tick) }()
	for range 3 * maxUnansweredRounds {
		heard := c.groupAnswered.Load()
		tick <- time.Time{}
		require.Eventually(t, func() bool { return c.groupAnswered.Load() > heard }, clientTimeout, time.Millisecond)
	}
	cancel()
	require.NoError(t, <-done)
}

func TestAnswersToOthersAreFailures(t *testing.T) {
	for name, spoil := range map[string]func([]byte) []byte{
		"of another":   func(b []byte) []byte { b[3]++; return b },
		"of no number": func(b []byte) []byte { clear(b[4:12]); return b },
		"not yet said": func(b []byte) []byte { b[4]++; return b },
		"other text":   func(b []byte) []byte { b[20]++; return b },
		"too short":    func(b []byte) []byte { return b[:30] },
		"too long":     func(b []byte) []byte { return append(b, 0) },
	} {
		t.Run(name, func(t *testing.T) {
			c := newTestGroup(t, spoil)
			c.sendAll()
			require.Eventually(t, func() bool { return c.failed.Load() == 8 }, clientTimeout, time.Millisecond)
			assert.ErrorContains(t, c.fillReport(report{}).errs[0], "was answered with")
			assert.Zero(t, c.groupAnswered.Load())
		})
	}
}
