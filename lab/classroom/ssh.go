package classroom

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/creack/pty"
	"github.com/gliderlabs/ssh"
	gossh "golang.org/x/crypto/ssh"

	"github.com/ccmlab/ccmlab/lab/atomicfile"
	"github.com/ccmlab/ccmlab/lab/remedy"
)

// maxSessionsPerSeat bounds the sessions at a seat: some terminals of its learner and
// of whoever helps.
const maxSessionsPerSeat = 8

// newSSHServer returns the server by which learners reach their seats, with the
// password of their card. It forwards nothing.
func (s *server) newSSHServer(ctx context.Context) (*ssh.Server, error) {
	key, err := s.room.hostKey()
	if err != nil {
		return nil, err
	}
	var none Seat
	if _, err := none.generatePassword(); err != nil {
		return nil, err
	}
	s.decoyHash = none.Hash
	logins := newLoginLimiter()
	door := &ssh.Server{
		Version: "CCMLab",
		ConnCallback: func(ctx ssh.Context, conn net.Conn) net.Conn {
			n := logins.add(conn)
			ctx.SetValue(loginKey{}, n)
			return n
		},
		PasswordHandler: s.checkPassword,
		ChannelHandlers: map[string]ssh.ChannelHandler{"session": serveChannel},
		Handler: func(in ssh.Session) {
			if err := s.runSession(ctx, in); err != nil {
				_, _ = fmt.Fprintln(in.Stderr(), err)
				_ = in.Exit(1)
			}
		},
	}
	door.AddHostKey(key)
	return door, nil
}

// hostKey reads the host key. It is made once and stays, since learners' computers
// remember it.
func (r *Room) hostKey() (gossh.Signer, error) {
	file := filepath.Join(r.dir, "ssh_host_ed25519_key")
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		_, private, err := ed25519.GenerateKey(rand.Reader)
		if err != nil {
			return nil, err
		}
		block, err := gossh.MarshalPrivateKey(private, "CCM Lab classroom")
		if err != nil {
			return nil, err
		}
		data = pem.EncodeToMemory(block)
		if err := atomicfile.Write(file, data); err != nil {
			return nil, err
		}
	} else if err != nil {
		return nil, remedy.With(err)
	}
	return gossh.ParsePrivateKey(data)
}

// Fingerprint is the host key's, which SSH prints at the first connection.
func (r *Room) Fingerprint() (string, error) {
	key, err := r.hostKey()
	if err != nil {
		return "", err
	}
	return gossh.FingerprintSHA256(key.PublicKey()), nil
}

// loginKey is the key of a connection's *login in its context.
type loginKey struct{}

func (s *server) checkPassword(ctx ssh.Context, password string) bool {
	n, ok := ctx.Value(loginKey{}).(*login)
	if !ok {
		return false
	}
	now, hash := &Room{dir: s.room.dir}, s.decoyHash
	if err := now.load(); err != nil {
		slog.Error("reading the seats", "error", err)
		return false
	}
	seat, err := now.findSeat(ctx.User())
	if err == nil {
		hash = seat.Hash
	}
	if n.checkPassword(hash, password) != nil || err != nil {
		slog.Warn("a wrong password", "seat", fmt.Sprintf("%.40s", ctx.User()), "from", ctx.RemoteAddr().String())
		return false
	}
	return n.succeed()
}

// channelContext is an ssh.Context that ends with a channel.
type channelContext struct {
	ssh.Context
	open context.Context //nolint:containedctx // It is a context itself.
}

func (c channelContext) Done() <-chan struct{} { return c.open.Done() }

func (c channelContext) Err() error { return c.open.Err() }

// serveChannel serves a session with a context that ends when its channel closes. The library's ends with the
// connection, which lasts beyond its sessions where ssh multiplexes them (ControlMaster).
func serveChannel(door *ssh.Server, conn *gossh.ServerConn, channel gossh.NewChannel, ctx ssh.Context) {
	open, closed := context.WithCancel(ctx)
	defer closed()
	ssh.DefaultSessionHandler(door, conn, channel, channelContext{ctx, open}) // Returns when the channel is closed.
}

// runSession runs a shell or one command at the seat.
func (s *server) runSession(ctx context.Context, in ssh.Session) error {
	// The seat whose password was checked. That of in.User() is the last that the client named, and it may name
	// another with each password.
	seat := in.Context().User()
	if !s.acquireSession(seat) {
		return fmt.Errorf("%d are at %s already; leave another terminal first", maxSessionsPerSeat, seat)
	}
	defer s.releaseSession(seat)
	now := &Room{dir: s.room.dir}
	if err := now.load(); err != nil {
		return err
	}
	if f, err := os.OpenFile(now.firstLoginFile(seat), os.O_CREATE|os.O_WRONLY, 0o600); err == nil {
		_ = f.Close() // Its time stays that of the first login.
	} else {
		slog.Error("recording the first login", "seat", seat, "error", err)
	}
	slog.Info("somebody came", "seat", seat, "from", in.RemoteAddr().String(), "command", in.RawCommand())
	var cmd *exec.Cmd
	var err error
	if in.RawCommand() == "" {
		cmd, err = now.Shell(ctx, seat)
	} else {
		cmd, err = now.Command(ctx, seat, in.RawCommand())
	}
	if err != nil {
		return err
	}
	if asked, resized, terminal := in.Pty(); terminal {
		err = runOnTerminal(cmd, in, asked, resized)
	} else {
		err = runOnPipes(cmd, in)
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return err
	}
	return in.Exit(max(0, cmd.ProcessState.ExitCode()))
}

const (
	// drainTimeout bounds how long a program's last output is read after its end: a
	// background process may keep the terminal open for ever.
	drainTimeout = time.Second
	// hangUpGrace is how long a command may stay after SIGHUP.
	hangUpGrace = 2 * time.Second
)

// runOnTerminal runs a command on a pseudo-terminal until it ends or the channel closes.
func runOnTerminal(cmd *exec.Cmd, in ssh.Session, asked ssh.Pty, resized <-chan ssh.Window) error {
	cmd.Env = append(cmd.Env, "TERM="+asked.Term)
	terminal, err := pty.StartWithSize(cmd, terminalSize(asked.Window))
	if err != nil {
		return err
	}
	waited := hangUpWhenClosed(cmd, in)
	ended, resizing, said := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(resizing)
		for {
			select {
			case window, more := <-resized:
				if !more {
					resized = nil
					continue
				}
				_ = pty.Setsize(terminal, terminalSize(window)) // The next comes when it next changes.
			case <-ended:
				return
			}
		}
	}()
	go func() { _, _ = io.Copy(terminal, in) }()
	go func() {
		defer close(said)
		_, _ = io.Copy(in, terminal) // Ends with an error, EIO, when nobody has the terminal.
	}()
	err = cmd.Wait()
	waited()
	close(ended)
	<-resizing // Which has the file's descriptor.
	select {
	case <-said:
	case <-time.After(drainTimeout):
	case <-in.Context().Done():
	}
	return errors.Join(err, terminal.Close())
}

// hangUpWhenClosed ends the command's process group when the session's channel closes: by SIGHUP, and by SIGKILL
// if the command stays. The caller calls waited when it has waited for the command, whose ID may then be another's.
func hangUpWhenClosed(cmd *exec.Cmd, in ssh.Session) (waited func()) {
	ended := make(chan struct{})
	cancel := context.AfterFunc(in.Context(), func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGHUP)
		select {
		case <-ended:
		case <-time.After(hangUpGrace):
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		}
	})
	return func() {
		cancel()
		close(ended)
	}
}

func terminalSize(w ssh.Window) *pty.Winsize {
	const most = 1 << 15
	return &pty.Winsize{Rows: uint16(min(max(w.Height, 0), most)), Cols: uint16(min(max(w.Width, 0), most))} //nolint:gosec // It fits.
}

// runOnPipes runs a command without a terminal until it ends and has said everything, or the channel closes. A
// background process may hold the pipes beyond both.
func runOnPipes(cmd *exec.Cmd, in ssh.Session) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	input, err1 := cmd.StdinPipe()
	output, err2 := cmd.StdoutPipe()
	problems, err3 := cmd.StderrPipe()
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	defer hangUpWhenClosed(cmd, in)()
	go func() {
		_, _ = io.Copy(input, in)
		_ = input.Close()
	}()
	var copies sync.WaitGroup
	copies.Go(func() { _, _ = io.Copy(in, output) })
	copies.Go(func() { _, _ = io.Copy(in.Stderr(), problems) })
	said := make(chan struct{})
	go func() {
		defer close(said)
		copies.Wait()
	}()
	select {
	case <-said:
	case <-in.Context().Done():
	}
	return cmd.Wait() // Closes the pipes.
}

func (s *server) acquireSession(seat string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sessions[seat] >= maxSessionsPerSeat {
		return false
	}
	s.sessions[seat]++
	return true
}

func (s *server) releaseSession(seat string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sessions[seat]--
}
