package classroom

import (
	"cmp"
	"context"
	_ "embed"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/ccmlab/ccmlab/lab/atomicfile"
	"github.com/ccmlab/ccmlab/lab/lessons"
	"github.com/ccmlab/ccmlab/lab/process"
	"github.com/ccmlab/ccmlab/lab/remedy"
	"github.com/ccmlab/ccmlab/lab/state"
)

// bashrc is the rc file of a shell at a seat.
//
//go:embed bashrc
var bashrc []byte

func (r *Room) bashrcFile() string { return filepath.Join(r.dir, "bashrc") }

// Shell returns an interactive shell at a seat.
func (r *Room) Shell(ctx context.Context, seat string) (*exec.Cmd, error) {
	return r.newCommand(ctx, seat, "bash", "--rcfile", r.bashrcFile(), "-i")
}

// Command returns a command line at a seat, interpreted as if typed there.
func (r *Room) Command(ctx context.Context, seat, line string) (*exec.Cmd, error) {
	return r.newCommand(ctx, seat, "bash", "-c", `. "$0"; eval "$1"`, r.bashrcFile(), line)
}

// Program returns a program at a seat. The shell interprets nothing in its arguments.
func (r *Room) Program(ctx context.Context, seat string, args ...string) (*exec.Cmd, error) {
	return r.newCommand(ctx, seat, append([]string{"bash", "-c", `. "$0"; "$@"`, r.bashrcFile()}, args...)...)
}

func (r *Room) newCommand(ctx context.Context, seat string, args ...string) (*exec.Cmd, error) {
	if _, err := r.findSeat(seat); err != nil {
		return nil, err
	}
	env, err := r.seatEnviron(seat)
	if err != nil {
		return nil, err
	}
	if have, err := os.ReadFile(r.bashrcFile()); err != nil || string(have) != string(bashrc) {
		if err := atomicfile.Write(r.bashrcFile(), bashrc); err != nil {
			return nil, err
		}
	}
	if err := os.MkdirAll(r.workDir(seat), 0o700); err != nil {
		return nil, remedy.With(err)
	}
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir, cmd.Env = r.workDir(seat), env
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	return cmd, nil
}

// trainerVariables are variables with which the trainer's shell refers to a lab of
// theirs. A name that ends with _ is a prefix.
var trainerVariables = []string{
	"LAB_NAME", "KUBECONFIG", "FAKECLOUD_", "CCMLAB_HOME", "XDG_STATE_HOME", "HOME", "PATH", "BASH_ENV",
	"PROMPT_COMMAND", "OLDPWD", "SSH_",
}

// seatEnviron makes lab and kubectl refer to the seat's labs. Caches of compiled and
// unpacked files are shared, so that only the first learner waits for them.
func (r *Room) seatEnviron(seat string) ([]string, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return nil, err
	}
	env := slices.DeleteFunc(process.Unmarked(), func(kv string) bool {
		return slices.ContainsFunc(trainerVariables, func(name string) bool {
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
		"HOME="+r.workDir(seat), "CCMLAB_HOME="+r.Home(seat), "CCMLAB_SEAT="+seat, "CCMLAB_PAGE="+r.Page(),
		state.SeatInstancesVariable+"="+strconv.Itoa(cmp.Or(r.SeatInstances, DefaultSeatInstances)),
		lessons.QueueVariable+"="+filepath.Join(r.dir, ".queue"),
		"PATH="+filepath.Dir(self)+":"+filepath.Join(filepath.Dir(self), "kube")+":"+os.Getenv("PATH"),
	), nil
}
