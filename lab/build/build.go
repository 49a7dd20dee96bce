// Package build makes the lab's programs with the go command. Programs that are up to date are
// not made again. Because upstream Kubernetes takes minutes on empty caches, it reports the
// progress.
//
// It imports nothing that takes long to compile, since it runs before anything is built. Begin
// with Own, Kubernetes and Module.Build.
package build

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/ccmlab/ccmlab/lab/atomicfile"
	"github.com/ccmlab/ccmlab/lab/process"
)

// Module is a Go module, or a part of one, and the programs to make of it.
type Module struct {
	// Dir is the folder with go.mod.
	Dir string
	// Sources are the files and folders below Dir that the programs are made
	// of, except those in Without.
	Sources, Without []string
	// Mains maps packages to the names of their programs.
	Mains map[string]string
	// Tests maps packages to the names of the programs that run their tests.
	Tests map[string]string
	Flags []string
	Env   []string
	// Stamp, unless nil, gives variables for the linker to set, as "package.name=value".
	// A change of these alone builds nothing: a commit that leaves the sources alone leaves the
	// programs alone.
	Stamp func(ctx context.Context) []string
	// Release, unless nil, is text on whose change the programs are built again. So the programs
	// of a release carry its version, even if those of the same sources were built before the
	// tag.
	Release func(ctx context.Context) string
}

// pureGoTags choose Go's own resolver and user database, with and without cgo. Because every
// module is built with these tags, Go's cache holds net, and all that imports it, only once.
const pureGoTags = "osusergo,netgo"

// ModulePath is the path of the project's main module. The paths of its other modules are below
// it.
const ModulePath = "github.com/ccmlab/ccmlab"

// Own are the project's programs. They are static, so that the same file runs
// on the machine and as a container's only content.
func Own(root string) Module {
	return Module{
		Dir: root, Sources: []string{"go.mod", "go.sum", "cmd", "fakecloud", "ccm", "lab", "manifests"},
		Without: []string{"lab/kube", "lab/node", "lab/bench", "lab/testbed", "lab/integration"},
		Mains: map[string]string{
			"./cmd/fakecloud": "fakecloud", "./cmd/ccm": "ccm", "./cmd/lab": "lab", "./cmd/hello": "hello",
		},
		Env: []string{"CGO_ENABLED=1"}, // For SQLite. The tags leave out what glibc would load at run time.
		Flags: []string{
			"-trimpath", "-tags=" + pureGoTags + ",sqlite_omit_load_extension", "-ldflags=-s -w -extldflags=-static",
			// Go would record whether files are there that git does not know; Stamp gives the version.
			"-buildvcs=false",
		},
		Stamp:   func(ctx context.Context) []string { return stampOf(ctx, root) },
		Release: func(ctx context.Context) string { return releaseOf(ctx, root) },
	}
}

// Kubernetes are upstream's programs and the hollow node, from lab/kube.
func Kubernetes(root string) (Module, error) {
	m, err := kubernetesPrograms(root, "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
	m.Mains["./hollow-node"], m.Mains["go.etcd.io/etcd/server/v3"] = "hollow-node", "etcd"
	m.Sources = append(m.Sources, "../demoserver") // A module that the hollow node is made of.
	return m, err
}

// kubernetesPrograms are some of upstream's programs, in the version that lab/kube pins.
func kubernetesPrograms(root string, names ...string) (Module, error) {
	m, err := pinnedPrograms(filepath.Join(root, "lab", "kube"), names...)
	m.Without = []string{"minor", "e2e"} // Modules of their own.
	return m, err
}

// EndToEndTests are the end-to-end tests of the Kubernetes that lab/kube pins, with what runs them:
// ginkgo, and agnhost, which is in the tests' pods.
func EndToEndTests(root string) (Module, error) {
	m, err := pinnedPrograms(filepath.Join(root, "lab", "kube", "e2e"))
	m.Sources = append(m.Sources, "../fsnotify", "../kmsg") // Modules that the tests are made of.
	m.Mains["github.com/onsi/ginkgo/v2/ginkgo"] = "ginkgo"
	m.Mains["k8s.io/kubernetes/test/images/agnhost"] = "agnhost"
	m.Tests = map[string]string{"k8s.io/kubernetes/test/e2e": "e2e.test"}
	return m, err
}

// pinnedPrograms are some of upstream's programs, in the version that the module in dir pins. The
// flags are the same for all programs: with different flags Go would compile everything twice.
func pinnedPrograms(dir string, names ...string) (Module, error) {
	m := Module{Dir: dir, Sources: []string{"."}, Env: []string{"CGO_ENABLED=0"}, Mains: map[string]string{}}
	for _, name := range names {
		m.Mains["k8s.io/kubernetes/cmd/"+name] = name
	}
	version, err := Required(m.Dir, "k8s.io/kubernetes")
	if err != nil {
		return m, err
	}
	major, minor, _ := strings.Cut(strings.TrimPrefix(version, "v"), ".")
	minor, _, _ = strings.Cut(minor, ".")
	var set []string
	for _, value := range []string{
		"gitVersion=" + version, "gitMajor=" + major, "gitMinor=" + minor, "gitTreeState=clean",
		"gitCommit=" + strings.Repeat("0", 40), "buildDate=1970-01-01T00:00:00Z",
	} {
		set = append(set, "k8s.io/component-base/version."+value)
	}
	m.Flags = upstreamFlags(set...)
	return m, nil
}

// upstreamFlags are the flags for programs that are not our own. The linker sets the given
// variables.
func upstreamFlags(set ...string) []string {
	ldflags := "-s -w"
	for _, value := range set {
		ldflags += " -X " + value
	}
	return []string{"-trimpath", "-buildvcs=false", "-tags=" + pureGoTags, "-ldflags=" + ldflags}
}

// Node are the programs that a kind node has beyond those of an embedded cluster. Each folder of
// lab/node pins one upstream project, and is its key here. The key kube has the programs of
// Kubernetes that an embedded cluster does without.
func Node(root string) (map[string]Module, error) {
	dir := filepath.Join(root, "lab", "node")
	newModule := func(name, pkg string, programs ...string) Module {
		m := Module{
			Dir: filepath.Join(dir, name), Sources: []string{"."}, Env: []string{"CGO_ENABLED=0"},
			Mains: map[string]string{}, Flags: upstreamFlags(),
		}
		for _, program := range programs {
			m.Mains[pkg+program] = path.Base(program)
		}
		return m
	}
	kube, err := kubernetesPrograms(root, "kubeadm", "kubelet", "kube-proxy")
	if err != nil {
		return nil, err
	}
	containerd := newModule(
		"containerd", "github.com/containerd/containerd/v2/cmd/", "containerd", "ctr", "containerd-shim-runc-v2",
	)
	version, err := Required(containerd.Dir, "github.com/containerd/containerd/v2")
	if err != nil {
		return nil, err
	}
	containerd.Mains["./preload"] = "preload"
	containerd.Flags = append(upstreamFlags("github.com/containerd/containerd/v2/version.Version="+version),
		"-tags="+pureGoTags+",no_aufs,no_btrfs,no_devmapper,no_zfs")
	crictl := newModule("crictl", "sigs.k8s.io/cri-tools/cmd/", "crictl")
	if version, err = Required(crictl.Dir, "sigs.k8s.io/cri-tools"); err != nil {
		return nil, err
	}
	crictl.Flags = upstreamFlags("sigs.k8s.io/cri-tools/pkg/version.Version=" + version)
	pause := newModule("pause", "./lab/node/", "pause") // Of the project's own module.
	pause.Dir, pause.Sources = root, []string{"lab/node/pause"}
	return map[string]Module{
		"kube": kube, "containerd": containerd, "crictl": crictl, "pause": pause,
		"coredns": newModule("coredns", "github.com/coredns/", "coredns"),
		"cni": newModule(
			"cni", "github.com/containernetworking/plugins/plugins/", "ipam/host-local", "main/loopback", "main/ptp",
			"meta/portmap",
		),
	}, nil
}

// Required is the version of a module that go.mod in dir requires.
func Required(dir, module string) (string, error) {
	file := filepath.Join(dir, "go.mod")
	mod, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	m := regexp.MustCompile(`(?m)^(?:require)?\s+` + regexp.QuoteMeta(module) + ` (v\S+)`).FindSubmatch(mod)
	if m == nil {
		return "", fmt.Errorf("%s does not require %s", file, module)
	}
	return string(m[1]), nil
}

// Build builds the module's programs into the folder out. It calls note with the progress.
// built is false when the programs were up to date.
func (m Module) Build(ctx context.Context, out string, note func(string)) (built bool, err error) {
	// go build runs in the module's folder, so out must not be relative to this process's.
	if out, err = filepath.Abs(out); err != nil {
		return false, err
	}
	want, err := m.hashSources()
	if err != nil {
		return false, err
	}
	if m.Release != nil {
		want += m.Release(ctx)
	}
	stampFile := filepath.Join(out, ".stamp")
	if have, err := os.ReadFile(stampFile); err == nil && string(have) == want && m.hasPrograms(out) {
		return false, nil
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return false, err
	}
	if left, err := filepath.Glob(filepath.Join(out, ".build-*")); err == nil {
		for _, dir := range left { // A build that was killed leaves such a folder.
			_ = os.RemoveAll(dir)
		}
	}
	note("looking at what is compiled already, downloading what is missing")
	stale, err := m.countStale(ctx)
	if err != nil {
		return false, err
	}
	tmp, err := os.MkdirTemp(out, ".build-*")
	if err != nil {
		return false, err
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	if err := m.compilePrograms(ctx, tmp, stale, note); err != nil {
		return false, err
	}
	if err := m.compileTests(ctx, tmp, note); err != nil {
		return false, err
	}
	for pkg, name := range m.Mains {
		if err := atomicfile.Rename(filepath.Join(tmp, defaultName(pkg)), filepath.Join(out, name)); err != nil {
			return false, err
		}
	}
	for _, name := range m.Tests {
		if err := atomicfile.Rename(filepath.Join(tmp, name), filepath.Join(out, name)); err != nil {
			return false, err
		}
	}
	return true, os.WriteFile(stampFile, []byte(want), 0o644)
}

// BuildStep is Build as a step of a program that shows its progress.
func (m Module) BuildStep(ctx context.Context, out string, note func(string)) (result string, err error) {
	built, err := m.Build(ctx, out, note)
	if err == nil && !built {
		return out + " is up to date", nil
	}
	return fmt.Sprintf("%d programs in %s", len(m.Mains)+len(m.Tests), out), err
}

// defaultName is the name that `go build` gives a package's program.
func defaultName(pkg string) string {
	if majorVersionRegexp.MatchString(path.Base(pkg)) {
		pkg = path.Dir(pkg)
	}
	return path.Base(pkg)
}

var majorVersionRegexp = regexp.MustCompile(`^v[0-9]+$`)

// hasPrograms tells whether the folder out has all programs of the module.
func (m Module) hasPrograms(out string) bool {
	for _, programs := range []map[string]string{m.Mains, m.Tests} {
		for _, name := range programs {
			if _, err := os.Stat(filepath.Join(out, name)); err != nil {
				return false
			}
		}
	}
	return true
}

// IsOlder tells whether a file is older than one of the sources that it is made of, or does not exist.
func IsOlder(file string, sources []string) (bool, error) {
	have, err := os.Stat(file)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	for _, source := range sources {
		info, err := os.Stat(source)
		if err != nil || info.ModTime().After(have.ModTime()) {
			return true, err
		}
	}
	return false, nil
}

// hashSources is a hash of all that the programs are made from.
func (m Module) hashSources() (string, error) {
	h := sha256.New()
	_, _ = fmt.Fprintln(h, runtime.Version(), m.Env, m.Flags)
	for _, source := range m.Sources {
		if err := filepath.WalkDir(filepath.Join(m.Dir, source), func(file string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			rel, err := filepath.Rel(m.Dir, file)
			switch {
			case err != nil:
				return err
			case slices.Contains(m.Without, filepath.ToSlash(rel)):
				return fs.SkipDir
			case d.IsDir() || strings.HasSuffix(file, "_test.go"):
				return nil
			}
			_, _ = fmt.Fprintln(h, rel)
			return hashFile(h, file)
		}); err != nil {
			return "", err
		}
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

func hashFile(w io.Writer, file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	_, err = io.Copy(w, f)
	return err
}

// programsCommand is a go command on the packages of all programs.
func (m Module) programsCommand(ctx context.Context, flags []string, args ...string) *exec.Cmd {
	return m.goCommand(ctx, slices.Concat(args, flags, slices.Collect(maps.Keys(m.Mains)))...)
}

// goCommand is a go command in the module.
func (m Module) goCommand(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = m.Dir
	cmd.Env = append(os.Environ(), m.Env...)
	return cmd
}

// RunGo runs the go command in a folder and returns its output. An error has the last lines of what it said.
func RunGo(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	out, err := cmd.Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		err = fmt.Errorf("%w\n%s", err, process.LastLines(string(exit.Stderr), 10))
	}
	if err != nil {
		return "", fmt.Errorf("go %s: %w", strings.Join(args, " "), err)
	}
	return string(out), nil
}

// countStale is the number of packages that are to be compiled.
func (m Module) countStale(ctx context.Context) (int, error) {
	var stderr bytes.Buffer
	cmd := m.programsCommand(ctx, m.Flags, "list", "-deps", "-f", "{{if .Stale}}{{.ImportPath}}{{end}}")
	cmd.Stderr = &stderr
	list, err := cmd.Output()
	if err != nil {
		return 0, fmt.Errorf("go list in %s: %w\n%s", m.Dir, err, process.LastLines(stderr.String(), 10))
	}
	return len(strings.Fields(string(list))), nil
}

// compilePrograms builds all programs into the folder out. stale is the number of packages to
// compile, from which the progress is computed.
func (m Module) compilePrograms(ctx context.Context, out string, stale int, note func(string)) error {
	cmd := m.programsCommand(ctx, m.stampedFlags(ctx), "build", "-v", "-o", out+string(filepath.Separator))
	var lines []string
	began := time.Now()
	cmd.Stderr = &process.LineWriter{Tell: func(line string) error {
		lines = append(lines, line)
		note(formatProgress(len(lines), stale, time.Since(began)))
		return nil
	}}
	if err := cmd.Run(); err != nil {
		return m.compileError(ctx, "go build", err, strings.Join(lines, "\n"))
	}
	return nil
}

// compileError is the error of a command that compiles, with the last lines of its output.
func (m Module) compileError(ctx context.Context, command string, err error, output string) error {
	if ctx.Err() != nil {
		return errors.New("interrupted; what is compiled stays in Go's cache")
	}
	return fmt.Errorf("%s in %s: %w\n%s", command, m.Dir, err, process.LastLines(output, 20))
}

// compileTests builds the programs that run tests into the folder out. `go test -c` says nothing of
// its progress.
func (m Module) compileTests(ctx context.Context, out string, note func(string)) error {
	for pkg, name := range m.Tests {
		note("compiling the tests of " + pkg)
		args := append([]string{"test", "-c", "-vet=off", "-o", filepath.Join(out, name)}, m.stampedFlags(ctx)...)
		if output, err := m.goCommand(ctx, append(args, pkg)...).CombinedOutput(); err != nil {
			return m.compileError(ctx, "go test -c "+pkg, err, string(output))
		}
	}
	return nil
}

// formatProgress says how many packages are compiled, and how long the rest will take.
func formatProgress(done, stale int, elapsed time.Duration) string {
	if done >= stale {
		return fmt.Sprintf("%d packages compiled, linking", done)
	}
	left := time.Duration(float64(elapsed) / float64(done) * float64(stale-done))
	return fmt.Sprintf(
		"%d of %d packages compiled, about %s left", done, stale, max(left.Round(10*time.Second), 10*time.Second),
	)
}

// Minors are the control planes of the other Kubernetes minors that the CCM
// supports, by name, e.g. "v1.35". A folder of lab/kube/minor pins each. The
// hollow node is not among their programs, because its kubelet has the minor of lab/kube. A
// kubelet must not be newer than its API server (kubernetes.io, version skew
// policy), nor may a controller manager or a scheduler.
func Minors(root string) (map[string]Module, error) {
	dir := filepath.Join(root, "lab", "kube", "minor")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	minors := map[string]Module{}
	for _, e := range entries {
		m, err := pinnedPrograms(
			filepath.Join(dir, e.Name()), "kube-apiserver", "kube-controller-manager", "kube-scheduler",
		)
		if err != nil {
			return nil, err
		}
		version, err := m.Version()
		if err == nil && !strings.HasPrefix(version, e.Name()+".") {
			err = fmt.Errorf("%s pins Kubernetes %s, and its name says %s", m.Dir, version, e.Name())
		}
		if err != nil {
			return nil, err
		}
		minors[e.Name()] = m
	}
	return minors, nil
}

// Version is the version of Kubernetes that the module pins.
func (m Module) Version() (string, error) { return Required(m.Dir, "k8s.io/kubernetes") }
