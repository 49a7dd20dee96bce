package dns_test

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"testing"

	miekg "github.com/miekg/dns"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/dns"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
)

var address = netip.MustParseAddr("127.30.64.7")

func TestNames(t *testing.T) {
	byNumber, byParts := dns.NamesOf(address)
	assert.Equal(t, "cip-7f1e4007.fakecloud.test", byNumber)
	assert.Equal(t, "cip-127-30-64-7.fakecloud.test", byParts)
	for _, name := range []string{byNumber, byParts, "CIP-127-30-64-7.fakecloud.test."} {
		a, ok := dns.AddressOf(name)
		assert.True(t, ok, name)
		assert.Equal(t, address, a)
	}
	for _, name := range []string{
		"", "fakecloud.test", "127.30.64.7", "cip-127-30-64.fakecloud.test", "cip-7f1e40.fakecloud.test",
		"cip-127-30-64-007.fakecloud.test", "cip-127-30-64-7.example.com", "web.fakecloud.test",
		"cip---1.fakecloud.test", "cip-00000000000000000000000000000001.fakecloud.test",
	} {
		_, ok := dns.AddressOf(name)
		assert.False(t, ok, name)
	}
}

// start has a server answer, by both protocols.
func start(t testing.TB, upstream string) string {
	t.Helper()
	streams := must.Do(net.Listen("tcp", "127.0.0.1:0"))(t)
	packets := must.Do(net.ListenPacket("udp", streams.Addr().String()))(t)
	s := &dns.Server{
		Pool: netip.MustParsePrefix("127.30.64.0/24"), Upstream: upstream, Log: slog.New(slog.DiscardHandler),
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, packets, streams) }()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-ended)
	})
	return streams.Addr().String()
}

func TestServer(t *testing.T) {
	upstream := start(t, "")
	at := start(t, upstream)
	byNumber, byParts := dns.NamesOf(address)
	for _, network := range []string{"udp", "tcp"} {
		ask := func(name string, kind uint16) *miekg.Msg {
			t.Helper()
			reply, _, err := (&miekg.Client{Net: network}).Exchange(new(miekg.Msg).SetQuestion(miekg.Fqdn(name), kind), at)
			require.NoError(t, err)
			return reply
		}
		for _, name := range []string{byNumber, byParts} {
			reply := ask(name, miekg.TypeA)
			require.Len(t, reply.Answer, 1)
			assert.Equal(t, address.String(), reply.Answer[0].(*miekg.A).A.String())
			assert.True(t, reply.Authoritative)
			none := ask(name, miekg.TypeAAAA)
			assert.Equal(t, miekg.RcodeSuccess, none.Rcode, "it has no IPv6 address")
			assert.Empty(t, none.Answer)
			assert.Len(t, none.Ns, 1)
		}
		reply := ask("7.64.30.127.in-addr.arpa", miekg.TypePTR)
		require.Len(t, reply.Answer, 1)
		assert.Equal(t, byParts+".", reply.Answer[0].(*miekg.PTR).Ptr)
		for _, name := range []string{"web.fakecloud.test", "cip-10-0-0-1.fakecloud.test", "fakecloud.test"} {
			assert.Equal(t, miekg.RcodeNameError, ask(name, miekg.TypeA).Rcode, name)
		}
		assert.Equal(t, miekg.RcodeRefused, ask("example.com", miekg.TypeA).Rcode, "as the upstream says")
		assert.Equal(t, miekg.RcodeRefused, ask("1.0.0.10.in-addr.arpa", miekg.TypePTR).Rcode)
	}
}

func TestServerWithoutUpstream(t *testing.T) {
	at := start(t, "127.0.0.1:1") // Nobody is there.
	reply := must.First(new(miekg.Client).Exchange(new(miekg.Msg).SetQuestion("example.com.", miekg.TypeA), at))(t)
	assert.Equal(t, miekg.RcodeServerFailure, reply.Rcode)
	resolver := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, at)
	}}
	_, byParts := dns.NamesOf(address)
	found := must.Do(resolver.LookupHost(t.Context(), byParts))(t, "Go's own resolver")
	assert.Equal(t, []string{address.String()}, found)
}

func TestServerRefusesWhileUpstreamIsSilent(t *testing.T) {
	silent := must.Do(net.ListenPacket("udp", "127.0.0.1:0"))(t)
	defer func() { _ = silent.Close() }()
	at := start(t, silent.LocalAddr().String())
	c := must.Do(miekg.Dial("udp", at))(t)
	defer func() { _ = c.Close() }()
	for range 2 * dns.MaxUpstream {
		require.NoError(t, c.WriteMsg(new(miekg.Msg).SetQuestion("example.com.", miekg.TypeA)))
	}
	reply := must.Do(c.ReadMsg())(t)
	assert.Equal(t, miekg.RcodeRefused, reply.Rcode)
	_, byParts := dns.NamesOf(address)
	own, err := miekg.ExchangeContext(t.Context(), new(miekg.Msg).SetQuestion(miekg.Fqdn(byParts), miekg.TypeA), at)
	require.NoError(t, err)
	assert.Len(t, own.Answer, 1, "its own names")
}

// FuzzPackets sends what is no question, after which one is answered as ever.
func FuzzPackets(f *testing.F) {
	byNumber, _ := dns.NamesOf(address)
	good := new(miekg.Msg).SetQuestion(miekg.Fqdn(byNumber), miekg.TypeA)
	packed, err := good.Pack()
	require.NoError(f, err)
	f.Add(packed)
	f.Add(packed[:13])
	f.Add([]byte{})
	at := start(f, "")
	f.Fuzz(func(t *testing.T, packet []byte) {
		c := must.Do(net.Dial("udp", at))(t)
		_, _ = c.Write(packet) // It may be larger than one can be.
		require.NoError(t, c.Close())
		reply := must.Do(miekg.ExchangeContext(t.Context(), good, at))(t)
		assert.Len(t, reply.Answer, 1)
	})
}
