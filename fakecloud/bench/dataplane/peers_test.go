package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestPeerThatIsNotInstalled(t *testing.T) {
	absent := peer{name: haproxy, program: "no-such-proxy", packages: "haproxy"}
	s := &stage{dir: t.TempDir()}
	_, err := s.startPeer(t.Context(), absent)
	require.ErrorIs(t, err, errNotInstalled)
	r := figures[0].makeRow(
		&stage{requestedPeers: []string{haproxy, haproxySplice}, missing: map[string]error{haproxy: err}},
		map[string]sample{fakecloud: {"bytesPerSecond": 2e9}, haproxySplice: {"bytesPerSecond": 1e9}}, true,
	)
	assert.Equal(t, "not installed", r.Shown[haproxy])
	assert.Equal(t, "haproxy: not installed: apt-get install haproxy", r.Notes[0])
	assert.Nil(t, r.Holds)
}

func TestPeerConfigs(t *testing.T) {
	plain, splice := haproxyConfig("127.0.0.9", false), haproxyConfig("127.0.0.9", true)
	assert.NotContains(t, plain, "splice")
	assert.Equal(t, plain, strings.Replace(splice, "  option splice-auto\n", "", 1))
	assert.Contains(t, plain, "bind 127.0.0.9:30001\n")
	assert.Contains(t, ipvsConfig("127.0.0.9"), "-A -t 127.0.0.9:30001 -s rr\n-a -t 127.0.0.9:30001 -r "+
		hostPort(backendAddresses()[0], 30001)+" -g -w 1\n")
	datagrams := nginxConfig("127.0.0.9")
	for _, backend := range backendAddresses() {
		assert.Contains(t, plain, hostPort(backend, portEcho))
		assert.Contains(t, datagrams, hostPort(backend, portUDP))
	}
	assert.NotContains(t, datagrams, "proxy_responses", "sessions last as ours do")
}

// The real peers, where they are installed, forward and end.
func TestPeersForward(t *testing.T) {
	for _, p := range peers {
		t.Run(p.name, func(t *testing.T) {
			if _, err := p.findProgram(); err != nil {
				t.Skip(err)
			}
			c, err := (&stage{dir: t.TempDir()}).startPeer(t.Context(), p)
			if err != nil && p.name == ipvs {
				t.Skip(err) // It takes root, and a kernel that has it.
			}
			if err != nil && p.name == nginx && strings.Contains(err.Error(), `unknown directive "stream"`) {
				t.Skip("nginx is here without its stream module")
			}
			require.NoError(t, err)
			if c.process == nil {
				return
			}
			c.process.Kill()
			if p.name == nginx {
				assert.Error(t, pingUDP(c.address))
			} else {
				assert.Error(t, pingTCP(c.address))
			}
		})
	}
}
