package dataplane

// Listeners of protocol http end their clients' connections, and send each request on, to a target that is chosen
// for it as tcp chooses one for a connection.

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/cloud"
)

const (
	// headerTimeout is how long a client may take to send the header of a request.
	headerTimeout = 10 * time.Second
	// keepAliveTimeout is how long a client's connection waits for the next request, where a balancer has no
	// idle time-out.
	keepAliveTimeout = time.Minute
	maxRequestHeader = 64 << 10
)

// portOf is the port of a listener.
func portOf(l cloud.Listener) port { return port{l.Transport(), l.Port} }

// errNoTarget is why a request cannot be sent on.
var errNoTarget = errors.New("no target of the load balancer answers")

// serveRequests answers a client's requests until its connection ends.
func (l *listener) serveRequests(r *route, f *flow) {
	defer l.finishFlow(f)
	if !l.balancer.flows.add(f) {
		return
	}
	idle := cmp.Or(r.idleTimeout, keepAliveTimeout)
	// Later than a 503 or 504 can be: this ends what stalls within a request or an answer.
	f.idle = newIdleTimer(idle+dialsTimeout, f.resetBoth)
	closed := make(chan struct{})
	conn := &countedConn{
		Conn: f.clientConn, in: &l.bytesIn, out: &l.bytesOut, idle: f.idle,
		onClose: func(broken bool) {
			f.broken.CompareAndSwap(false, broken)
			close(closed)
		},
	}
	server := &http.Server{
		Handler: l.requestHandler(f, idle), ReadHeaderTimeout: min(headerTimeout, idle), IdleTimeout: idle,
		MaxHeaderBytes: maxRequestHeader, ErrorLog: log.New(io.Discard, "", 0),
	}
	one := &singleConn{conn: conn, closed: closed}
	if r.tls != nil {
		one.conn = tls.Server(conn, r.tls)
	}
	_ = server.Serve(one) // It ends with the connection.
}

// requestHandler sends requests on, or answers with a redirect where that is in force.
func (l *listener) requestHandler(f *flow, idle time.Duration) http.Handler {
	proxy := l.requestProxy(f, idle)
	return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		in := l.route.Load().listener
		if in.RedirectPort > 0 {
			redirectToHTTPS(w, q, in.RedirectPort)
			return
		}
		sticky := &stickyRequest{name: in.StickyCookie, lifetime: in.StickyCookieSeconds.Duration()}
		if c, err := q.Cookie(sticky.name); err == nil {
			sticky.sent = c.Value
		}
		proxy.ServeHTTP(w, q.WithContext(context.WithValue(q.Context(), stickyKey{}, sticky)))
	})
}

// redirectToHTTPS answers a request with the same URL by https, at a port.
func redirectToHTTPS(w http.ResponseWriter, q *http.Request, port int) {
	to := url.URL{Host: q.Host}
	host := to.Hostname()
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	if port != 443 {
		host += ":" + strconv.Itoa(port)
	}
	w.Header().Set("Location", "https://"+host+q.URL.RequestURI())
	w.WriteHeader(http.StatusMovedPermanently)
}

// stickyRequest is a request's cookie, by which its client stays with a target; without a name, it has none.
type stickyRequest struct {
	name, sent string
	lifetime   time.Duration
	target     string // to which the request was sent
}

type stickyKey struct{}

// stickyOf gives what requestHandler knows of a request.
func stickyOf(ctx context.Context) *stickyRequest { return ctx.Value(stickyKey{}).(*stickyRequest) }

// cookieOf is the value of cookies that name a target. It says nothing of the target to those who read it, and is
// the same in every process.
func cookieOf(target string) string {
	sum := sha256.Sum256([]byte(target))
	return hex.EncodeToString(sum[:8])
}

// targetOfCookie is the target that a cookie names; empty if there is none.
func (r *route) targetOfCookie(cookie string) string {
	if cookie != "" {
		for _, t := range r.targets {
			if cookieOf(t.name) == cookie {
				return t.name
			}
		}
	}
	return ""
}

// setCookie has the client stay with the target that has answered, if it does not do so yet.
func (s *stickyRequest) setCookie(answer *http.Response) {
	if value := cookieOf(s.target); s.name != "" && s.sent != value {
		cookie := http.Cookie{Name: s.name, Value: value, Path: "/", HttpOnly: true, MaxAge: int(s.lifetime.Seconds())}
		answer.Header.Add("Set-Cookie", cookie.String())
	}
}

// requestProxy sends requests on, each over a connection of its own.
func (l *listener) requestProxy(f *flow, idle time.Duration) *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL.Scheme, p.Out.URL.Host, p.Out.Host = "http", "target", p.In.Host
			p.Out.URL.RawQuery = p.In.URL.RawQuery // ReverseProxy leaves out what Go cannot parse.
			// What the client says stays before what is known: who trusts the balancer takes the last.
			p.Out.Header["X-Forwarded-For"] = p.In.Header["X-Forwarded-For"]
			p.SetXForwarded()
			p.Out.Header.Set("X-Forwarded-Port", strconv.Itoa(l.address.number))
		},
		Transport: &http.Transport{
			DisableKeepAlives: true, DisableCompression: true, ResponseHeaderTimeout: idle,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return l.dialForRequest(f, stickyOf(ctx)) },
		},
		ModifyResponse: func(answer *http.Response) error {
			stickyOf(answer.Request.Context()).setCookie(answer)
			switch {
			case answer.StatusCode == http.StatusSwitchingProtocols:
				if l.route.Load().idleTimeout == 0 { // It may be quiet, as a connection of tcp may.
					f.idle.stop()
				}
			case l.closed.Load(): // The client's next request has to go elsewhere.
				answer.Header.Set("Connection", "close")
			}
			return nil
		},
		FlushInterval: -1,
		ErrorLog:      log.New(io.Discard, "", 0),
		ErrorHandler:  refuseRequest,
	}
}

// refuseRequest answers a request that no target has answered.
func refuseRequest(w http.ResponseWriter, _ *http.Request, err error) {
	status := http.StatusBadGateway
	switch {
	case errors.Is(err, errNoTarget):
		status = http.StatusServiceUnavailable
	case isTimeout(err):
		status = http.StatusGatewayTimeout
	}
	http.Error(w, fmt.Sprintf("%d %s: %v", status, http.StatusText(status), err), status)
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// dialForRequest connects to a target, by what is in force now. The request, or what a client of tls sends, is a flow
// of its own, which drains with its target.
func (l *listener) dialForRequest(f *flow, sticky *stickyRequest) (*countedConn, error) {
	conn, target := l.dialCandidates(l.route.Load(), f.clientAddress, sticky.sent, f.clientConn)
	if conn == nil {
		l.failed.Add(1)
		return nil, errNoTarget
	}
	sticky.target = target.name
	target.countConnection()
	request := &flow{listenAddress: f.listenAddress, clientAddress: f.clientAddress, clientConn: f.clientConn}
	out := &countedConn{Conn: conn, in: &target.bytesOut, out: &target.bytesIn, idle: f.idle, onClose: func(broken bool) {
		if broken || request.broken.Load() {
			target.broken.Add(1)
			target.requestCheck()
		}
		l.balancer.flows.remove(request)
		target.active.Add(-1)
		target.openConnections.Add(-1)
		l.balancer.affinity.removeConnection(f.clientAddress, target.name)
	}}
	if !l.balancer.flows.add(request) || !l.balancer.flows.setTarget(request, conn, target) {
		_ = out.Close()
		return nil, errNoTarget
	}
	return out, nil
}

// countedConn counts what is read and written.
type countedConn struct {
	net.Conn
	in, out *atomic.Int64
	idle    *idleTimer
	onClose func(broken bool) // is called once; broken if the connection ended before it was closed
	broken  atomic.Bool
	end     sync.Once
}

// Read implements net.Conn.
func (c *countedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.countBytes(c.in, n, err)
	return n, err
}

// Write implements net.Conn.
func (c *countedConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.countBytes(c.out, n, err)
	return n, err
}

func (c *countedConn) countBytes(count *atomic.Int64, n int, err error) {
	count.Add(int64(n))
	c.idle.recordActivity()
	if err != nil && !errors.Is(err, io.EOF) && !isTimeout(err) { // The HTTP server's deadlines end reads, and no connection.
		c.broken.Store(true)
	}
}

// Close implements net.Conn.
func (c *countedConn) Close() error {
	c.end.Do(func() { c.onClose(c.broken.Load()) })
	return c.Conn.Close()
}

// singleConn is a net.Listener of one connection. It ends when that is closed.
type singleConn struct {
	conn   net.Conn
	closed chan struct{}
	taken  bool
}

// Accept implements net.Listener.
func (s *singleConn) Accept() (net.Conn, error) {
	if !s.taken {
		s.taken = true
		return s.conn, nil
	}
	<-s.closed
	return nil, net.ErrClosed
}

// Close implements net.Listener.
func (s *singleConn) Close() error { return nil }

// Addr implements net.Listener.
func (s *singleConn) Addr() net.Addr { return s.conn.LocalAddr() }
