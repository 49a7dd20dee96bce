package server_test

import (
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

func TestOptionsThatBalancersCannotHave(t *testing.T) {
	r := newRig(t)
	a := r.reserve(t, "one")
	at := "/v1/load-balancers"
	made, _ := r.call(
		t, "POST", at, `{"name":"old","listeners":[{"protocol":"tcp","port":1,"targetPort":1}],"addressId":"`+a.ID+`"}`,
	)
	require.Equal(t, 201, made.StatusCode, made.Body)
	for _, tc := range []struct{ listener, rest, field string }{
		{``, `,"scheme":"private"`, "scheme"},
		{``, `,"algorithm":"random"`, "algorithm"},
		{``, `,"idleTimeoutSeconds":86401`, "idleTimeoutSeconds"},
		{``, `,"idleTimeoutSeconds":1.5`, "idleTimeoutSeconds"},
		{``, `,"drainSeconds":-1`, "drainSeconds"},
		{`,"connectionLimit":-1`, ``, "listeners.0.connectionLimit"},
		{`,"connectionLimit":1000001`, ``, "listeners.0.connectionLimit"},
		{``, `,"healthCheck":{"protocol":"http","port":1,"expectedCodes":"199"}`, "healthCheck.expectedCodes"},
		{``, `,"healthCheck":{"protocol":"http","port":1,"expectedCodes":"301-300"}`, "healthCheck.expectedCodes"},
		{``, `,"healthCheck":{"protocol":"tcp","port":1,"expectedCodes":"200"}`, "healthCheck.expectedCodes"},
	} {
		fresh := `{"name":"new","listeners":[{"protocol":"tcp","port":1,"targetPort":1` + tc.listener + `}]` + tc.rest +
			`}`
		change := `{"listeners":[{"protocol":"tcp","port":1,"targetPort":1` + tc.listener + `}]` + tc.rest + `}`
		for _, call := range [][3]string{{"POST", at, fresh}, {"PATCH", made.Header.Get("Location"), change}} {
			resp, p := r.call(t, call[0], call[1], call[2])
			assert.Equal(t, 400, resp.StatusCode, call)
			assert.Equal(t, api.InvalidRequest, p.Code)
			assert.Contains(t, fields(p), tc.field, "%v: %s", call, p.Detail)
		}
	}
	_, p := r.call(
		t, "PATCH", made.Header.Get("Location"),
		`{"scheme":"internal","drainSeconds":5,"listeners":[{"protocol":"udp","port":1,"targetPort":1}]}`,
	)
	assert.Equal(t, api.InvalidRequest, p.Code)
	assert.Len(t, fields(p), 2, "all that is wrong is told at once: %s", p.Detail)
	assert.Contains(t, fields(p), "scheme")
	assert.Contains(t, fields(p), "drainSeconds")
}

// serveTCP answers each connection to a port of 127.0.0.1, and then ends it.
func serveTCP(t *testing.T, serve func(net.Conn)) (port int) {
	t.Helper()
	l := must(net.Listen("tcp4", "127.0.0.1:0"))(t)
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

func TestOptionsAreInForce(t *testing.T) {
	r, ctx := newRig(t), t.Context()
	target := serveTCP(t, func(c net.Conn) {
		_, _ = io.WriteString(c, "x")
		_, _ = io.Copy(c, c)
	})
	in := r.runInstance(t, api.InstanceCreate{Address: new("127.0.0.1")})
	listeners := []api.Listener{
		{Protocol: "tcp", Port: freePort(t, "127.0.0.1"), TargetPort: target, ConnectionLimit: 1},
	}
	lb := r.createBalancer(t, api.LoadBalancerCreate{
		Name: "web", Listeners: listeners, Targets: &[]api.Target{{InstanceID: in.ID}}, DrainSeconds: new(1),
	})
	r.awaitBalancer(t, lb.ID, api.LoadBalancerActive)
	open := func() net.Conn {
		c := must(net.DialTimeout("tcp4", fmt.Sprintf("%s:%d", lb.Address, listeners[0].Port), patience))(t)
		t.Cleanup(func() { _ = c.Close() })
		require.NoError(t, c.SetDeadline(time.Now().Add(patience)))
		return c
	}
	first := open()
	requireOK(t)(io.ReadFull(first, make([]byte, 1)))
	second, err := net.DialTimeout("tcp4", fmt.Sprintf("%s:%d", lb.Address, listeners[0].Port), patience)
	if err == nil { // The reset may come while it still connects.
		require.NoError(t, second.SetDeadline(time.Now().Add(patience)))
		_, err = second.Read(make([]byte, 1))
		_ = second.Close()
	}
	require.Error(t, err)
	stats := must(r.LoadBalancerStats(ctx, lb.ID))(t)
	assert.EqualValues(t, 1, stats.Listeners[0].RefusedConnections)

	requireOK(t)(r.StopInstance(ctx, in.ID))
	_, err = first.Read(make([]byte, 1))
	require.Error(t, err, "a connection to an instance that does not run drains")
	require.False(t, isTimeout(err), err)
}

func isTimeout(err error) bool {
	e, ok := err.(net.Error) //nolint:errorlint // It comes straight from the connection.
	return ok && e.Timeout()
}
