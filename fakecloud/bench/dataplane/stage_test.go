package main

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// directStage is a stage without a proxy: the first backend stands for it.
func directStage() (*stage, *contender) {
	z := size{
		Warm: time.Millisecond, Period: 50 * time.Millisecond, Streams: 2, Clients: 3, Rate: 300, Idle: 20, Window: 4,
	}
	return &stage{size: z}, &contender{name: fakecloud, address: backendAddresses()[0]}
}

func TestMeasurementsWithoutProxy(t *testing.T) {
	s, c := directStage()
	for name, measure := range map[string]func(context.Context, *contender) (sample, error){
		"bytesPerSecond down": s.measureDownload, "bytesPerSecond up": s.measureUpload,
		"perSecond connections": s.measureConnections, "perSecond requests": s.measureRequests,
		"perSecond paced": s.measurePacedRequests, "perSecond datagrams": s.measureDatagrams,
	} {
		t.Run(name, func(t *testing.T) {
			key, _, _ := strings.Cut(name, " ")
			for {
				v, err := measure(t.Context(), c)
				require.NoError(t, err)
				assert.Zero(t, v[failed])
				if v[key] > 0 { // On a busy machine the process may have had no time at all.
					break
				}
			}
		})
	}
}

// A proxy that mixes up or leaves out bytes, or ends too soon, is an error.
func TestWrongAnswersAreErrors(t *testing.T) {
	for name, serve := range map[string]func(net.Conn){
		"other": func(c net.Conn) { _, _ = c.Write(make([]byte, answerSize)) },
		"short": func(c net.Conn) {
			_, _ = c.Read(make([]byte, requestSize))
			_ = c.(*net.TCPConn).CloseWrite()
		},
	} {
		t.Run(name, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			defer func() { _ = l.Close() }()
			go acceptConnections(l, serve)
			c, err := net.Dial("tcp", l.Addr().String())
			require.NoError(t, err)
			defer func() { _ = c.Close() }()
			assert.Error(t, exchangeRequest(c.(*net.TCPConn), 1, make([]byte, requestSize+answerSize)))
		})
	}
}

// Failures are counted and reported.
func TestFailuresAreCounted(t *testing.T) {
	s, c := directStage()
	s.contenders = []*contender{c}
	s.size.Period = time.Hour   // It ends before, by itself.
	c.address = ownAddress(200) // Nobody listens there.
	v, err := s.measureConnections(t.Context(), c)
	require.NoError(t, err)
	assert.Zero(t, v["perSecond"])
	assert.EqualValues(t, s.size.Clients*maxFailures, v[failed])
	r := figures[2].makeRow(s, map[string]sample{fakecloud: v}, true)
	assert.Contains(t, r.Notes[0], "fakecloud: 300 failed: dial tcp")
	require.NotNil(t, r.Holds)
	assert.False(t, *r.Holds)

	_, err = s.measureDownload(t.Context(), c)
	assert.ErrorContains(t, err, "connection refused")
	_, err = s.measureDatagrams(t.Context(), c)
	assert.ErrorContains(t, err, "connection refused")
}

func TestMeasuringEndsWithContext(t *testing.T) {
	s, c := directStage()
	s.size.Warm, s.size.Period = time.Hour, time.Hour
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, measure := range []func(context.Context, *contender) (sample, error){
		s.measureDownload, s.measureUpload, s.measureConnections, s.measureRequests, s.measureDatagrams,
	} {
		_, err := measure(ctx, c)
		assert.ErrorIs(t, err, context.Canceled)
	}
}
