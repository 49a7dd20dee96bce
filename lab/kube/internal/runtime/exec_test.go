package runtime

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	remote "k8s.io/cri-client/pkg"
	utilexec "k8s.io/utils/exec"
)

// testContainer is a running container with mounts: /config like a ConfigMap's, read-only and with
// the kubelet's links; /data, which is writable; the file /etc/hosts; and the hostPath /machine.
type testContainer struct {
	*testNode
	id    string
	state string
	// outside is the folder of the real machine that is mounted, with the file secret in it.
	outside string
}

func newTestContainer(t *testing.T, subnet int, mounts ...*runtimeapi.Mount) *testContainer {
	t.Helper()
	c := &testContainer{state: t.TempDir(), outside: t.TempDir()}
	c.testNode = newTestNode(t, subnet, func(o *Options) { o.StateDirectory = c.state })
	c.mustSucceed(os.WriteFile(filepath.Join(c.outside, "secret"), []byte("SECRET"), 0o644))
	config, data := c.volumePath("config"), c.volumePath("data")
	c.mustSucceed(os.MkdirAll(filepath.Join(config, "..2026"), 0o755))
	c.mustSucceed(os.MkdirAll(data, 0o755))
	c.mustSucceed(os.WriteFile(filepath.Join(config, "..2026", "greeting"), []byte("hello\n"), 0o644))
	c.mustSucceed(os.Symlink("..2026", filepath.Join(config, "..data")))
	c.mustSucceed(os.Symlink("..data/greeting", filepath.Join(config, "greeting")))
	c.mustSucceed(os.Symlink(c.outside, filepath.Join(data, "absolute")))
	c.mustSucceed(os.Symlink("../../../../../../../..", filepath.Join(data, "upwards")))
	hosts := filepath.Join(c.state, "pods", "uid", "etc-hosts")
	c.mustSucceed(os.WriteFile(hosts, []byte("127.0.0.1 localhost\n"), 0o644))

	sandbox, err := c.RunPodSandbox(t.Context(), &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: "web", Namespace: "default", Uid: "uid"}, Hostname: "web",
	}, "")
	c.mustSucceed(err)
	c.id, err = c.CreateContainer(t.Context(), sandbox, &runtimeapi.ContainerConfig{
		Metadata:   &runtimeapi.ContainerMetadata{Name: "main"},
		Image:      &runtimeapi.ImageSpec{Image: "app:1"},
		WorkingDir: "/work",
		Envs: []*runtimeapi.KeyValue{
			{Key: "GREETING", Value: []byte("good day")}, {Key: "odd.name", Value: []byte("1=2")},
		},
		LogPath:     filepath.Join("web", "0.log"),
		Annotations: map[string]string{annotationPorts: `[{"containerPort":18080}]`},
		Mounts: append(mounts,
			&runtimeapi.Mount{ContainerPath: "/config", HostPath: config, Readonly: true},
			&runtimeapi.Mount{ContainerPath: "/data/", HostPath: data},
			&runtimeapi.Mount{ContainerPath: "/etc/hosts", HostPath: hosts},
			&runtimeapi.Mount{ContainerPath: "/machine", HostPath: c.outside}),
	}, podConfig("web", c.logs))
	c.mustSucceed(err)
	c.mustSucceed(c.StartContainer(t.Context(), c.id))
	return c
}

func (c *testContainer) volumePath(name string) string {
	return filepath.Join(c.state, "pods", "uid", "volumes", "kubernetes.io~empty-dir", name)
}

// runCommand returns a command's output, stdout and then stderr, and its exit code.
func (c *testContainer) runCommand(argv ...string) (string, int) {
	c.t.Helper()
	stdout, stderr, err := c.ExecSync(c.t.Context(), c.id, argv, patience)
	var exit utilexec.CodeExitError
	if err != nil && !errors.As(err, &exit) {
		c.t.Fatalf("%q: %v", argv, err)
	}
	return string(stdout) + string(stderr), exit.Code
}

func (c *testContainer) expectCommand(code int, want string, argv ...string) {
	c.t.Helper()
	if output, got := c.runCommand(argv...); got != code || output != want {
		c.t.Errorf("%q said %q and exited with %d; want %q and %d", argv, output, got, want, code)
	}
}

func (c *testContainer) runScript(script string) (string, int) {
	c.t.Helper()
	return c.runCommand("sh", "-c", script)
}

func TestCommandsSeeEnvironmentAndVolumes(t *testing.T) {
	c := newTestContainer(t, 13)
	c.expectCommand(0, "GREETING=good day\nHOME=/\nHOSTNAME=web\nodd.name=1=2\n", "env")
	c.expectCommand(0, "web\n", "hostname")
	c.expectCommand(0, "/work\n", "pwd")
	c.expectCommand(0, "config\ndata\netc\nmachine\ntmp\nwork\n", "ls", "/")
	c.expectCommand(0, "greeting\n", "ls", "/config")
	c.expectCommand(0, "..2026\n..data\ngreeting\n", "ls", "-a", "/config")
	c.expectCommand(0, "hello\n127.0.0.1 localhost\n", "/bin/cat", "/config/greeting", "/etc/hosts")
	c.expectCommand(0, "a  b $HOME\n", "/bin/echo", "a  b", "$HOME")
	c.expectCommand(0, "", "true")
	c.expectCommand(1, "", "false")
	c.expectCommand(0, "", "sleep", "0.01")
	c.expectCommand(0, "", "rm", "-f", "/tmp/none")
	c.expectCommand(1, "cat: open /nothing: no such file or directory\n", "cat", "/nothing")
	c.expectCommand(1, "touch: touch /config/new: read-only file system\n", "touch", "/config/new")
	c.expectCommand(1, "rm: remove /etc/hosts: device or resource busy\n", "rm", "/etc/hosts")
	c.expectCommand(1, "ls: option -Z is not known to this simulation; -1aAl are\n", "ls", "-Z")
	if output, code := c.runCommand("help"); code != 0 || !strings.Contains(output, "its image is not run") {
		t.Errorf("help: %d %q", code, output)
	}
	output, code := c.runCommand("curl", "http://localhost")
	if code != 127 ||
		output != "sh: curl: not found: this is a simulated container and its image is not run; help lists what works\n" {
		t.Errorf("curl: %d %q", code, output)
	}
	if info, err := os.Stat(filepath.Join(c.state, "pods", "uid", "etc-hosts")); err != nil || info.Size() == 0 {
		t.Errorf("a mounted file was touched: %v", err)
	}
}

func TestShellScripts(t *testing.T) {
	c := newTestContainer(t, 14)
	for script, want := range map[string]string{
		`echo "$GREETING and ${NONE:-no more}!" && false || echo no`:                         "good day and no more!\nno\n",
		`x=1; while [ $x != 3 ]; do echo -n $x; if [ $x = 1 ]; then x=2; else x=3; fi; done`: "12",
		`y="$GREETING"; for f in $y b; do echo $f; done; case a in b) ;; a*) echo A;; esac`:  "good\nday\nb\nA\n",
		`echo one > /data/f; echo two >> /data/f; cat < /data/f; rm /data/f; ls /data`:       "one\ntwo\nabsolute\nupwards\n",
		`if [ -r /config/greeting ] && [ ! -x /etc/shadow ]; then echo yes; fi`:              "yes\n",
		`cd /config && pwd && cat greeting; cd; ls tmp; pwd`:                                 "/config\nhello\n/\n",
		`echo lost > /dev/null 2>&1; cat nothing 2>/dev/null || echo $?`:                     "1\n",
		`echo $HOME $UID $EUID $GID`:                                                         "/ 0 0 0\n",
		`echo /config/*`:                                                                     "/config/*\n",
	} {
		if output, _ := c.runScript(script); output != want {
			t.Errorf("%s\nsaid %q, want %q", script, output, want)
		}
	}
	for script, want := range map[string]int{
		`exit 7`: 7, `false`: 1, `exec false`: 127, `if`: 2, `exit 7; echo`: 7, ``: 0,
	} {
		if _, code := c.runScript(script); code != want {
			t.Errorf("%s: exited with %d, want %d", script, code, want)
		}
	}
	c.expectCommand(0, "1 two\n", "sh", "-c", `shift; echo $# $1`, "one", "x", "two")
}

// A short script must not take all memory.
func TestScriptMemoryIsBounded(t *testing.T) {
	c := newTestContainer(t, 25)
	for _, script := range []string{
		"x=$x$x", "x=a$x", `x="$x "`, "x+=a", "x=$(cat f)", "x=$((1))", "x=~/a", ": ${x:=$y$y}", "x=${y:-$z$z}",
		"x=${y//a/bb}", "x=${#y}", "export x=1",
		"for x in $x$x; do y=$x; done", "set -- $x", "cat <<E\n$x\nE", "sh -c true", "sh", "read x", "printf %9d 1",
		"x=(a b)", "echo *(a)",
		strings.Repeat("echo $GREETING;", 5000),
	} {
		output, code := c.runScript(script)
		if code == 0 || !strings.Contains(output, "simulated container") {
			t.Errorf("%.40q exited with %d and said %q", script, code, output)
		}
	}
	for _, argv := range [][]string{{"sh"}, {"sh", "/config/script"}, {"sh", "-c"}, {"bash", "-x", "true"}} {
		if output, code := c.runCommand(argv...); code != exitCodeUsage ||
			!strings.Contains(output, `kubectl exec POD -- sh -c "…" works`) {
			t.Errorf("%q exited with %d and said %q", argv, code, output)
		}
	}
	if output, code := c.runCommand("echo", strings.Repeat("x", maxScriptBytes)); code != exitCodeUsage ||
		!strings.Contains(output, "of more than 1024 KiB are refused") {
		t.Errorf("exited with %d and said %q", code, output)
	}
}

func TestDiskQuota(t *testing.T) {
	c := newTestContainer(t, 26)
	c.mustSucceed(os.WriteFile(filepath.Join(c.volumePath("data"), "big"), make([]byte, maxDiskBytes/2), 0o644))
	for _, script := range []string{
		"while cat /data/big >> /data/more; do true; done; rm /data/more",
		"while cat /data/big >> /tmp/more; do true; done",
	} {
		output, _ := c.runScript(script)
		if !strings.Contains(output, "no space left on device") {
			t.Errorf("%s\nsaid %q", script, output)
		}
	}
	c.mustSucceed(os.Truncate(filepath.Join(c.volumePath("data"), "big"), maxDiskBytes))
	c.expectCommand(1, "touch: touch /tmp/new: no space left on device\n", "touch", "/tmp/new")
	c.expectCommand(1, "mkdir: mkdir /tmp/new: no space left on device\n", "mkdir", "/tmp/new")
	c.expectCommand(0, "", "rm", "/tmp/more", "/data/big")
	c.expectCommand(0, "", "touch", "/tmp/new")
}

func TestHostPathsAreNotOpened(t *testing.T) {
	state := t.TempDir()
	for _, path := range []string{
		"pods/other/volumes/kubernetes.io~secret/s", "pods/uid/volumes/kubernetes.io~secret/s", "pki",
	} {
		if err := os.MkdirAll(filepath.Join(state, path), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	r := New(Options{StateDirectory: state})
	c := &container{id: "c", sandbox: &sandbox{config: podConfig("p", "")}, config: &runtimeapi.ContainerConfig{}}
	c.sandbox.config.Metadata.Uid = "uid"
	for path, opened := range map[string]bool{
		"pods/uid/volumes/kubernetes.io~secret/s": true, "pods/other/volumes/kubernetes.io~secret/s": false,
		"pki": false, "pods": false, ".": false,
		"pods/uid/../other/volumes/kubernetes.io~secret/s": false,
	} {
		c.config.Mounts = []*runtimeapi.Mount{{ContainerPath: "/v", HostPath: state + "/" + path}}
		files, err := r.openRootFS(c)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := files.readDir("/v"); (err == nil) != opened || err != nil &&
			!strings.Contains(err.Error(), errRealMachine.Error()) {
			t.Errorf("%s: %v", path, err)
		}
		files.close()
	}
}

// The walk-through of exec probes in Kubernetes' documentation.
func TestScratchFilesLastUntilContainerEnds(t *testing.T) {
	c := newTestContainer(t, 15)
	c.expectCommand(1, "cat: open /tmp/healthy: no such file or directory\n", "cat", "/tmp/healthy")
	c.expectCommand(0, "", "touch", "/tmp/healthy")
	c.expectCommand(0, "", "cat", "/tmp/healthy")
	c.expectCommand(0, "", "/bin/sh", "-c", "touch /tmp/healthy; rm -f /tmp/healthy")
	c.expectCommand(1, "cat: open /tmp/healthy: no such file or directory\n", "cat", "/tmp/healthy")

	scratch := filepath.Join(c.state, scratchFolder, c.id)
	if _, err := os.Stat(scratch); err != nil {
		t.Fatal(err)
	}
	c.mustSucceed(c.StopContainer(t.Context(), c.id, 1))
	c.scratchRemovals.Wait()
	if _, err := os.Stat(scratch); !os.IsNotExist(err) {
		t.Errorf("what the container wrote is still there: %v", err)
	}
	if _, _, err := c.ExecSync(t.Context(), c.id, []string{"true"}, 0); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("exec in a container that has ended: %v", err)
	}
	if _, err := os.Stat(scratch); !os.IsNotExist(err) {
		t.Error("a command that was refused made files")
	}
}

// None of these may see or change anything of the real machine, or end the node's process.
func TestCommandsCannotReachRealMachine(t *testing.T) {
	c := newTestContainer(t, 16, &runtimeapi.Mount{ContainerPath: "/dots", HostPath: "/etc/../etc"})
	secret := filepath.Join(c.outside, "secret")
	for _, script := range []string{
		"cat " + secret, "cat < " + secret, "cat /machine/secret", "ls /machine", "touch /machine/new",
		"cat /data/absolute/secret", "ls /data/upwards/etc", "cat /data/../../../../" + secret, "cd " + c.outside,
		"cat /dots/passwd", "cat /etc/passwd", "cat /proc/self/environ", "[ -r " + secret + " ]", "test -f " + secret,
		"[ -e /data -a -w " + secret + " ]", "[ \\( -x /bin/sh \\) ]",
		"[[ -r " + secret + " ]]", ". " + secret, "source " + secret, "command -v ls", "command cat " + secret,
		"type cat",
		"builtin cd /", "eval 'cat <(echo x)'", "cat <(echo x)", "trap 'cat <(echo x)' EXIT", "pushd /",
		"exec " + secret, secret, "./secret",
		"echo ~root", "echo x 3>f", "echo x >&7", "echo x >&$HOME", "echo x <>f", "echo {1..99999999}", "echo a{b,c}",
		"f() { f; }; f", "true & true", "echo a | cat", "(exit 0)", "coproc cat", "printf '%s' \"${x@Q}\"", "alias a=b",
		"umask 0", "shopt -s globstar",
		"cat $(echo " + secret + ")", "echo $((", "for ((;;)); do :; done", "select x in a; do :; done", "rm -r /",
		"rm -r /data", "rm -rf /etc/hosts",
		"echo x > /etc/hosts/x", "mkdir /config/x", "echo 'sh /data/self' > /data/self; sh /data/self",
	} {
		if output, code := c.runScript(script); code == 0 || strings.Contains(output, "SECRET") ||
			strings.Contains(output, "root:") {
			t.Errorf("%s\nexited with %d and said %q", script, code, output)
		}
	}
	if entries, err := os.ReadDir(c.outside); err != nil || len(entries) != 1 {
		t.Errorf("outside there is now %v (%v)", entries, err)
	}
	if output, _ := c.runScript("cat /machine/secret"); !strings.Contains(output, "a hostPath volume is not opened") {
		t.Errorf("no reason is given: %q", output)
	}
	if output, _ := c.runScript("echo a | cat"); !strings.HasPrefix(
		output, "sh: 1:1: this simulated container's shell knows",
	) {
		t.Errorf("no reason is given: %q", output)
	}
	c.expectCommand(0, "127.0.0.1 localhost\n", "cat", "/etc/hosts")
}

func FuzzShellScripts(f *testing.F) {
	for _, seed := range []string{
		"echo $((1/0))", "x=${y:?no}", "${!a}", "$(", "echo ${a:-$(exit 3)} > $b", "read x <<E\na\nE\necho $x",
		"set -- a; shift 9", "[ ( ]", "test -d", "unset PWD; cd", "echo \x00 '\xff'",
	} {
		f.Add(seed)
	}
	state := f.TempDir()
	f.Fuzz(func(t *testing.T, script string) {
		r := New(Options{StateDirectory: state})
		c := &container{id: "c", sandbox: &sandbox{
			config: podConfig("p", ""),
		}, config: &runtimeapi.ContainerConfig{}, exited: make(chan struct{}),
			state: runtimeapi.ContainerState_CONTAINER_RUNNING}
		r.containers[c.id] = c
		_, _, err := r.ExecSync(t.Context(), c.id, []string{"sh", "-c", script}, 200*time.Millisecond)
		var exit utilexec.CodeExitError
		if err != nil && !errors.As(err, &exit) && !errors.Is(err, remote.ErrCommandTimedOut) {
			t.Error(err)
		}
	})
}

func TestExecTimeoutAndExitCodes(t *testing.T) {
	c := newTestContainer(t, 17)
	for _, argv := range [][]string{
		{"sleep", "1h"}, {"sh", "-c", "while true; do echo x; done"}, {"sh", "-c", "sleep infinity || true"},
	} {
		_, _, err := c.ExecSync(t.Context(), c.id, argv, 50*time.Millisecond)
		if !errors.Is(err, remote.ErrCommandTimedOut) {
			t.Errorf("%q: %v", argv, err)
		}
	}
	_, _, err := c.ExecSync(t.Context(), c.id, []string{"sh", "-c", "echo why >&2; exit 4"}, time.Minute)
	var exit utilexec.CodeExitError
	if !errors.As(err, &exit) || exit.Code != 4 || !strings.Contains(err.Error(), "why") {
		t.Errorf("got %v", err)
	}
}

func TestExecOutputIsBounded(t *testing.T) {
	c := newTestContainer(t, 18)
	c.mustSucceed(os.WriteFile(filepath.Join(c.volumePath("data"), "big"), make([]byte, maxOutput+5), 0o644))
	stdout, _, err := c.ExecSync(t.Context(), c.id, []string{"cat", "/data/big", "/data/big"}, patience)
	if err != nil || len(stdout) != maxOutput {
		t.Errorf("%d bytes, %v", len(stdout), err)
	}
}

func TestExitCommandEndsContainer(t *testing.T) {
	c := newTestContainer(t, 19)
	c.expectCommand(2, "exit: \"300\": a number from 0 to 255 is needed\n", "exit", "300")
	waiting := make(chan error, 1)
	go func() {
		_, _, err := c.ExecSync(context.Background(), c.id, []string{"sleep", "infinity"}, 0)
		waiting <- err
	}()
	c.expectCommand(0, "container main exits with code 3\n", "exit", "3")
	if got := c.waitForExit(c.id); got.GetExitCode() != 3 || got.GetMessage() != "asked to exit by a command" {
		t.Errorf("got %v", got)
	}
	select {
	case err := <-waiting:
		if err == nil {
			t.Error("a command outlived its container with success")
		}
	case <-time.After(patience):
		t.Fatal("a command outlived its container")
	}
}

func TestScratchOfEarlierProcessIsRemoved(t *testing.T) {
	state := t.TempDir()
	left := filepath.Join(state, scratchFolder, "killed", "tmp")
	if err := os.MkdirAll(left, 0o755); err != nil {
		t.Fatal(err)
	}
	New(Options{StateDirectory: state})
	if _, err := os.Stat(filepath.Dir(left)); !os.IsNotExist(err) {
		t.Errorf("still there: %v", err)
	}
}
