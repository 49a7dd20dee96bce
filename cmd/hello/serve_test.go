package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/pires/go-proxyproto"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/cmd/hello/demoserver"
)

const sentence = "Hello from pod web-1 (10.1.0.5) on node-1 in zone zone-a\n"

type running struct {
	tcp, udp string
	stop     context.CancelFunc
	ended    chan error
}

func start(t *testing.T, change func(*options)) running {
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
	r := running{tcp: tcp.Addr().String(), udp: udp.LocalAddr().String(), stop: cancel, ended: make(chan error, 1)}
	go func() {
		r.ended <- serve(ctx, o, tcp, udp)
		close(r.ended)
	}()
	t.Cleanup(func() {
		cancel()
		assert.NoError(t, <-r.ended) // Nil, too, when a test has taken what was there.
	})
	return r
}

func (r running) get(t *testing.T, path string) (body string, code int) {
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

func TestAnswersWhoItIs(t *testing.T) {
	r := start(t, nil)
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
	r := start(t, nil)
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

func TestProxyHeaderGivesTheClient(t *testing.T) {
	r := start(t, func(o *options) { o.proxy = true })
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

func TestServesOnWhileDraining(t *testing.T) {
	r := start(t, func(o *options) { o.drain = 2 * time.Second })
	r.get(t, "/")
	slow := make(chan string, 1)
	go func() {
		body, _ := r.get(t, "/?delay=3s")
		slow <- body
	}()
	told := time.Now()
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
	assert.GreaterOrEqual(t, time.Since(told), 2*time.Second)
	_, err := net.DialTimeout("tcp", r.tcp, time.Second)
	require.Error(t, err)
}

func TestExitsWhenAsked(t *testing.T) {
	r := start(t, nil)
	answer, err := http.Post("http://"+r.tcp+"/exit?code=3", "", nil)
	require.NoError(t, err)
	require.NoError(t, answer.Body.Close())
	var asked exitError
	require.ErrorAs(t, <-r.ended, &asked)
	assert.Equal(t, 3, int(asked))
}

func TestOptionsSayAllThatIsWrong(t *testing.T) {
	env := map[string]string{"PORT": "99999", "PROXY_PROTOCOL": "maybe", "DRAIN_SECONDS": "-1"}
	var environment []string
	for key, value := range env {
		environment = append(environment, key+"="+value)
	}
	_, err := optionsFrom(environment)
	for key, value := range env {
		require.ErrorContains(t, err, fmt.Sprintf("%s=%q", key, value))
	}
	o, err := optionsFrom(nil)
	require.NoError(t, err)
	assert.Equal(t, uint16(8080), o.port)
	assert.Equal(t, 5*time.Second, o.drain)
	assert.False(t, o.proxy)
}

func TestShowsOnlyTheVariablesThatWereNamed(t *testing.T) {
	o, err := optionsFrom([]string{"GREETING=a=b", "PASSWORD=x", "SHOW_ENV=COLOUR, MISSING", "COLOUR=blue", "NODE_NAME="})
	require.NoError(t, err)
	assert.Equal(t, map[string]string{"GREETING": "a=b", "COLOUR": "blue", "NODE_NAME": ""}, o.env)
}
