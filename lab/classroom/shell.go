package classroom

import (
	"cmp"
	"context"
	_ "embed"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/ccmlab/ccmlab/lab/process"
	"github.com/ccmlab/ccmlab/lab/remedy"
	"github.com/ccmlab/ccmlab/lab/state"
)

// bashrc is what a shell at a seat begins with.
//
//go:embed bashrc
var bashrc []byte

func (r *Room) bashrc() string { return filepath.Join(r.dir, "bashrc") }

// Shell is a shell at a seat, for a person.
func (r *Room) Shell(ctx context.Context, seat string) (*exec.Cmd, error) {
	return r.command(ctx, seat, "bash", "--rcfile", r.bashrc(), "-i")
}

// Command is a command line at a seat, as somebody would type it there.
func (r *Room) Command(ctx context.Context, seat, line string) (*exec.Cmd, error) {
	return r.command(ctx, seat, "bash", "-c", `. "$0"; eval "$1"`, r.bashrc(), line)
}

// Program is a program at a seat. Nothing in its arguments is the shell's.
func (r *Room) Program(ctx context.Context, seat string, args ...string) (*exec.Cmd, error) {
	return r.command(ctx, seat, append([]string{"bash", "-c", `. "$0"; "$@"`, r.bashrc()}, args...)...)
}

func (r *Room) command(ctx context.Context, seat string, args ...string) (*exec.Cmd, error) {
	if _, err := r.seat(seat); err != nil {
		return nil, err
	}
	env, err := r.env(seat)
	if err != nil {
		return nil, err
	}
	if have, err := os.ReadFile(r.bashrc()); err != nil || string(have) != string(bashrc) {
		if err := state.WriteFile(r.bashrc(), bashrc); err != nil {
			return nil, err
		}
	}
	if err := os.MkdirAll(r.work(seat), 0o700); err != nil {
		return nil, remedy.With(err)
	}
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir, cmd.Env = r.work(seat), env
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	return cmd, nil
}

// others are variables with which the trainer's shell speaks to a lab of theirs.
var others = []string{"LAB_NAME", "KUBECONFIG", "FAKECLOUD_", "CCMLAB_HOME", "XDG_STATE_HOME", "HOME", "PATH", "BASH_ENV", "PROMPT_COMMAND", "OLDPWD", "SSH_"}

// env has lab and kubectl of a seat be about that seat's labs. What was compiled or
// unpacked is shared by all: only the first waits for it.
func (r *Room) env(seat string) ([]string, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return nil, err
	}
	env := slices.DeleteFunc(process.Unmarked(), func(kv string) bool {
		return slices.ContainsFunc(others, func(name string) bool {
			if strings.HasSuffix(name, "_") {
				return strings.HasPrefix(kv, name)
			}
			return strings.HasPrefix(kv, name+"=")
		})
	})
	keep := func(name, value string) { env = append(env, name+"="+cmp.Or(os.Getenv(name), value)) }
	keep("XDG_CACHE_HOME", filepath.Join(home, ".cache"))
	keep("GOPATH", filepath.Join(home, "go"))
	keep("DOCKER_CONFIG", filepath.Join(home, ".docker"))
	return append(env,
		"HOME="+r.work(seat), "CCMLAB_HOME="+r.Home(seat), "CCMLAB_SEAT="+seat, "CCMLAB_PAGE="+r.Page(),
		"PATH="+filepath.Dir(self)+":"+filepath.Join(filepath.Dir(self), "kube")+":"+os.Getenv("PATH"),
	), nil
}
