package dataplane_test

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
	"github.com/ccmlab/ccmlab/fakecloud/dataplane"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
)

// greetAndEcho writes a name and a newline, then echoes until the client ends its stream.
func greetAndEcho(name string) func(net.Conn) {
	return func(c net.Conn) {
		_, _ = io.WriteString(c, name+"\n")
		echo(c)
	}
}

// dialAndReadName opens a connection and returns the name of the target that answers.
func dialAndReadName(t *testing.T, host string, port int) (c *net.TCPConn, name string) {
	t.Helper()
	c, err := dialFrom(t, host, port)
	require.NoError(t, err)
	must.Do(fmt.Fscanln(c, &name))(t)
	return c, name
}

// requireBroken requires reading from a connection to fail, and not by a deadline.
func requireBroken(t *testing.T, c net.Conn) {
	t.Helper()
	_, err := c.Read(make([]byte, 1))
	require.Error(t, err)
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
}

const testTimeout = 10 * time.Second

// usedPorts holds the ports that freePort has returned.
var usedPorts sync.Map

// freePort returns a port that nobody listens on and that it has not returned before. The
// kernel itself may choose a port again once it is free.
func freePort(t *testing.T) int {
	t.Helper()
	for {
		l := must.Do(net.Listen("tcp4", net.JoinHostPort(front.String(), "0")))(t)
		port := l.Addr().(*net.TCPAddr).Port
		require.NoError(t, l.Close())
		if _, before := usedPorts.LoadOrStore(port, true); !before {
			return port
		}
	}
}

func newPlane(t *testing.T) *dataplane.Plane {
	t.Helper()
	before := runtime.NumGoroutine()
	p := dataplane.New(dataplane.Options{})
	t.Cleanup(func() {
		p.Close()
		// Not by require.Eventually, which runs its condition in another goroutine.
		timeout := time.After(testTimeout)
		for tick := time.Tick(time.Millisecond); runtime.NumGoroutine() > before; {
			select {
			case <-tick:
			case <-timeout:
				t.Fatalf("%d goroutines are left, %d were there before", runtime.NumGoroutine(), before)
			}
		}
	})
	return p
}

// listen listens on host at a port. With port 0 it chooses one that is free on the host
// three too, so that a second target can listen on the same port.
func listen(t *testing.T, host string, port int) net.Listener {
	t.Helper()
	for {
		l := must.Do(net.Listen("tcp4", fmt.Sprintf("%s:%d", host, port)))(t)
		if port != 0 {
			return l
		}
		other, err := net.Listen("tcp4", fmt.Sprintf("%s:%d", three, l.Addr().(*net.TCPAddr).Port))
		if err == nil {
			_ = other.Close()
			return l
		}
		_ = l.Close()
	}
}

// startTarget starts a target that handles each connection by serve, on host at port (0:
// any). It returns the port.
func startTarget(t *testing.T, host string, port int, serve func(net.Conn)) int {
	t.Helper()
	l := listen(t, host, port)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = c.Close() }()
				serve(c)
			}()
		}
	}()
	return l.Addr().(*net.TCPAddr).Port
}

func echo(c net.Conn) { _, _ = io.Copy(c, c) }

func dial(t *testing.T, port int) *net.TCPConn {
	t.Helper()
	return must.Do(dialFrom(t, "", port))(t)
}

func requireEcho(t *testing.T, c net.Conn, text string) {
	t.Helper()
	_, err := io.WriteString(c, text)
	require.NoError(t, err)
	got := make([]byte, len(text))
	must.Do(io.ReadFull(c, got))(t)
	require.Equal(t, text, string(got))
}

func forwarding(targetPort int, hosts []string, ports ...int) cloud.Forwarding {
	f := cloud.Forwarding{ID: "lb-1", Addresses: []netip.Addr{front}}
	for _, h := range hosts {
		f.Backends = append(f.Backends, cloud.Backend{Target: "i-" + h, Address: netip.MustParseAddr(h)})
	}
	for _, p := range ports {
		f.Listeners = append(f.Listeners, cloud.Listener{Protocol: api.ProtocolTCP, Port: p, TargetPort: targetPort})
	}
	return f
}

// The tests' balancer listens on front, its targets on two, three and four. Each test
// process has its own addresses, so that tests can run twice at the same time.
var (
	front = netip.AddrFrom4([4]byte{127, 77, byte(os.Getpid() >> 8), byte(os.Getpid())})
	two   = netip.AddrFrom4([4]byte{127, 78, byte(os.Getpid() >> 8), byte(os.Getpid())}).String()
	three = netip.AddrFrom4([4]byte{127, 79, byte(os.Getpid() >> 8), byte(os.Getpid())}).String()
	four  = netip.AddrFrom4([4]byte{127, 80, byte(os.Getpid() >> 8), byte(os.Getpid())}).String()
)

// dialFrom connects from an address of this machine; "" leaves the choice to the kernel.
func dialFrom(t *testing.T, host string, port int) (*net.TCPConn, error) {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(host)}, Timeout: testTimeout}
	c, err := d.DialContext(t.Context(), "tcp4", netip.AddrPortFrom(front, uint16(port)).String())
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { _ = c.Close() })
	require.NoError(t, c.SetDeadline(time.Now().Add(testTimeout)))
	return c.(*net.TCPConn), nil
}

// greetingFrom connects from host and returns the name of the target that answers.
func greetingFrom(t *testing.T, host string, port int) string {
	t.Helper()
	c, name := dialAndReadName(t, host, port)
	require.NoError(t, c.Close())
	return name
}

// requireReset requires a new connection to be reset, while it connects or after.
func requireReset(t *testing.T, host string, port int) {
	t.Helper()
	c, err := dialFrom(t, host, port)
	if err == nil {
		_, err = c.Read(make([]byte, 1))
	}
	require.ErrorIs(t, err, syscall.ECONNRESET)
}

func listenerStats(p *dataplane.Plane) api.ListenerStats { return p.Stats("lb-1").Listeners[0] }

// carriedBytes are those from clients, and those to them.
func carriedBytes(s api.ListenerStats) [2]int64 { return [2]int64{s.BytesIn, s.BytesOut} }

// awaitNoConnections waits until the balancer has no active connection.
func awaitNoConnections(t *testing.T, p *dataplane.Plane) {
	t.Helper()
	await(t, func() bool { return listenerStats(p).ActiveConnections == 0 })
}

// await waits until a condition holds.
func await(t *testing.T, condition func() bool, about ...any) {
	t.Helper()
	require.Eventually(t, condition, testTimeout, time.Millisecond, about...)
}

// listenUDP is listen for UDP.
func listenUDP(t *testing.T, host string, port int) *net.UDPConn {
	t.Helper()
	for {
		c := must.Do(net.ListenUDP("udp4", &net.UDPAddr{IP: net.ParseIP(host), Port: port}))(t)
		if port != 0 {
			return c
		}
		other, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.ParseIP(three), Port: portOf(c)})
		if err == nil {
			_ = other.Close()
			return c
		}
		_ = c.Close()
	}
}

// startUDPTarget starts a target that answers each datagram with what answer returns, on
// host at port (0: any), until it is closed.
func startUDPTarget(t *testing.T, host string, port int, answer func(datagram []byte) []byte) *net.UDPConn {
	t.Helper()
	c := listenUDP(t, host, port)
	t.Cleanup(func() { _ = c.Close() })
	go func() {
		buf := make([]byte, 64<<10)
		for {
			n, from, err := c.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			_, _ = c.WriteToUDPAddrPort(answer(buf[:n]), from)
		}
	}()
	return c
}

// startUDPEcho starts a target that echoes, without allocating.
func startUDPEcho(t *testing.T, host string, port int) *net.UDPConn {
	t.Helper()
	return startUDPTarget(t, host, port, func(datagram []byte) []byte { return datagram })
}

// udpBackend starts a target that answers with its name and the datagram.
func udpBackend(t *testing.T, host, name string, port int) *net.UDPConn {
	t.Helper()
	return startUDPTarget(t, host, port, func(datagram []byte) []byte { return append([]byte(name+" "), datagram...) })
}

// newPair starts the targets two and three, which greet and echo. f forwards a port to both; it is not in force yet.
func newPair(t *testing.T) (p *dataplane.Plane, port int, f cloud.Forwarding) {
	t.Helper()
	p, port = newPlane(t), freePort(t)
	target := startTarget(t, two, 0, greetAndEcho("two"))
	startTarget(t, three, target, greetAndEcho("three"))
	return p, port, forwarding(target, []string{two, three}, port)
}

// newUDPPair is newPair for targets that answer datagrams.
func newUDPPair(t *testing.T) (p *dataplane.Plane, port int, f cloud.Forwarding) {
	t.Helper()
	p, port = newPlane(t), freePort(t)
	target := portOf(udpBackend(t, two, "two", 0))
	udpBackend(t, three, "three", target)
	return p, port, udpForwarding(target, []string{two, three}, port)
}

// otherOfPair names the other target of a pair.
var otherOfPair = map[string]string{"two": "three", "three": "two"}

func portOf(c net.PacketConn) int { return c.LocalAddr().(*net.UDPAddr).Port }

func udpForwarding(targetPort int, hosts []string, ports ...int) cloud.Forwarding {
	f := forwarding(targetPort, hosts, ports...)
	for i := range f.Listeners {
		f.Listeners[i].Protocol = api.ProtocolUDP
	}
	return f
}

// udpClient is a connected socket: it receives answers only from the address that it sends
// to.
func udpClient(t *testing.T, host string, port int) *net.UDPConn {
	t.Helper()
	c := must.Do(net.DialUDP(
		"udp4", &net.UDPAddr{IP: net.ParseIP(host)}, net.UDPAddrFromAddrPort(netip.AddrPortFrom(front, uint16(port))),
	))(t)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func sendText(t *testing.T, c *net.UDPConn, text string) {
	t.Helper()
	must.Do(io.WriteString(c, text))(t)
}

func receiveText(t *testing.T, c *net.UDPConn) string {
	t.Helper()
	require.NoError(t, c.SetReadDeadline(time.Now().Add(testTimeout)))
	buf := make([]byte, 64<<10)
	n := must.Do(c.Read(buf))(t)
	return string(buf[:n])
}

// sendAndReadName sends text and returns the name of the target that answers.
func sendAndReadName(t *testing.T, c *net.UDPConn, text string) string {
	t.Helper()
	sendText(t, c, text)
	name, got, _ := strings.Cut(receiveText(t, c), " ")
	require.Equal(t, text, got)
	return name
}

func seconds(d time.Duration) api.Seconds { return api.Seconds(d.Seconds()) }
