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
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/creack/pty"
	"github.com/gliderlabs/ssh"
	"golang.org/x/crypto/bcrypt"
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
	door := &ssh.Server{
		Version:         "CCMLab",
		PasswordHandler: s.checkPassword,
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

func (s *server) checkPassword(ctx ssh.Context, password string) bool {
	now, hash := &Room{dir: s.room.dir}, s.decoyHash
	if err := now.load(); err != nil {
		slog.Error("reading the seats", "error", err)
		return false
	}
	seat, err := now.findSeat(ctx.User())
	if err == nil {
		hash = seat.Hash
	}
	if bcrypt.CompareHashAndPassword([]byte(hash), []byte(password)) != nil || err != nil {
		slog.Warn("a wrong password", "seat", ctx.User(), "from", ctx.RemoteAddr().String())
		return false
	}
	return true
}

// runSession runs a shell or one command at the seat.
func (s *server) runSession(ctx context.Context, in ssh.Session) error {
	seat := in.User()
	if !s.acquireSession(seat) {
		return fmt.Errorf("%d are at %s already; leave another terminal first", maxSessionsPerSeat, seat)
	}
	defer s.releaseSession(seat)
	now := &Room{dir: s.room.dir}
	if err := now.load(); err != nil {
		return err
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

// drainTimeout bounds how long a program's last output is read after its end: a
// background process may keep the terminal open for ever.
const drainTimeout = time.Second

// runOnTerminal runs a command on a pseudo-terminal until it ends, or hangs it up when
// the client disconnects.
func runOnTerminal(cmd *exec.Cmd, in ssh.Session, asked ssh.Pty, resized <-chan ssh.Window) error {
	cmd.Env = append(cmd.Env, "TERM="+asked.Term)
	terminal, err := pty.StartWithSize(cmd, terminalSize(asked.Window))
	if err != nil {
		return err
	}
	defer hangUpOnDisconnect(cmd, in)()
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
	close(ended)
	<-resizing // Which has the file's descriptor.
	select {
	case <-said:
	case <-time.After(drainTimeout):
	}
	return errors.Join(err, terminal.Close())
}

// hangUpOnDisconnect sends SIGHUP to the command's process group when the client
// disconnects. off cancels that.
func hangUpOnDisconnect(cmd *exec.Cmd, in ssh.Session) (off func() bool) {
	return context.AfterFunc(in.Context(), func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGHUP) })
}

func terminalSize(w ssh.Window) *pty.Winsize {
	const most = 1 << 15
	return &pty.Winsize{Rows: uint16(min(max(w.Height, 0), most)), Cols: uint16(min(max(w.Width, 0), most))} //nolint:gosec // It fits.
}

// runOnPipes runs a command without a terminal until it ends, or hangs it up, with all
// processes of its group, when the client disconnects.
func runOnPipes(cmd *exec.Cmd, in ssh.Session) error {
	cmd.Stdout, cmd.Stderr = in, in.Stderr()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	input, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	defer hangUpOnDisconnect(cmd, in)()
	go func() {
		_, _ = io.Copy(input, in)
		_ = input.Close()
	}()
	return cmd.Wait()
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
