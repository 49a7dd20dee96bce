package classroom

// What somebody can take of the server before they have logged in is bounded here.

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/crypto/bcrypt"
	"golang.org/x/time/rate"
	"k8s.io/utils/lru"
)

const (
	// loginTimeout bounds a login, in which a learner types the password from a card. It is that of sshd's
	// LoginGraceTime.
	loginTimeout = 2 * time.Minute
	// maxLogins bounds the connections that have not logged in, maxLoginsPerAddress those of one address. A
	// class of forty may be behind one address, and keeps its share of maxLogins beside 24 hostile addresses.
	maxLogins           = 1024
	maxLoginsPerAddress = 64
	// loginBurst is how many passwords an address may try at once, which a whole class does at the beginning.
	// After that, loginsPerSecond are compared. Others wait for their turn, and nobody is turned away.
	loginBurst      = 40
	loginsPerSecond = 2
	// maxPacedAddresses bounds the addresses whose pace is remembered.
	maxPacedAddresses = 4096
)

// loginLimiter bounds the logins that are under way, and the passwords that are compared.
type loginLimiter struct {
	// comparing is held while a password is compared. There is one at a time: bcrypt takes a core, and the
	// labs need the others.
	comparing chan struct{}
	// paces are the *rate.Limiter of addresses.
	paces *lru.Cache
	// crowded keeps a flood of connections from becoming one of log lines.
	crowded rate.Sometimes

	mu sync.Mutex
	// logins are under way, the oldest first.
	logins []*login
}

// login is a connection that has not logged in. Closing it ends the login.
type login struct {
	net.Conn
	limiter *loginLimiter
	from    netip.Prefix
	// cancel ends ctx, whose end closes the connection unless keepOpen was called.
	ctx      context.Context //nolint:containedctx // It is as long as the login.
	cancel   context.CancelFunc
	keepOpen func() bool
}

func newLoginLimiter() *loginLimiter {
	return &loginLimiter{
		comparing: make(chan struct{}, 1), paces: lru.New(maxPacedAddresses),
		crowded: rate.Sometimes{Interval: time.Minute},
	}
}

// add begins the login of a connection. If there are too many, the oldest one of the address with the most gives
// way, so that whoever comes from another address still gets in.
func (l *loginLimiter) add(conn net.Conn) *login {
	n := &login{Conn: conn, limiter: l, from: remotePrefix(conn)}
	n.ctx, n.cancel = context.WithTimeout(context.Background(), loginTimeout)
	n.keepOpen = context.AfterFunc(n.ctx, func() { _ = conn.Close() })
	l.mu.Lock()
	defer l.mu.Unlock()
	l.logins = append(l.logins, n)
	if oldest := l.surplus(n.from); oldest != nil {
		l.crowded.Do(func() { slog.Warn("too many log in; the oldest give way", "from", oldest.from.String()) })
		oldest.cancel()
		l.logins = slices.DeleteFunc(l.logins, func(other *login) bool { return other == oldest })
	}
	return n
}

// surplus returns the login that gives way after one from this address was added; nil if there are not too many.
func (l *loginLimiter) surplus(added netip.Prefix) *login {
	count, busiest := map[netip.Prefix]int{}, added
	for _, n := range l.logins {
		count[n.from]++
	}
	switch {
	case len(l.logins) > maxLogins:
		busiest = slices.MaxFunc(l.logins, func(a, b *login) int { return count[a.from] - count[b.from] }).from
	case count[added] <= maxLoginsPerAddress:
		return nil
	}
	return l.logins[slices.IndexFunc(l.logins, func(n *login) bool { return n.from == busiest })]
}

// remotePrefix is the network of the client: an IPv4 address, or 64 bits of an IPv6 address, since a host has all
// addresses of such a network.
func remotePrefix(conn net.Conn) netip.Prefix {
	remote, err := netip.ParseAddrPort(conn.RemoteAddr().String())
	if err != nil {
		return netip.Prefix{}
	}
	address, bits := remote.Addr().Unmap(), 64
	if address.Is4() {
		bits = 32
	}
	prefix, _ := address.Prefix(bits) // So many bits are never too many.
	return prefix
}

// checkPassword compares the password when it is its address's turn. An error means that the login has failed.
func (n *login) checkPassword(hash, password string) error {
	if err := n.limiter.pace(n.from).Wait(n.ctx); err != nil {
		return err
	}
	select {
	case n.limiter.comparing <- struct{}{}:
		defer func() { <-n.limiter.comparing }()
	case <-n.ctx.Done():
		return n.ctx.Err()
	}
	return bcrypt.CompareHashAndPassword([]byte(hash), []byte(password))
}

func (l *loginLimiter) pace(from netip.Prefix) *rate.Limiter {
	l.mu.Lock()
	defer l.mu.Unlock()
	if pace, known := l.paces.Get(from); known {
		return pace.(*rate.Limiter) //nolint:forcetypeassert // There are no others.
	}
	pace := rate.NewLimiter(loginsPerSecond, loginBurst)
	l.paces.Add(from, pace)
	return pace
}

// succeed ends the login and leaves the connection open. It is false if the login was too late.
func (n *login) succeed() bool {
	inTime := n.keepOpen()
	n.end()
	return inTime
}

// Close closes the connection, at whatever time.
func (n *login) Close() error {
	n.end()
	return n.Conn.Close()
}

func (n *login) end() {
	n.cancel()
	n.limiter.mu.Lock()
	defer n.limiter.mu.Unlock()
	n.limiter.logins = slices.DeleteFunc(n.limiter.logins, func(other *login) bool { return other == n })
}
