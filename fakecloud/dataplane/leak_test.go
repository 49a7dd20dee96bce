package dataplane_test

import (
	"io"
	"net"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// openFiles counts this process's file descriptors. It collects garbage first: io.Copy in
// the tests' own targets uses pipes for splice(2), which only the collector closes.
func openFiles() int {
	runtime.GC()
	all, _ := os.ReadDir("/proc/self/fd")
	return len(all)
}

// After Close no file is open, although connections, sessions, checks and listeners were
// in use when the plane was closed.
func TestCloseLeavesNoOpenFiles(t *testing.T) {
	const rounds = 40
	if _, err := os.Stat("/proc/self/fd"); err != nil {
		t.Skipf("this system does not list a process's files: %v", err)
	}
	target := startTarget(t, two, 0, echo)
	shut := startTarget(t, two, 0, func(net.Conn) {})
	udp := portOf(udpBackend(t, two, "two", 0))
	well := newHealthEndpoint(t, two, 0)
	openFiles() // Collects what earlier tests have left.
	before := openFiles()
	t.Run("used", func(t *testing.T) { // The clients are closed when the subtest ends.
		p, a, b, c, d := newPlane(t), freePort(t), freePort(t), freePort(t), freePort(t)
		f := forwarding(target, []string{two, four}, a, b, c) // Nobody answers at four.
		f.Listeners[1].TargetPort, f.Listeners[2].TargetPort = shut, freePort(t)
		f.Listeners = append(f.Listeners, cloud.Listener{Protocol: api.ProtocolUDP, Port: d, TargetPort: udp})
		f.HealthCheck = httpCheck(well.port)
		f.HealthCheck.IntervalSeconds, f.HealthCheck.TimeoutSeconds = seconds(time.Minute), seconds(time.Minute) // Long enough for a slow machine.
		require.NoError(t, p.Apply(f))
		awaitHealth(t, p, 0, api.TargetHealthy)
		for i := range rounds {
			f.IdleTimeout = time.Duration(i%2) * time.Hour
			require.NoError(t, p.Apply(f))
			ended, broken, kept := dial(t, a), dial(t, a), dial(t, a)
			for _, c := range []*net.TCPConn{ended, broken, kept} {
				requireEcho(t, c, "hello")
			}
			require.NoError(t, ended.CloseWrite())
			require.NoError(t, broken.SetLinger(0))
			require.NoError(t, broken.Close())
			left := dial(t, b)
			_, err := left.Read(make([]byte, 1))
			require.ErrorIs(t, err, io.EOF)
			requireReset(t, three, c)
			sendAndReadName(t, udpClient(t, three, d), "hello")
		}
		p.Close()
	})
	require.Eventually(t, func() bool { return openFiles() <= before }, testTimeout, 10*time.Millisecond,
		"more than the %d files of before are open", before)
}
