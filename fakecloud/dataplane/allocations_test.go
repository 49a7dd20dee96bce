//go:build !race

package dataplane_test

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
)

// Client and target allocate nothing here, so any allocation is the balancer's. Not with
// the race detector, which makes sync.Pool drop items.
func TestForwardingAllocatesNothing(t *testing.T) {
	tcp, udp := startTarget(t, two, 0, echoWithoutAllocating), portOf(startUDPEcho(t, two, 0))
	p, port := newPlane(t), freePort(t)
	f := forwarding(tcp, []string{two}, port)
	f.Listeners = append(f.Listeners, cloud.Listener{Protocol: api.ProtocolUDP, Port: port, TargetPort: udp})
	f.IdleTimeout = time.Hour
	require.NoError(t, p.Apply(f))
	over := map[string]net.Conn{"a connection": dial(t, port), "datagrams": udpClient(t, four, port)}
	for what, c := range over {
		require.NoError(t, c.SetDeadline(time.Now().Add(testTimeout)))
		message := make([]byte, 512)
		assert.Zero(t, testing.AllocsPerRun(5000, func() {
			if _, err := c.Write(message); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(c, message); err != nil {
				t.Fatal(err)
			}
		}), what)
	}
	large := over["a connection"] // Mostly spliced.
	message := make([]byte, 256<<10)
	assert.Zero(t, testing.AllocsPerRun(50, func() {
		if _, err := large.Write(message); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(large, message); err != nil {
			t.Fatal(err)
		}
	}), "long transfers")
}

// echoWithoutAllocating echoes with a buffer larger than any of the test's messages.
func echoWithoutAllocating(c net.Conn) {
	buffer := make([]byte, 4<<20)
	for {
		n, err := c.Read(buffer)
		if err != nil {
			return
		}
		if _, err := c.Write(buffer[:n]); err != nil {
			return
		}
	}
}
