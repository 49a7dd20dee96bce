package main

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/bench/machine"
)

// TestMain starts the backends for all tests, at this process's own addresses.
func TestMain(m *testing.M) {
	if err := startBackends(backendAddresses()); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// directStage is a stage without a proxy: the first backend stands for it.
func directStage() (*stage, *contender) {
	z := size{Rounds: 1, Warm: time.Millisecond, Period: 50 * time.Millisecond, Streams: 2, Clients: 3, Rate: 300, Idle: 20, Window: 4}
	return &stage{size: z}, &contender{name: fakecloud, address: backendAddresses()[0]}
}

func TestMeasurementsWithoutProxy(t *testing.T) {
	s, c := directStage()
	for name, measure := range map[string]func(context.Context, *contender) (sample, error){
		"bytesPerSecond down": s.measureDownload, "bytesPerSecond up": s.measureUpload,
		"perSecond connections": s.measureConnections, "perSecond requests": s.measureRequests, "perSecond paced": s.measurePacedRequests, "perSecond datagrams": s.measureDatagrams,
	} {
		t.Run(name, func(t *testing.T) {
			key, _, _ := strings.Cut(name, " ")
			for {
				v, err := measure(t.Context(), c)
				require.NoError(t, err)
				assert.Zero(t, v[failed])
				if v[key] > 0 { // On a busy machine the process may have had no time at all.
					break
				}
			}
		})
	}
}

// A proxy that mixes up or leaves out bytes, or ends too soon, is an error.
func TestWrongAnswersAreErrors(t *testing.T) {
	for name, serve := range map[string]func(net.Conn){
		"other": func(c net.Conn) { _, _ = c.Write(make([]byte, answerSize)) },
		"short": func(c net.Conn) {
			_, _ = c.Read(make([]byte, requestSize))
			_ = c.(*net.TCPConn).CloseWrite()
		},
	} {
		t.Run(name, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			defer func() { _ = l.Close() }()
			go acceptConnections(l, serve)
			c, err := net.Dial("tcp", l.Addr().String())
			require.NoError(t, err)
			defer func() { _ = c.Close() }()
			assert.Error(t, exchangeRequest(c.(*net.TCPConn), 1, make([]byte, requestSize+answerSize)))
		})
	}
}

// Failures are counted and reported.
func TestFailuresAreCounted(t *testing.T) {
	s, c := directStage()
	s.contenders = []*contender{c}
	s.size.Period = time.Hour   // It ends before, by itself.
	c.address = ownAddress(200) // Nobody listens there.
	v, err := s.measureConnections(t.Context(), c)
	require.NoError(t, err)
	assert.Zero(t, v["perSecond"])
	assert.EqualValues(t, s.size.Clients*maxFailures, v[failed])
	r := figures[2].makeRow(s, map[string]sample{fakecloud: v}, true)
	assert.Contains(t, r.Notes[0], "fakecloud: 300 failed: dial tcp")
	require.NotNil(t, r.Holds)
	assert.False(t, *r.Holds)

	_, err = s.measureDownload(t.Context(), c)
	assert.ErrorContains(t, err, "connection refused")
	_, err = s.measureDatagrams(t.Context(), c)
	assert.ErrorContains(t, err, "connection refused")
}

func TestMeasuringEndsWithContext(t *testing.T) {
	s, c := directStage()
	s.size.Warm, s.size.Period = time.Hour, time.Hour
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, measure := range []func(context.Context, *contender) (sample, error){s.measureDownload, s.measureUpload, s.measureConnections, s.measureRequests, s.measureDatagrams} {
		_, err := measure(ctx, c)
		assert.ErrorIs(t, err, context.Canceled)
	}
}

func TestExchangeOnce(t *testing.T) {
	_, c := directStage()
	require.NoError(t, exchangeOnce(c.address, 1, make([]byte, requestSize+answerSize)))
}

func TestIsExpectedPiece(t *testing.T) {
	assert.True(t, isExpectedPiece(nil, 7))
	assert.True(t, isExpectedPiece(block, 0))
	assert.True(t, isExpectedPiece(block[5:1000], 5+3*blockSize))
	assert.False(t, isExpectedPiece(block[5:1000], 6), "a byte was left out before")
	assert.False(t, isExpectedPiece(slices.Concat(block[5:1000], block[1001:1002]), 5), "a byte was left out at the end")
	both := slices.Concat(block[blockSize-2:], block[:3])
	assert.True(t, isExpectedPiece(both, blockSize-2))
	assert.False(t, isExpectedPiece(both, blockSize-256-2), "a piece was left out")
}

func TestDatagramWindow(t *testing.T) {
	d, err := newDatagramClient(backendAddresses()[0], 2)
	require.NoError(t, err)
	defer func() { _ = d.socket.Close() }()
	require.NoError(t, d.sendNew(0))
	place, err := d.receiveOne()
	require.NoError(t, err)
	assert.Equal(t, 0, place)

	// A datagram that was given up and comes back counts for no place.
	require.NoError(t, d.sendNew(1))
	d.window[1].number = 0
	place, err = d.receiveOne()
	require.NoError(t, err)
	assert.Equal(t, -1, place)

	now := time.Now()
	d.window[0].sent, d.window[1].sent = now, now.Add(-time.Second)
	require.NoError(t, d.replaceLost(now))
	assert.Equal(t, 1, d.lost)
	place, err = d.receiveOne()
	require.NoError(t, err)
	assert.Equal(t, 1, place)
}

func TestDatagramLength(t *testing.T) {
	seen := map[int]bool{}
	for number := range uint64(10_000) {
		n := datagramLength(number)
		require.True(t, n >= 64 && n <= datagramSize, n)
		seen[n] = true
	}
	assert.Len(t, seen, datagramSize-63)
}

func TestMedianSample(t *testing.T) {
	assert.Equal(t, sample{"p99": 3, failed: 6}, medianSample([]sample{{"p99": 9, failed: 1}, {"p99": 1, failed: 2}, {"p99": 3, failed: 3}}))
	assert.Equal(t, sample{"p99": 5, lost: 0}, medianSample([]sample{{"p99": 9, lost: 0}, {"p99": 1, lost: 0}}))
	assert.Empty(t, medianSample(nil))
}

func TestSummarize(t *testing.T) {
	v := summarize([]clientWork{{took: machine.Latencies{3e6, 1e6}}, {took: machine.Latencies{2e6}, failed: 2, err: errors.New("no")}}, 2*time.Second)
	assert.Equal(t, sample{failed: 2, "perSecond": 1.5, "p50": 0.002, "p99": 0.003}, v)
}

func TestMakeRow(t *testing.T) {
	rate := func(v float64) sample { return sample{"perSecond": v, "p99": 1 / v} }
	connections, requests, restart := figures[2], figures[3], figures[7]
	both := []string{haproxy, haproxySplice}
	for name, c := range map[string]struct {
		figure
		asked   []string
		samples map[string]sample
		holds   any
		ratios  string
	}{
		"beside the better peer it holds":        {connections, both, map[string]sample{fakecloud: rate(75), haproxy: rate(50), haproxySplice: rate(100)}, true, "1.50× / 0.75×"},
		"beside the better peer it does not":     {connections, both, map[string]sample{fakecloud: rate(60), haproxy: rate(50), haproxySplice: rate(100)}, false, "1.20× / 0.60×"},
		"less is better":                         {requests, both, map[string]sample{fakecloud: rate(100), haproxy: rate(200), haproxySplice: rate(50)}, false, "2.00× / 0.50×"},
		"one of two peers is not there":          {requests, both, map[string]sample{fakecloud: rate(100), haproxySplice: rate(100)}, nil, "1.00×"},
		"only one peer was asked for":            {requests, both[1:], map[string]sample{fakecloud: rate(100), haproxySplice: rate(100)}, true, "1.00×"},
		"a peer failed clients":                  {connections, both, map[string]sample{fakecloud: rate(75), haproxy: {"perSecond": 50, failed: 1}, haproxySplice: rate(100)}, nil, "1.50× / 0.75×"},
		"a peer did nothing":                     {connections, both, map[string]sample{fakecloud: rate(75), haproxy: rate(50), haproxySplice: {}}, nil, "1.50×"},
		"nobody to compare with":                 {connections, nil, map[string]sample{fakecloud: rate(75)}, nil, ""},
		"ours failed":                            {connections, both, map[string]sample{haproxy: rate(75)}, false, ""},
		"some of ours failed":                    {connections, both, map[string]sample{fakecloud: {"perSecond": 99, failed: 1}, haproxy: rate(75)}, false, "1.32×"},
		"a time that is compared with the aim":   {restart, nil, map[string]sample{fakecloud: {"late": 0.5}}, true, ""},
		"a time that is longer than it is to be": {restart, nil, map[string]sample{fakecloud: {"late": 1.5}}, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := c.makeRow(&stage{requestedPeers: c.asked}, c.samples, true)
			assert.Equal(t, c.ratios, r.ratioText())
			if c.holds == nil {
				assert.Nil(t, r.Holds)
				return
			}
			require.NotNil(t, r.Holds)
			assert.Equal(t, c.holds, *r.Holds)
			assert.Nil(t, c.makeRow(&stage{requestedPeers: c.asked}, c.samples, false).Holds)
		})
	}
}

func TestPeerThatIsNotInstalled(t *testing.T) {
	absent := peer{name: haproxy, program: "no-such-proxy", packages: "haproxy"}
	_, err := absent.startPeer(t.Context(), t.TempDir())
	require.ErrorIs(t, err, errNotInstalled)
	r := figures[0].makeRow(&stage{requestedPeers: []string{haproxy, haproxySplice}, missing: map[string]error{haproxy: err}}, map[string]sample{fakecloud: {"bytesPerSecond": 2e9}, haproxySplice: {"bytesPerSecond": 1e9}}, true)
	assert.Equal(t, "not installed", r.Shown[haproxy])
	assert.Equal(t, "haproxy: not installed: apt-get install haproxy", r.Notes[0])
	assert.Nil(t, r.Holds)
}

func TestPeerConfigs(t *testing.T) {
	plain, splice := haproxyConfig("127.0.0.9", false), haproxyConfig("127.0.0.9", true)
	assert.NotContains(t, plain, "splice")
	assert.Equal(t, plain, strings.Replace(splice, "  option splice-auto\n", "", 1))
	assert.Contains(t, plain, "bind 127.0.0.9:30001\n")
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
			c, err := p.startPeer(t.Context(), t.TempDir())
			if err != nil && p.name == nginx && strings.Contains(err.Error(), `unknown directive "stream"`) {
				t.Skip("nginx is here without its stream module")
			}
			require.NoError(t, err)
			c.process.Kill()
			if p.name == nginx {
				assert.Error(t, pingUDP(c.address))
			} else {
				assert.Error(t, pingTCP(c.address))
			}
		})
	}
}

func TestPrintedReport(t *testing.T) {
	yes := true
	r := report{Size: fullSize, Peers: map[string]string{haproxy: "2.6"}, Notes: []string{"few files"}, Rows: []row{{
		Name: "udp", Figure: "datagrams", Shown: map[string]string{fakecloud: "9/s", nginx: "10/s"},
		Ratios: map[string]float64{nginx: 0.9}, Aim: "≥ 0.7×", Holds: &yes, Notes: []string{"cores: all"},
	}}}
	var out strings.Builder
	require.NoError(t, r.print(&out, "table"))
	for _, want := range []string{"peer     haproxy: version 2.6", "note     few files", "udp: cores: all", "10,000 idle connections"} {
		assert.Contains(t, out.String(), want)
	}
	assert.Contains(t, strings.Split(out.String(), "\n"), "datagrams   9/s         -         -                     10/s    0.90×   ≥ 0.7×   ✓")
	out.Reset()
	require.NoError(t, r.print(&out, "json"))
	assert.Contains(t, out.String(), `"holds": true`)
}

func TestRefusedFlags(t *testing.T) {
	var b bench
	assert.ErrorContains(t, b.run(t.Context(), "", []string{"speed"}, "table"), `no figure "speed"`)
	assert.ErrorContains(t, b.run(t.Context(), "", []string{"udp"}, "yaml"), "choose table or json")
	b.peers = []string{"squid"}
	assert.ErrorContains(t, b.run(t.Context(), "", []string{"throughput"}, "json"), `no "squid"`)
	b.peers, b.binary = nil, "no-such-program"
	assert.ErrorContains(t, b.run(t.Context(), t.TempDir(), []string{"udp"}, "table"), "make build")
}

func TestFirstError(t *testing.T) {
	a := errors.New("a")
	require.NoError(t, firstError([]error{nil, nil}))
	assert.Equal(t, "a", firstError([]error{nil, a}).Error())
	err := firstError([]error{nil, a, nil, exec.ErrNotFound})
	assert.ErrorIs(t, err, a)
	assert.Equal(t, "a; and 1 more", err.Error())
}
