package dataplane_test

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
	"github.com/ccmlab/ccmlab/fakecloud/dataplane"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
	"github.com/ccmlab/ccmlab/fakecloud/internal/testcerts"
)

// serveHTTP has a target answer requests.
func serveHTTP(t *testing.T, host string, port int, handle http.HandlerFunc) int {
	t.Helper()
	l := listen(t, host, port)
	server := &http.Server{Handler: handle, ReadHeaderTimeout: testTimeout}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })
	return l.Addr().(*net.TCPAddr).Port
}

func sayName(name string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprint(w, name+" "+r.Host+" "+r.Header.Get("X-Forwarded-For")+" "+r.Header.Get("X-Forwarded-Port"))
	}
}

// forwardHTTP puts a listener of http in force.
func forwardHTTP(t *testing.T, p *dataplane.Plane, target, port int, hosts ...string) cloud.Forwarding {
	t.Helper()
	f := forwarding(target, hosts, port)
	f.Listeners[0].Protocol = api.ProtocolHTTP
	require.NoError(t, p.Apply(f))
	return f
}

// requester makes requests over one connection.
type requester struct {
	*testing.T
	conn   net.Conn
	answer *bufio.Reader
}

func newRequester(t *testing.T, port int) *requester {
	t.Helper()
	c := must.Do(dialFrom(t, four, port))(t)
	return &requester{t, c, bufio.NewReader(c)}
}

// beganAnswer is an answer whose body the test's end closes.
type beganAnswer struct{ *http.Response }

// begin sends a request and returns the begin of its answer.
func (r *requester) begin(request string) beganAnswer {
	r.Helper()
	must.Do(io.WriteString(r.conn, request+"\r\n\r\n"))(r)
	answer := must.Do(http.ReadResponse(r.answer, nil))(r)
	r.Cleanup(func() { _ = answer.Body.Close() })
	return beganAnswer{answer}
}

// get gives the answer's status and body, and whether the connection ends with it.
func (r *requester) get(headers ...string) (status int, body string, ends bool) {
	r.Helper()
	request := "GET / HTTP/1.1\r\n" + strings.Join(append([]string{"Host: shop.example"}, headers...), "\r\n")
	answer := r.begin(request)
	text := must.Do(io.ReadAll(answer.Body))(r)
	return answer.StatusCode, string(text), answer.Close
}

func TestRequestsOfOneConnectionGoToAllTargets(t *testing.T) {
	p, port := newPlane(t), freePort(t)
	target := serveHTTP(t, two, 0, sayName("2"))
	serveHTTP(t, three, target, sayName("3"))
	f := forwardHTTP(t, p, target, port, two, three)
	r := newRequester(t, port)
	var names []string
	for range 4 {
		status, body, _ := r.get()
		require.Equal(t, http.StatusOK, status, body)
		names = append(names, body[:1])
		assert.Equal(t, " shop.example "+four+" "+strconv.Itoa(port), body[1:])
	}
	assert.ElementsMatch(t, []string{"2", "2", "3", "3"}, names)
	_, body, _ := r.get("X-Forwarded-For: 192.0.2.1")
	assert.Contains(t, body, "192.0.2.1, "+four, "what the client says stays before what is known")
	stats := listenerStats(p)
	assert.EqualValues(t, 1, stats.Connections)
	assert.EqualValues(t, 1, stats.ActiveConnections)

	f.Backends = f.Backends[1:]
	require.NoError(t, p.Apply(f))
	for range 2 {
		_, body, _ := r.get()
		assert.Equal(t, "3", body[:1], "the connection stays, and its requests go where they may")
	}
	f.Listeners[0].Protocol = api.ProtocolTCP
	require.NoError(t, p.Apply(f), "a port can change between tcp and http")
	f.Listeners = nil
	require.NoError(t, p.Apply(f))
	_, _, ends := r.get()
	assert.True(t, ends, "nothing listens any more")
	awaitNoActive(t, p)
}

// awaitNoActive waits until no target has a connection.
func awaitNoActive(t *testing.T, p *dataplane.Plane) {
	t.Helper()
	require.Eventually(t, func() bool {
		for _, target := range p.Stats("lb-1").Targets {
			if target.ActiveConnections != 0 {
				return false
			}
		}
		return true
	}, testTimeout, time.Millisecond)
}

func TestRequestsThatNoTargetAnswers(t *testing.T) {
	p, port := newPlane(t), freePort(t)
	target := serveHTTP(t, two, 0, sayName("2"))
	f := forwardHTTP(t, p, target, port, three, two)
	for range 4 { // Nobody listens at three.
		_, body, _ := newRequester(t, port).get()
		assert.Equal(t, "2", body[:1])
	}
	f.Backends = f.Backends[:1]
	require.NoError(t, p.Apply(f))
	status, body, _ := newRequester(t, port).get()
	assert.Equal(t, http.StatusServiceUnavailable, status)
	assert.Contains(t, body, "no target of the load balancer answers")

	startTarget(t, three, target, func(c net.Conn) { _, _ = bufio.NewReader(c).ReadString('\n') })
	status, _, _ = newRequester(t, port).get()
	assert.Equal(t, http.StatusBadGateway, status)
	refusal := newRequester(t, port).begin("this is no HTTP")
	assert.Equal(t, http.StatusBadRequest, refusal.StatusCode)
}

func TestRequestsThatLast(t *testing.T) {
	p, port := newPlane(t), freePort(t)
	goOn := make(chan struct{})
	target := serveHTTP(t, two, 0, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") == "" {
			_, _ = io.WriteString(w, "first ")
			_ = http.NewResponseController(w).Flush()
			<-goOn
			_, _ = io.WriteString(w, "last")
			return
		}
		w.Header().Set("Connection", "Upgrade")
		w.Header().Set("Upgrade", "echo")
		w.WriteHeader(http.StatusSwitchingProtocols)
		conn, buffered, err := http.NewResponseController(w).Hijack()
		if err == nil {
			_, _ = io.Copy(conn, buffered)
			_ = conn.Close()
		}
	})
	forwardHTTP(t, p, target, port, two)
	c := newRequester(t, port)
	answer := c.begin("GET / HTTP/1.1\r\nHost: a")
	first := make([]byte, len("first "))
	must.Do(io.ReadFull(answer.Body, first))(t, "it is passed on before the answer ends")
	close(goOn)
	rest, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	assert.Equal(t, "last", string(rest))

	c = newRequester(t, port)
	upgraded := c.begin("GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: echo")
	require.Equal(t, http.StatusSwitchingProtocols, upgraded.StatusCode)
	must.Do(io.WriteString(c.conn, "hello"))(t)
	echoed := make([]byte, len("hello"))
	must.Do(io.ReadFull(c.answer, echoed))(t)
	assert.Equal(t, "hello", string(echoed))
	assert.Positive(t, listenerStats(p).ActiveConnections)
	p.Remove("lb-1")
	_, err = c.answer.ReadByte()
	require.Error(t, err, "it ends with the balancer")
}

func TestRequestsKeepTheirQuery(t *testing.T) {
	p, port := newPlane(t), freePort(t)
	target := serveHTTP(t, two, 0, func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.RequestURI) })
	forwardHTTP(t, p, target, port, two)
	const uri = "/a%2Fb?x=1;y=2&z=%zz"
	c := newRequester(t, port)
	answer := c.begin("GET " + uri + " HTTP/1.1\r\nHost: a")
	body := must.Do(io.ReadAll(answer.Body))(t)
	assert.Equal(t, uri, string(body))
}

func TestRequestsDrain(t *testing.T) {
	for name, takeOut := range map[string]func(*cloud.Forwarding){
		"target":   func(f *cloud.Forwarding) { f.Backends = f.Backends[:1] },
		"listener": func(f *cloud.Forwarding) { f.Listeners = nil },
	} {
		t.Run(name, func(t *testing.T) {
			p, port := newPlane(t), freePort(t)
			target := serveHTTP(t, two, 0, func(w http.ResponseWriter, r *http.Request) {
				_ = http.NewResponseController(w).Flush()
				<-r.Context().Done()
			})
			f := forwarding(target, []string{three, two}, port) // Nobody listens at three.
			f.Listeners[0].Protocol = api.ProtocolHTTP
			f.Drain = 50 * time.Millisecond
			require.NoError(t, p.Apply(f))
			c := newRequester(t, port)
			c.begin("GET / HTTP/1.1\r\nHost: a")
			takeOut(&f)
			require.NoError(t, p.Apply(f))
			requireBroken(t, c.conn)
			awaitNoActive(t, p)
			assert.EqualValues(t, 1, p.Stats("lb-1").Targets[1].BrokenConnections)
		})
	}
}

func TestClientsOfHTTPThatStallEnd(t *testing.T) {
	p, port := newPlane(t), freePort(t)
	target := serveHTTP(t, two, 0, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		for b := make([]byte, 1<<20); r.Method == http.MethodGet; {
			if _, err := w.Write(b); err != nil {
				return
			}
		}
	})
	silent := startTarget(t, two, 0, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
	f := forwarding(target, []string{two}, port, freePort(t))
	f.Listeners[0].Protocol, f.Listeners[1].Protocol, f.Listeners[1].TargetPort = api.ProtocolHTTP, api.ProtocolHTTP, silent
	f.IdleTimeout = 500 * time.Millisecond
	require.NoError(t, p.Apply(f))
	for _, stalls := range []string{
		"GET / HTTP/1.1\r\nHost: a\r\n\r\n", // It does not read the answer.
		"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nabc",
	} {
		c, err := dialFrom(t, four, port)
		require.NoError(t, err)
		must.Do(io.WriteString(c, stalls))(t)
	}
	await(t, func() bool { return listenerStats(p).ActiveConnections == 2 })
	status, _, _ := newRequester(t, f.Listeners[1].Port).get()
	assert.Equal(t, http.StatusGatewayTimeout, status, "a target that is silent")
	awaitNoConnections(t, p)
	awaitNoActive(t, p)
}

// The certificate is the one for the name that the client asks for, or else the first.
func TestTLSEndsAtTheBalancer(t *testing.T) {
	p, port := newPlane(t), freePort(t)
	target := serveHTTP(t, two, 0, func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprint(w, r.Header.Get("X-Forwarded-Proto"), " ", r.Host)
	})
	f := forwarding(target, []string{two}, port)
	f.Listeners[0].Protocol = api.ProtocolHTTPS
	roots := x509.NewCertPool()
	f.Certificates = map[string]tls.Certificate{}
	for _, name := range []string{"shop", "blog"} {
		certificate, key := testcerts.For(t, name+".example")
		require.True(t, roots.AppendCertsFromPEM([]byte(certificate)))
		f.Certificates[name] = must.Do(tls.X509KeyPair([]byte(certificate), []byte(key)))(t)
		f.Listeners[0].CertificateIDs = append(f.Listeners[0].CertificateIDs, name)
	}
	require.NoError(t, p.Apply(f))
	ask := func(asked string) (certificate, body string) {
		c := must.Do(dialFrom(t, four, port))(t)
		conn := tls.Client(c, &tls.Config{RootCAs: roots, ServerName: asked, InsecureSkipVerify: asked == "news.example"})
		r := &requester{t, conn, bufio.NewReader(conn)}
		_, body, _ = r.get()
		return conn.ConnectionState().PeerCertificates[0].DNSNames[0], body
	}
	for asked, want := range map[string]string{"shop.example": "shop.example", "blog.example": "blog.example", "news.example": "shop.example"} {
		certificate, body := ask(asked)
		assert.Equal(t, want, certificate)
		assert.Equal(t, "https shop.example", body)
	}
	plain := newRequester(t, port)
	status, _, _ := plain.get()
	assert.Equal(t, http.StatusBadRequest, status)
}

// A client with a cookie stays with its target, and gets another cookie with another target.
func TestStickyCookies(t *testing.T) {
	p, port := newPlane(t), freePort(t)
	target := serveHTTP(t, two, 0, sayName("2"))
	serveHTTP(t, three, target, sayName("3"))
	f := forwarding(target, []string{two, three}, port)
	f.Listeners[0].Protocol, f.Listeners[0].StickyCookie, f.Listeners[0].StickyCookieSeconds = api.ProtocolHTTP, "TO", 300
	require.NoError(t, p.Apply(f))
	r := newRequester(t, port)
	ask := func(header string) (name byte, set []*http.Cookie) {
		answer := r.begin("GET / HTTP/1.1\r\nHost: a" + header)
		body := must.Do(io.ReadAll(answer.Body))(t)
		return body[0], answer.Cookies()
	}
	first, set := ask("")
	require.Len(t, set, 1)
	assert.Equal(t, "TO", set[0].Name)
	assert.Equal(t, 300, set[0].MaxAge)
	other, _ := ask("\r\nCookie: TO=unknown")
	assert.NotEqual(t, first, other, "a cookie that names no target")
	for range 3 {
		name, again := ask("\r\nCookie: TO=" + set[0].Value)
		assert.Equal(t, first, name)
		assert.Empty(t, again)
	}
	f.Backends = slices.DeleteFunc(f.Backends, func(b cloud.Backend) bool {
		return b.Address.String() == map[byte]string{'2': two, '3': three}[first]
	})
	require.NoError(t, p.Apply(f))
	name, again := ask("\r\nCookie: TO=" + set[0].Value)
	assert.Equal(t, other, name, "its target is none any more")
	require.Len(t, again, 1)
	assert.NotEqual(t, set[0].Value, again[0].Value)
}

func TestRedirectsToHTTPS(t *testing.T) {
	p, port, to := newPlane(t), freePort(t), freePort(t)
	f := forwarding(1, nil, port)
	f.Listeners[0].Protocol, f.Listeners[0].RedirectPort = api.ProtocolHTTP, to
	require.NoError(t, p.Apply(f))
	for host, want := range map[string]string{"shop.example": "shop.example", "shop.example:80": "shop.example", "[::1]:80": "[::1]"} {
		answer := newRequester(t, port).begin("GET /a?b=%zz HTTP/1.1\r\nHost: " + host)
		assert.Equal(t, http.StatusMovedPermanently, answer.StatusCode)
		assert.Equal(t, fmt.Sprintf("https://%s:%d/a?b=%%zz", want, to), answer.Header.Get("Location"))
	}
	reason, known := p.Condition("lb-1")
	assert.Empty(t, reason, "it needs no target")
	assert.True(t, known)
	f.Listeners[0].RedirectPort = 443
	require.NoError(t, p.Apply(f))
	answer := newRequester(t, port).begin("GET / HTTP/1.1\r\nHost: shop.example")
	assert.Equal(t, "https://shop.example/", answer.Header.Get("Location"))
}

func TestListenersHaveIdleTimeouts(t *testing.T) {
	p, port, f := newPair(t)
	f.IdleTimeout = time.Hour
	f.Listeners[0].IdleTimeoutSeconds = seconds(50 * time.Millisecond)
	require.NoError(t, p.Apply(f))
	c, _ := dialAndReadName(t, four, port)
	requireBroken(t, c)
}

// Sessions of TLS go on when targets change, and end with their certificates.
func TestSessionsOfTLSResume(t *testing.T) {
	p, port := newPlane(t), freePort(t)
	target := serveHTTP(t, two, 0, sayName("2"))
	f := forwarding(target, []string{two}, port)
	f.Listeners[0].Protocol, f.Listeners[0].CertificateIDs = api.ProtocolHTTPS, []string{"shop"}
	roots := x509.NewCertPool()
	f.Certificates = map[string]tls.Certificate{}
	for _, id := range []string{"shop", "new"} {
		certificate, key := testcerts.For(t, "shop.example")
		require.True(t, roots.AppendCertsFromPEM([]byte(certificate)))
		f.Certificates[id] = must.Do(tls.X509KeyPair([]byte(certificate), []byte(key)))(t)
	}
	config := &tls.Config{RootCAs: roots, ServerName: "shop.example", ClientSessionCache: tls.NewLRUClientSessionCache(1)}
	resumes := func() bool {
		require.NoError(t, p.Apply(f))
		conn := tls.Client(must.Do(dialFrom(t, four, port))(t), config)
		r := &requester{t, conn, bufio.NewReader(conn)}
		r.get()
		return conn.ConnectionState().DidResume
	}
	assert.False(t, resumes())
	f.Backends = append(f.Backends, cloud.Backend{Target: "i-other", Address: f.Addresses[0]})
	assert.True(t, resumes())
	f.Listeners[0].CertificateIDs = []string{"new"}
	assert.False(t, resumes())
}
