package faultproxy

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// open is a gate to a server that answers "cloud", and resets whoever asks for
// /reset.
func open(t *testing.T) *Gate {
	cloud := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/reset" {
			conn, _, err := http.NewResponseController(w).Hijack()
			if assert.NoError(t, err) {
				assert.NoError(t, errors.Join(conn.(*net.TCPConn).SetLinger(0), conn.Close()))
			}
			return
		}
		_, _ = io.WriteString(w, "cloud")
	}))
	t.Cleanup(cloud.Close)
	g, err := OpenGate("127.0.0.1", strings.TrimPrefix(cloud.URL, "http://"))
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, g.Close()) })
	return g
}

// get asks through the gate, over a connection of its own.
func get(t *testing.T, g *Gate, path string) (string, error) {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+g.Address()+path, nil)
	require.NoError(t, err)
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	return string(body), err
}

func TestGateForwards(t *testing.T) {
	g := open(t)
	body, err := get(t, g, "/")
	require.NoError(t, err)
	assert.Equal(t, "cloud", body)
}

// What the cloud breaks off is no orderly end for the CCM either.
func TestGatePassesResetsOn(t *testing.T) {
	_, err := get(t, open(t), "/reset")
	require.ErrorIs(t, err, syscall.ECONNRESET)
}

// Shut, the gate refuses new connections and breaks off those that are open;
// one attempt every few seconds is counted; lifted, it is where it was.
func TestGateRefuses(t *testing.T) {
	g := open(t)
	kept, err := net.Dial("tcp", g.Address())
	require.NoError(t, err)
	_, err = io.WriteString(kept, "GET / HTTP/1.1\r\nHost: cloud\r\n\r\n")
	require.NoError(t, err)
	_, err = kept.Read(make([]byte, 1)) // It goes through the gate by now.
	require.NoError(t, err)

	shut, err := g.Refuse()
	require.NoError(t, err)
	_, err = io.Copy(io.Discard, kept)
	if err != nil {
		require.ErrorIs(t, err, syscall.ECONNRESET)
	}
	_, err = get(t, g, "/")
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	_, err = g.Refuse()
	require.ErrorContains(t, err, "shut already")

	for hits := 0; hits == 0; {
		_, err = get(t, g, "/")
		require.Error(t, err)
		hits, err = shut.Hits(t.Context())
		require.NoError(t, err)
	}

	lift, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	require.NoError(t, shut.Lift(lift))
	require.NoError(t, shut.Lift(lift), "a second time does nothing")
	body, err := get(t, g, "/")
	require.NoError(t, err)
	assert.Equal(t, "cloud", body)
}
