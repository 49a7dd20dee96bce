package classroom

// This file answers: how does a learner come to their seat from another computer? By
// SSH, with the password of their card.

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

	"github.com/ccmlab/ccmlab/lab/remedy"
	"github.com/ccmlab/ccmlab/lab/state"
)

// maxHere is how many may be at a seat at once: some terminals of one learner, and who
// helps them.
const maxHere = 8

// door lets learners in. Nothing is forwarded through it.
func (s *server) door(ctx context.Context) (*ssh.Server, error) {
	key, err := s.room.hostKey()
	if err != nil {
		return nil, err
	}
	var none Seat
	if _, err := none.renew(); err != nil {
		return nil, err
	}
	s.nobody = none.Hash
	door := &ssh.Server{
		Version:         "CCMLab",
		PasswordHandler: s.admits,
		Handler: func(in ssh.Session) {
			if err := s.seated(ctx, in); err != nil {
				_, _ = fmt.Fprintln(in.Stderr(), err)
				_ = in.Exit(1)
			}
		},
	}
	door.AddHostKey(key)
	return door, nil
}

// hostKey is made when it is first needed, and stays: learners' computers know it.
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
		if err := state.WriteFile(file, data); err != nil {
			return nil, err
		}
	} else if err != nil {
		return nil, remedy.With(err)
	}
	return gossh.ParsePrivateKey(data)
}

// Fingerprint is that of the host key: what SSH shows who comes for the first time.
func (r *Room) Fingerprint() (string, error) {
	key, err := r.hostKey()
	if err != nil {
		return "", err
	}
	return gossh.FingerprintSHA256(key.PublicKey()), nil
}

func (s *server) admits(ctx ssh.Context, password string) bool {
	now, hash := &Room{dir: s.room.dir}, s.nobody
	if err := now.read(); err != nil {
		slog.Error("reading the seats", "error", err)
		return false
	}
	seat, err := now.seat(ctx.User())
	if err == nil {
		hash = seat.Hash
	}
	if bcrypt.CompareHashAndPassword([]byte(hash), []byte(password)) != nil || err != nil {
		slog.Warn("a wrong password", "seat", ctx.User(), "from", ctx.RemoteAddr().String())
		return false
	}
	return true
}

// seated runs what somebody has come for: a shell, or one command.
func (s *server) seated(ctx context.Context, in ssh.Session) error {
	seat := in.User()
	if !s.enter(seat) {
		return fmt.Errorf("%d are at %s already; leave another terminal first", maxHere, seat)
	}
	defer s.leave(seat)
	now := &Room{dir: s.room.dir}
	if err := now.read(); err != nil {
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
		err = onTerminal(cmd, in, asked, resized)
	} else {
		err = onPipes(cmd, in)
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return err
	}
	return in.Exit(max(0, cmd.ProcessState.ExitCode()))
}

// drainBound is how long what a program has said may take to come when it has ended:
// something that it left in the background may have the terminal for ever.
const drainBound = time.Second

// onTerminal ends when the program does, or who came goes: then it is hung up.
func onTerminal(cmd *exec.Cmd, in ssh.Session, asked ssh.Pty, resized <-chan ssh.Window) error {
	cmd.Env = append(cmd.Env, "TERM="+asked.Term)
	terminal, err := pty.StartWithSize(cmd, size(asked.Window))
	if err != nil {
		return err
	}
	defer hangUp(cmd, in)()
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
				_ = pty.Setsize(terminal, size(window)) // The next comes when it next changes.
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
	case <-time.After(drainBound):
	}
	return errors.Join(err, terminal.Close())
}

// hangUp ends what was started, and what that started, when who came goes, until it is
// called off.
func hangUp(cmd *exec.Cmd, in ssh.Session) (off func() bool) {
	return context.AfterFunc(in.Context(), func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGHUP) })
}

func size(w ssh.Window) *pty.Winsize {
	const most = 1 << 15
	return &pty.Winsize{Rows: uint16(min(max(w.Height, 0), most)), Cols: uint16(min(max(w.Width, 0), most))} //nolint:gosec // It fits.
}

// onPipes ends when the program does; who came and goes has it ended, with all that it
// started.
func onPipes(cmd *exec.Cmd, in ssh.Session) error {
	cmd.Stdout, cmd.Stderr = in, in.Stderr()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	input, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	defer hangUp(cmd, in)()
	go func() {
		_, _ = io.Copy(input, in)
		_ = input.Close()
	}()
	return cmd.Wait()
}

func (s *server) enter(seat string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.here[seat] >= maxHere {
		return false
	}
	s.here[seat]++
	return true
}

func (s *server) leave(seat string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.here[seat]--
}
