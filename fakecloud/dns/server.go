package dns

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sync/errgroup"
)

const (
	// ttl is how long answers may be kept, in seconds. A name always leads to the same address.
	ttl = 60
	// upstreamTimeout is how long another server may take.
	upstreamTimeout = 3 * time.Second
	// stopTimeout is how long queries under way may take when the server stops.
	stopTimeout = upstreamTimeout
	// acceptPause is the pause after a connection could not be accepted.
	acceptPause = 100 * time.Millisecond
	// MaxUpstream is how many queries another server is asked at a time. Others are refused meanwhile.
	MaxUpstream = 100
	// maxPayload is the largest datagram that is sent (DNS flag day 2020).
	maxPayload = 1232
)

// Server answers queries for the names of the addresses of load balancers.
type Server struct {
	// Pool has the addresses that there are.
	Pool netip.Prefix
	// Upstream, unless "", is the server (ADDRESS:PORT) that is asked for names of other domains.
	Upstream string
	Log      *slog.Logger

	upstreamQueries atomic.Int32
}

// Serve answers queries by UDP and TCP at one address until ctx ends.
func (s *Server) Serve(ctx context.Context, packets net.PacketConn, streams net.Listener) error {
	servers := []*dns.Server{
		{PacketConn: packets, Handler: dns.HandlerFunc(s.answerQuery), UDPSize: dns.MinMsgSize},
		{Listener: patientListener{streams}, Handler: dns.HandlerFunc(s.answerQuery), MaxTCPQueries: 100},
	}
	g, serving := errgroup.WithContext(ctx)
	for _, server := range servers {
		g.Go(server.ActivateAndServe)
	}
	g.Go(func() error {
		<-serving.Done()
		var errs []error
		for _, server := range servers { // Also those that wait for a client's next query.
			stopping, stopped := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
			errs = append(errs, server.ShutdownContext(stopping))
			stopped()
		}
		return errors.Join(append(errs, ignoreClosed(packets.Close()), ignoreClosed(streams.Close()))...)
	})
	if err := g.Wait(); ctx.Err() == nil {
		return err
	}
	return nil // It was closed.
}

// patientListener pauses after an accept that failed. The dns package tries again at once when too many files are open,
// and that would take a core.
type patientListener struct{ net.Listener }

// Accept implements net.Listener.
func (l patientListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil && !errors.Is(err, net.ErrClosed) {
		time.Sleep(acceptPause)
	}
	return conn, err
}

func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

func (s *Server) answerQuery(w dns.ResponseWriter, query *dns.Msg) {
	reply := new(dns.Msg).SetReply(query)
	switch {
	case query.Opcode != dns.OpcodeQuery || len(query.Question) != 1:
		reply.Rcode = dns.RcodeNotImplemented
	default:
		name := strings.ToLower(query.Question[0].Name)
		address, reversed := addressOfReverse(name)
		switch {
		case dns.IsSubDomain(Domain+".", name):
			s.answerName(reply, name)
		case reversed && s.Pool.Contains(address):
			s.answerAddress(reply, name, address)
		default:
			reply = s.askUpstream(w, query, reply)
		}
	}
	if _, overUDP := w.RemoteAddr().(*net.UDPAddr); overUDP {
		reply.Truncate(payloadSize(query))
	}
	if err := w.WriteMsg(reply); err != nil {
		s.Log.Debug("a DNS query is not answered", "err", err)
	}
}

// payloadSize is how much the client takes in one datagram.
func payloadSize(query *dns.Msg) int {
	if o := query.IsEdns0(); o != nil {
		return min(max(int(o.UDPSize()), dns.MinMsgSize), maxPayload)
	}
	return dns.MinMsgSize
}

// answerName answers a query for a name of this cloud: with its address, with nothing if something else than that
// is asked for, or with NXDOMAIN.
func (s *Server) answerName(reply *dns.Msg, name string) {
	reply.Authoritative = true
	address, known := AddressOf(name)
	switch ask := reply.Question[0].Qtype; {
	case known && s.Pool.Contains(address) && (ask == dns.TypeA || ask == dns.TypeANY):
		reply.Answer = append(reply.Answer, &dns.A{Hdr: recordHeader(name, dns.TypeA), A: address.AsSlice()})
		return
	case !known || !s.Pool.Contains(address):
		reply.Rcode = dns.RcodeNameError
	}
	reply.Ns = append(reply.Ns, &dns.SOA{
		Hdr: recordHeader(Domain+".", dns.TypeSOA), Ns: "ns." + Domain + ".", Mbox: "hostmaster." + Domain + ".", Serial: 1,
		Refresh: ttl, Retry: ttl, Expire: ttl, Minttl: ttl,
	})
}

// answerAddress answers a reverse query for an address of this cloud.
func (s *Server) answerAddress(reply *dns.Msg, name string, address netip.Addr) {
	reply.Authoritative = true
	if ask := reply.Question[0].Qtype; ask == dns.TypePTR || ask == dns.TypeANY {
		_, byParts := NamesOf(address)
		reply.Answer = append(reply.Answer, &dns.PTR{Hdr: recordHeader(name, dns.TypePTR), Ptr: byParts + "."})
	}
}

func recordHeader(name string, kind uint16) dns.RR_Header {
	return dns.RR_Header{Name: name, Rrtype: kind, Class: dns.ClassINET, Ttl: ttl}
}

// addressOfReverse gives the address that a reverse query is about.
func addressOfReverse(name string) (netip.Addr, bool) {
	labels, isReverse := strings.CutSuffix(name, ".in-addr.arpa.")
	parts := strings.Split(labels, ".")
	if !isReverse || len(parts) != net.IPv4len {
		return netip.Addr{}, false
	}
	a, err := netip.ParseAddr(parts[3] + "." + parts[2] + "." + parts[1] + "." + parts[0])
	return a, err == nil
}

// askUpstream has another server answer, or refuses.
func (s *Server) askUpstream(w dns.ResponseWriter, query, refusal *dns.Msg) *dns.Msg {
	refusal.Rcode = dns.RcodeRefused
	defer s.upstreamQueries.Add(-1)
	if under := s.upstreamQueries.Add(1); s.Upstream == "" || under > MaxUpstream {
		return refusal
	}
	client := dns.Client{Net: w.RemoteAddr().Network(), Timeout: upstreamTimeout}
	reply, _, err := client.Exchange(query, s.Upstream)
	if err != nil {
		s.Log.Debug("the upstream DNS server does not answer", "upstream", s.Upstream, "err", err)
		refusal.Rcode = dns.RcodeServerFailure
		return refusal
	}
	return reply
}
