package classroom

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/bcrypt"
	gossh "golang.org/x/crypto/ssh"
)

// comeFrom logs in from a local address, such as 127.0.0.2.
func comeFrom(r *Room, address string, card Card) error {
	key, err := r.hostKey()
	if err != nil {
		return err
	}
	conn, err := dialDoor(r, address)
	if err != nil {
		return err
	}
	c, _, _, err := gossh.NewClientConn(conn, "", &gossh.ClientConfig{
		User: card.Seat, Auth: []gossh.AuthMethod{gossh.Password(card.Password)},
		HostKeyCallback: gossh.FixedHostKey(key.PublicKey()),
	})
	if err != nil {
		return err
	}
	return c.Close()
}

// dialDoor connects to the SSH server from a local address, for a minute.
func dialDoor(r *Room, address string) (net.Conn, error) {
	from := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}, Timeout: time.Minute}
	conn, err := from.Dial("tcp", net.JoinHostPort(r.Listen, strconv.Itoa(r.SSHPort)))
	if err != nil {
		return nil, err
	}
	return conn, conn.SetDeadline(time.Now().Add(time.Minute))
}

// Connections that say nothing keep nobody out, neither at another address nor at theirs, and a class of forty
// behind one address logs in at once.
func TestSilentConnections(t *testing.T) {
	const silent, addresses = 1500, 20
	r, cards := newRoom(t, 1)
	hash, err := bcrypt.GenerateFromPassword([]byte(cards[0].Password), bcrypt.MinCost) // Forty cost much.
	require.NoError(t, err)
	r.Seats[0].Hash = string(hash)
	require.NoError(t, r.save())
	serve(t, r)
	var held []net.Conn
	for i := range silent {
		conn, err := dialDoor(r, fmt.Sprintf("127.0.1.%d", 1+i%addresses))
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		held = append(held, conn)
	}
	var class sync.WaitGroup
	for range 40 {
		class.Go(func() { assert.NoError(t, comeFrom(r, "127.0.0.2", cards[0])) })
	}
	class.Wait()
	require.NoError(t, comeFrom(r, "127.0.1.1", cards[0]), "behind an address with silent ones")
	// Which ones they are depends on the order in which the server came to them.
	var closed atomic.Int32
	for _, conn := range held {
		go func() {
			if _, err := io.Copy(io.Discard, conn); err == nil || errors.Is(err, syscall.ECONNRESET) {
				closed.Add(1)
			}
		}()
	}
	require.Eventually(t, func() bool { return closed.Load() >= silent-maxLogins }, time.Minute, 10*time.Millisecond)
}

func TestLoginsPerAddress(t *testing.T) {
	l := newLoginLimiter()
	add := func(address string) *login {
		remote, err := net.ResolveTCPAddr("tcp", address)
		require.NoError(t, err)
		return l.add(&addressedConn{remote: remote})
	}
	var crowd []*login
	for i := range maxLoginsPerAddress + 1 {
		crowd = append(crowd, add(fmt.Sprintf("[2001:db8::%x]:22", i+1)))
	}
	require.Error(t, crowd[0].ctx.Err(), "the oldest of too many in one network gave way")
	require.NoError(t, crowd[1].ctx.Err())
	learner := add("192.0.2.1:22")
	for i := range maxLogins {
		add(fmt.Sprintf("198.51.100.%d:22", i%250))
	}
	require.NoError(t, learner.ctx.Err(), "the only one of its address stays")
	assert.Len(t, l.logins, maxLogins)
	assert.Equal(t, netip.MustParsePrefix("192.0.2.1/32"), learner.from)

	require.True(t, learner.succeed())
	require.NoError(t, learner.Close())
	assert.Len(t, l.logins, maxLogins-1)
	assert.False(t, crowd[0].succeed(), "its connection is closed")
}

// addressedConn is a connection of which only the address and Close are used.
type addressedConn struct {
	net.Conn
	remote net.Addr
}

func (c *addressedConn) RemoteAddr() net.Addr { return c.remote }

func (c *addressedConn) Close() error { return nil }

func TestLoginTimeout(t *testing.T) {
	r, _ := newRoom(t, 1)
	door, err := (&server{room: r, sessions: map[string]int{}}).newSSHServer(t.Context())
	require.NoError(t, err)
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		theirs, ours := net.Pipe()
		go door.HandleConn(ours)
		require.NoError(t, theirs.SetDeadline(begun.Add(time.Hour)))
		_, err := io.Copy(io.Discard, theirs)
		require.NoError(t, err, "the server closes it")
		assert.Equal(t, loginTimeout, time.Since(begun))
	})
}

// Who guesses passwords is slowed down, and nobody else is.
func TestPasswordGuesses(t *testing.T) {
	hash, err := bcrypt.GenerateFromPassword([]byte("right"), bcrypt.MinCost)
	require.NoError(t, err)
	synctest.Test(t, func(t *testing.T) {
		const guesses, connections = 100, 10
		l, begun := newLoginLimiter(), time.Now()
		var guessing sync.WaitGroup
		for range connections {
			n := l.add(&addressedConn{remote: &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1)}})
			defer n.end()
			guessing.Go(func() {
				for range guesses / connections {
					assert.ErrorIs(t, n.checkPassword(string(hash), "wrong"), bcrypt.ErrMismatchedHashAndPassword)
				}
			})
		}
		synctest.Wait()
		learner := l.add(&addressedConn{remote: &net.TCPAddr{IP: net.IPv4(192, 0, 2, 2)}})
		defer learner.end()
		require.NoError(t, learner.checkPassword(string(hash), "right"))
		assert.Zero(t, time.Since(begun))
		guessing.Wait()
		assert.Equal(t, (guesses-loginBurst)*time.Second/loginsPerSecond, time.Since(begun).Round(time.Millisecond))
	})
}

// Whoever gives up does not keep others of the address waiting.
func TestGuessesThatAreGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLoginLimiter()
		for range 10 * loginBurst {
			n := l.add(&addressedConn{remote: &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1)}})
			n.end()
			_ = n.checkPassword("", "")
		}
		assert.GreaterOrEqual(t, l.pace(netip.MustParsePrefix("192.0.2.1/32")).Tokens(), float64(loginBurst-1))
	})
}

// A client may name another user with each password. The password of one seat does not open another.
func TestPasswordOfAnotherSeat(t *testing.T) {
	r, cards := newRoom(t, 2)
	serve(t, r)
	key, err := r.hostKey()
	require.NoError(t, err)
	user := []byte("seat-01")
	tries := 0
	c, err := gossh.Dial("tcp", net.JoinHostPort(r.Listen, strconv.Itoa(r.SSHPort)), &gossh.ClientConfig{
		User: unsafe.String(&user[0], len(user)), // The client has no other way to name a second one.
		Auth: []gossh.AuthMethod{gossh.RetryableAuthMethod(gossh.PasswordCallback(func() (string, error) {
			if tries++; tries == 1 {
				return "wrong", nil
			}
			copy(user, "seat-02")
			return cards[0].Password, nil
		}), 2)},
		HostKeyCallback: gossh.FixedHostKey(key.PublicKey()), Timeout: time.Minute,
	})
	if err != nil {
		return
	}
	defer func() { _ = c.Close() }()
	out, err := session(t, c).Output(`echo "$CCMLAB_SEAT"`)
	require.NoError(t, err)
	assert.Equal(t, "seat-01\n", string(out))
}

// The page's server closes connections that only take a place.
func TestIdleBrowsers(t *testing.T) {
	for name, c := range map[string]struct {
		sent  string
		after time.Duration
	}{
		"no header": {"GET / HTTP/1.1\r\n", readHeaderTimeout},
		"no body":   {"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n", readBodyTimeout},
		"idle":      {"GET / HTTP/1.1\r\nHost: x\r\n\r\n", idleTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				theirs, ours := net.Pipe()
				listener := &pipeListener{conns: make(chan net.Conn, 1), closed: make(chan struct{})}
				listener.conns <- ours
				go func() { _ = servePage(t.Context(), listener, http.NotFoundHandler()) }()
				begun := time.Now()
				require.NoError(t, theirs.SetDeadline(begun.Add(time.Hour)))
				go func() { _, _ = io.Copy(theirs, strings.NewReader(c.sent)) }()
				_, err := io.Copy(io.Discard, theirs)
				require.NoError(t, err, "the server closes it")
				assert.Equal(t, c.after, time.Since(begun).Truncate(time.Second))
			})
		})
	}
}

// pipeListener accepts the connections of a channel.
type pipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.conns:
		return conn, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *pipeListener) Addr() net.Addr { return &net.TCPAddr{} }
