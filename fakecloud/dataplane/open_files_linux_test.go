package dataplane_test

import (
	"bytes"
	"io"
	"log/slog"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
	"github.com/ccmlab/ccmlab/fakecloud/dataplane"
)

// limitFiles lets this process have descriptors below limit only, until the test ends or restore is called.
func limitFiles(t *testing.T, limit uint64) (restore func()) {
	t.Helper()
	var before syscall.Rlimit
	require.NoError(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &before))
	restore = func() { assert.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &before)) }
	t.Cleanup(restore)
	require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: limit, Max: before.Max}))
	return restore
}

// logWriter gets each message of a log.
type logWriter func(message []byte) (int, error)

func (w logWriter) Write(message []byte) (int, error) { return w(message) }

func TestOurShortageOfFilesIsNoTargetsFault(t *testing.T) {
	for _, protocol := range []api.HealthCheckProtocol{api.HealthCheckTCP, api.HealthCheckHTTP} {
		seen := make(chan struct{}, 100)
		log := slog.NewTextHandler(logWriter(func(message []byte) (int, error) {
			if bytes.Contains(message, []byte("cannot be checked")) {
				seen <- struct{}{}
			}
			return len(message), nil
		}), &slog.HandlerOptions{Level: slog.LevelDebug})
		p := dataplane.New(dataplane.Options{Logger: slog.New(log)})
		t.Cleanup(p.Close)
		target := startTarget(t, two, 0, func(c net.Conn) {
			_, _ = io.WriteString(c, "HTTP/1.0 200 OK\r\n\r\n")
		})
		f := forwarding(target, []string{two}, freePort(t))
		f.HealthCheck = &cloud.HealthCheck{
			Protocol: protocol, Path: "/", Port: target, IntervalSeconds: seconds(50 * time.Millisecond), TimeoutSeconds: seconds(testTimeout),
			HealthyThreshold: 1, UnhealthyThreshold: 5,
		}
		require.NoError(t, p.Apply(f))
		isHealthy := func() bool { return p.Health(f.ID)[0].Health == api.TargetHealthy }
		require.Eventually(t, isHealthy, testTimeout, time.Millisecond)
		restore := limitFiles(t, 0)
		for range 10 {
			select {
			case <-seen:
			case <-time.After(testTimeout):
				t.Fatal("no check fails for lack of files")
			}
			require.True(t, isHealthy())
		}
		restore()
	}
}

func TestClientsLeaveFilesForTheAPI(t *testing.T) {
	entries, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	limit := uint64(len(entries)) + 100
	limitFiles(t, limit)
	p, port := newPlane(t), freePort(t)
	require.NoError(t, p.Apply(forwarding(startTarget(t, two, 0, greetAndEcho("a")), []string{two}, port)))
	var conns []net.Conn
	for range limit {
		c, err := dialFrom(t, four, port)
		if err == nil {
			conns = append(conns, c)
			_, err = c.Read(make([]byte, 1))
		}
		if err != nil {
			require.ErrorIs(t, err, syscall.ECONNRESET)
			break
		}
	}
	stats := listenerStats(p)
	assert.EqualValues(t, 1, stats.RefusedConnections+stats.FailedConnections)
	assert.Greater(t, len(conns), 5)
	assert.Less(t, uint64(len(conns)), limit/4)

	var files []*os.File
	for range limit / 8 { // What is left to others; of the reserve of a quarter, the test's own connections have a part.
		file, err := os.Open(os.DevNull)
		require.NoError(t, err)
		files = append(files, file)
	}
	for _, f := range files {
		require.NoError(t, f.Close())
	}
	for _, c := range conns {
		require.NoError(t, c.Close())
	}
	await(t, func() bool { return listenerStats(p).ActiveConnections == 0 })
	_, _ = dialAndReadName(t, four, port)
}
