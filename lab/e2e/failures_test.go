package e2e

// What goes wrong on people's machines, made to happen: each time one message
// that says what, where and what to do next, an exit code, and no hang.

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/lab/process"
)

// failing is a lab whose Kubernetes programs are of this test's making.
type failing struct {
	*fixture
	kube string
}

// asleep is a program that does nothing, for ever.
const asleep = "#!/bin/sh\nexec sleep 3600\n"

func newFailing(t *testing.T) failing {
	f := failing{newFixture(t), t.TempDir()}
	for _, name := range []string{
		"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "hollow-node",
	} {
		f.program(name, asleep, 0o755)
	}
	return f
}

func (f failing) program(name, content string, mode os.FileMode) {
	f.t.Helper()
	file := filepath.Join(f.kube, name)
	require.NoError(f.t, os.RemoveAll(file))
	require.NoError(f.t, os.WriteFile(file, []byte(content), mode))
	require.NoError(f.t, os.Chmod(file, mode))
}

// real has a program be the one that was built.
func (f failing) real(names ...string) {
	f.t.Helper()
	for _, name := range names {
		require.NoError(f.t, os.RemoveAll(filepath.Join(f.kube, name)))
		require.NoError(f.t, os.Symlink(filepath.Join(f.bin, "kube", name), filepath.Join(f.kube, name)))
	}
}

func (f failing) command(args ...string) *exec.Cmd {
	cmd := f.fixture.command("lab", args...)
	cmd.Env = append(cmd.Env, "LAB_KUBE_BIN="+f.kube)
	return cmd
}

// fails runs lab, which must end with this code and say all of this.
func (f failing) fails(code int, args []string, want ...string) {
	f.t.Helper()
	out, err := f.command(args...).CombinedOutput()
	exited(f.t, err, code, string(out))
	for _, text := range want {
		assert.Contains(f.t, string(out), text)
	}
}

func exited(t *testing.T, err error, code int, out string) {
	t.Helper()
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit, out)
	require.Equal(t, code, exit.ExitCode(), out)
}

func (f failing) in(t *testing.T) failing { return failing{f.fixture.in(t), f.kube} }

func TestProgramsThatFail(t *testing.T) {
	f := newFailing(t)
	up := []string{"up", "--nodes", "1"}
	etcd := filepath.Join(f.kube, "etcd")

	t.Run("missing", func(t *testing.T) {
		f := f.in(t)
		require.NoError(t, os.Remove(etcd))
		f.fails(1, up, "programs are missing: "+etcd+";", "`make build`", "LAB_KUBE_BIN")
		assert.NoDirExists(t, f.dir(), "nothing was begun")
	})
	t.Run("dies at its start", func(t *testing.T) {
		f := f.in(t)
		f.program("etcd", "#!/bin/sh\necho the reason; exit 3\n", 0o755)
		f.fails(
			1, up, "control plane: etcd ended at its start (exit status 3)", "last lines of "+f.dir("logs", "etcd.log"),
			"the reason", "lab logs",
		)
	})
	t.Run("hangs at its start", func(t *testing.T) {
		f := f.in(t)
		f.program("etcd", asleep, 0o755)
		f.fails(
			1, append(up, "--step-timeout", "2s"), "control plane: waited for kube-apiserver to be ready on 127.",
			"gave up after 2s", f.dir("logs", "kube-apiserver.log"),
		)
		f.fails(1, []string{"status"}, "is incomplete")
		f.fails(1, []string{"ccm", "start"}, "is not whole; `lab up --name "+f.name+"` completes it")
	})
	t.Run("all the others of its kind are ended", func(t *testing.T) {
		f := f.in(t)
		f.lab("down")
		running, err := process.Host{Lab: f.dir()}.Running()
		require.NoError(t, err)
		assert.Empty(t, running)
	})
}

// What dies later is told while its work is waited for. When it is mended, the
// same lab comes up; kubectl, which is the person's, need not be there.
func TestControlPlaneThatDiesAndIsMended(t *testing.T) {
	f := newFailing(t)
	f.real("etcd", "kube-apiserver", "kube-scheduler", "hollow-node")
	f.program("kube-controller-manager", "#!/bin/sh\necho the reason; exit 3\n", 0o755)
	f.fails(
		1, []string{"up", "--nodes", "1"}, "kube-controller-manager has ended",
		"last lines of "+f.dir("logs", "kube-controller-manager.log"), "the reason", "go on with `lab up`",
	)
	f.real("kube-controller-manager")

	var out []byte
	var said strings.Builder
	var err error
	for taken := true; taken; taken = strings.Contains(said.String(), "cannot come back to its addresses") {
		require.NoError(t, f.moveIn().Close()) // A lab of another home may have moved in.
		said.Reset()
		cmd := f.command("up", "--quiet")
		cmd.Stderr = &said
		out, err = cmd.Output()
	}
	require.NoError(t, err, said.String())
	assert.Empty(t, string(out)+said.String(), "quiet, and nothing is wrong")
	assert.NoFileExists(t, filepath.Join(f.kube, "kubectl"))

	out, err = f.command("up", "--verbose").CombinedOutput()
	require.NoError(t, err, string(out))
	tokens, err := filepath.Glob(f.dir("cloud", "*.token"))
	require.NoError(t, err)
	require.NotEmpty(t, tokens)
	for _, file := range tokens {
		token, err := os.ReadFile(file)
		require.NoError(t, err)
		assert.NotContains(t, string(out), strings.TrimSpace(string(token)), file)
	}

	t.Run("a record of no use", func(t *testing.T) {
		f := f.in(t)
		require.NoError(t, os.WriteFile(f.dir("lab.json"), []byte(`{"format":99,"name":"`+f.name+`"}`), 0o600))
		for _, args := range [][]string{{"status"}, {"up"}, {"env"}, {"ccm", "stop"}} {
			f.fails(1, args, "was made by a newer version of lab", "`lab down --name "+f.name+"` removes it")
		}
		f.lab("down") // And so it does, processes and all.
		running, err := process.Host{Lab: f.dir()}.Running()
		require.NoError(t, err)
		assert.Empty(t, running)
	})
}

// Ctrl-C while a step waits: what was begun is taken away, and the exit code says
// what a shell wants to know.
func TestInterruptedStep(t *testing.T) {
	f := newFailing(t)
	cmd := f.command("up", "--nodes", "1", "--verbose")
	said, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	out := awaitText(t, said, "waiting for kube-apiserver to be ready")
	require.NoError(t, cmd.Process.Signal(syscall.SIGINT))
	rest := awaitText(t, said, "")
	exited(t, cmd.Wait(), 130, out+rest)
	assert.Contains(t, out, " · starting etcd  command: "+filepath.Join(f.kube, "etcd"))
	assert.Contains(t, rest, "Interrupted: taking down what was started.")
	assert.NoDirExists(t, f.dir())
}

// awaitText reads until text has come, or to the end.
func awaitText(t *testing.T, from interface{ Read([]byte) (int, error) }, text string) string {
	t.Helper()
	var all strings.Builder
	buf := make([]byte, 4096)
	for {
		n, err := from.Read(buf)
		all.Write(buf[:n])
		if text != "" && strings.Contains(all.String(), text) {
			return all.String()
		}
		if err != nil {
			if text != "" {
				t.Fatalf("it ended without saying %q: %s", text, all.String())
			}
			return all.String()
		}
	}
}

// inNamespace runs a script as root of mounts of its own.
func inNamespace(t *testing.T, script string, env ...string) (string, error) {
	t.Helper()
	args := []string{"--mount"}
	if os.Geteuid() != 0 {
		args = []string{"--mount", "--map-root-user"}
	}
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	if out, err := exec.CommandContext(ctx, "unshare", append(args, "mount", "-t", "tmpfs", "none", t.TempDir())...).
		CombinedOutput(); err != nil {
		t.Skipf("a small disk needs a mount namespace, which this user may not make: %v %s", err, out)
	}
	cmd := exec.CommandContext(ctx, "unshare", append(args, "bash", "-c", script)...)
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func TestSmallDisk(t *testing.T) {
	f := newFixture(t)
	// The mount is the namespace's alone, and gone with its last process.
	out, err := inNamespace(t, `
mount -t tmpfs -o size="$SIZE" none "$CCMLAB_HOME" && cd "$CCMLAB_HOME" || exit 99
"$LAB" up --nodes 1; echo "up: $?"
dd if=/dev/zero of=fill bs=4k 2>/dev/null
"$LAB" up --nodes 1; echo "full: $?"
"$LAB" doctor; echo "doctor: $?"
"$LAB" down; echo "down: $?"
ls -A`, "SIZE=40m", "CCMLAB_HOME="+f.home, "LAB_NAME="+f.name, "LAB="+filepath.Join(f.bin, "lab"))
	require.NoError(t, err, out)
	up, rest, ok := strings.Cut(out, "up: 1\n")
	require.True(t, ok, out)
	assert.Contains(
		t, up,
		"MB are free for "+f.dir()+", and a lab takes 200: the disk is full: free some space, or set CCMLAB_HOME",
	)
	full, rest, ok := strings.Cut(rest, "full: 1\n")
	require.True(t, ok, out)
	assert.Contains(t, full, "the disk is full: free some space")
	doctor, rest, ok := strings.Cut(rest, "doctor: 1\n")
	require.True(t, ok, out)
	assert.Regexp(t, `FIX +disk +0 MB free for `, doctor)
	_, left, ok := strings.Cut(rest, "down: 0\n")
	require.True(t, ok, rest)
	assert.Equal(t, "fill\n", left, "nothing but what this test put there")
}
