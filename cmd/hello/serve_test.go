package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/pires/go-proxyproto"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/lab/demoserver"
)

const sentence = "Hello from pod web-1 (10.1.0.5) on node-1 in zone zone-a\n"

type runningServer struct {
	tcp, udp string
	stop     context.CancelFunc
	ended    chan error
}

func startServer(t *testing.T, change func(*options)) runningServer {
	t.Helper()
	o := options{identity: demoserver.Identity{Pod: "web-1", PodIP: "10.1.0.5", Node: "node-1", Zone: "zone-a"}}
	if change != nil {
		change(&o)
	}
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	udp, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	r := runningServer{tcp: tcp.Addr().String(), udp: udp.LocalAddr().
		String(), stop: cancel, ended: make(chan error, 1)}
	go func() {
		r.ended <- serveUntilEnd(ctx, o, tcp, udp)
		close(r.ended)
	}()
	t.Cleanup(func() {
		cancel()
		assert.NoError(t, <-r.ended) // Nil, too, when a test has taken what was there.
	})
	return r
}

func (r runningServer) get(t *testing.T, path string) (body string, code int) {
	t.Helper()
	client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	answer, err := client.Get("http://" + r.tcp + path)
	require.NoError(t, err)
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	return string(text), answer.StatusCode
}

func TestAnswersWithIdentity(t *testing.T) {
	r := startServer(t, nil)
	body, _ := r.get(t, "/any/path")
	assert.Equal(t, sentence, body)
	body, _ = r.get(t, "/x?format=json")
	assert.Contains(t, body, `"pod":"web-1"`)
	assert.Contains(t, body, `"path":"/x"`)
	body, _ = r.get(t, "/client")
	assert.Regexp(t, `^127\.0\.0\.1:\d+\n$`, body)
	_, code := r.get(t, "/?delay=1y")
	assert.Equal(t, http.StatusBadRequest, code)
}

func TestEchoesDatagrams(t *testing.T) {
	r := startServer(t, nil)
	conn, err := net.Dial("udp", r.udp)
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	require.NoError(t, conn.SetDeadline(time.Now().Add(10*time.Second)))
	for _, payload := range []string{"ping", "", strings.Repeat("x", 60000)} {
		_, err = conn.Write([]byte(payload))
		require.NoError(t, err)
		buf := make([]byte, 1<<16)
		n, err := conn.Read(buf)
		require.NoError(t, err)
		assert.Equal(t, sentence+payload, string(buf[:n]))
	}
}

func TestProxyHeaderGivesClientAddress(t *testing.T) {
	r := startServer(t, func(o *options) { o.proxy = true })
	for _, version := range []byte{0, 1, 2} {
		conn, err := net.Dial("tcp", r.tcp)
		require.NoError(t, err)
		require.NoError(t, conn.SetDeadline(time.Now().Add(10*time.Second)))
		want := conn.LocalAddr().String()
		if version > 0 {
			want = "192.0.2.7:1234"
			from := &net.TCPAddr{IP: net.IPv4(192, 0, 2, 7), Port: 1234}
			_, err = proxyproto.HeaderProxyFromAddrs(version, from, conn.RemoteAddr()).WriteTo(conn)
			require.NoError(t, err)
		}
		_, err = io.WriteString(conn, "GET /client HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
		require.NoError(t, err)
		answer, err := io.ReadAll(conn)
		require.NoError(t, err)
		assert.True(t, strings.HasSuffix(string(answer), "\r\n\r\n"+want+"\n"), "v%d: %s", version, answer)
		require.NoError(t, conn.Close())
	}
}

func TestServesWhileDraining(t *testing.T) {
	r := startServer(t, func(o *options) { o.drain = 2 * time.Second })
	r.get(t, "/")
	slow := make(chan string, 1)
	go func() {
		body, _ := r.get(t, "/?delay=3s")
		slow <- body
	}()
	stopped := time.Now()
	r.stop()
	assert.EventuallyWithT(t, func(t *assert.CollectT) {
		answer, err := http.Get("http://" + r.tcp)
		if assert.NoError(t, err) {
			_ = answer.Body.Close()
			assert.True(t, answer.Close, "the connection is to be closed")
		}
	}, time.Second, 10*time.Millisecond)
	assert.Equal(t, sentence, <-slow, "what was begun is answered")
	require.NoError(t, <-r.ended)
	assert.GreaterOrEqual(t, time.Since(stopped), 2*time.Second)
	_, err := net.DialTimeout("tcp", r.tcp, time.Second)
	require.Error(t, err)
}

func TestExitCommandEndsServer(t *testing.T) {
	r := startServer(t, nil)
	answer, err := http.Post("http://"+r.tcp+"/exit?code=3", "", nil)
	require.NoError(t, err)
	require.NoError(t, answer.Body.Close())
	var exit exitError
	require.ErrorAs(t, <-r.ended, &exit)
	assert.Equal(t, 3, int(exit))
}
