// Package build makes the lab's programs with the go command and says how far
// it is: upstream Kubernetes on empty caches takes minutes. What is up to date
// is not looked at twice. It imports nothing but the standard library, so that
// it runs before anything is built.
package build

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"
)

// Module is a Go module, or a part of one, and the programs to make of it.
type Module struct {
	// Dir holds go.mod.
	Dir string
	// Sources are the files and folders below Dir that the programs are made
	// of, Without the ones named.
	Sources, Without []string
	// Mains maps packages to what their program is called.
	Mains map[string]string
	Flags []string
	Env   []string
}

// Own are the project's programs.
func Own(root string) Module {
	return Module{
		Dir: root, Sources: []string{"go.mod", "go.sum", "cmd", "fakecloud", "ccm", "lab", "manifests"}, Without: []string{"lab/kube"},
		Mains: map[string]string{"./cmd/fakecloud": "fakecloud", "./cmd/ccm": "ccm", "./cmd/lab": "lab"},
	}
}

// Kubernetes are upstream's programs and the hollow node, from lab/kube.
// Their flags are the same: with others, Go's cache would hold, and compile,
// everything twice.
func Kubernetes(root string) (Module, error) {
	m := Module{
		Dir: filepath.Join(root, "lab", "kube"), Sources: []string{"."}, Env: []string{"CGO_ENABLED=0"},
		Mains: map[string]string{"./hollow-node": "hollow-node", "go.etcd.io/etcd/server/v3": "etcd"},
	}
	for _, name := range []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl"} {
		m.Mains["k8s.io/kubernetes/cmd/"+name] = name
	}
	version, err := kubernetesVersion(m.Dir)
	if err != nil {
		return m, err
	}
	major, minor, _ := strings.Cut(strings.TrimPrefix(version, "v"), ".")
	minor, _, _ = strings.Cut(minor, ".")
	ldflags := "-s -w"
	for _, set := range []string{
		"gitVersion=" + version, "gitMajor=" + major, "gitMinor=" + minor, "gitTreeState=clean",
		"gitCommit=" + strings.Repeat("0", 40), "buildDate=1970-01-01T00:00:00Z",
	} {
		ldflags += " -X k8s.io/component-base/version." + set
	}
	m.Flags = []string{"-trimpath", "-buildvcs=false", "-ldflags=" + ldflags}
	return m, nil
}

var requireRE = regexp.MustCompile(`(?m)^(?:require)?\s+k8s\.io/kubernetes (v\S+)`)

// kubernetesVersion is what lab/kube/go.mod pins.
func kubernetesVersion(dir string) (string, error) {
	mod, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	if err != nil {
		return "", err
	}
	m := requireRE.FindSubmatch(mod)
	if m == nil {
		return "", fmt.Errorf("%s does not require k8s.io/kubernetes", filepath.Join(dir, "go.mod"))
	}
	return string(m[1]), nil
}

// Build makes out hold the module's programs. note is told how far it is.
// built is false when they were up to date.
func (m Module) Build(ctx context.Context, out string, note func(string)) (built bool, err error) {
	// go build runs in the module's folder, not in ours.
	if out, err = filepath.Abs(out); err != nil {
		return false, err
	}
	want, err := m.stamp()
	if err != nil {
		return false, err
	}
	stampFile := filepath.Join(out, ".stamp")
	if have, err := os.ReadFile(stampFile); err == nil && string(have) == want && m.complete(out) {
		return false, nil
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return false, err
	}
	if left, err := filepath.Glob(filepath.Join(out, ".build-*")); err == nil {
		for _, dir := range left { // Of a build that was killed.
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
	if err := m.compile(ctx, tmp, stale, note); err != nil {
		return false, err
	}
	for pkg, name := range m.Mains {
		if err := os.Rename(filepath.Join(tmp, defaultName(pkg)), filepath.Join(out, name)); err != nil {
			return false, err
		}
	}
	return true, os.WriteFile(stampFile, []byte(want), 0o644)
}

// defaultName is what `go build` calls a package's program.
func defaultName(pkg string) string {
	if versionRE.MatchString(path.Base(pkg)) {
		pkg = path.Dir(pkg)
	}
	return path.Base(pkg)
}

var versionRE = regexp.MustCompile(`^v[0-9]+$`)

func (m Module) complete(out string) bool {
	for _, name := range m.Mains {
		if _, err := os.Stat(filepath.Join(out, name)); err != nil {
			return false
		}
	}
	return true
}

// stamp is a hash of all that the programs are made from.
func (m Module) stamp() (string, error) {
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

func (m Module) command(ctx context.Context, args ...string) *exec.Cmd {
	args = append(args, m.Flags...)
	for pkg := range m.Mains {
		args = append(args, pkg)
	}
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = m.Dir
	cmd.Env = append(os.Environ(), m.Env...)
	return cmd
}

func (m Module) countStale(ctx context.Context) (int, error) {
	var stderr bytes.Buffer
	cmd := m.command(ctx, "list", "-deps", "-f", "{{if .Stale}}{{.ImportPath}}{{end}}")
	cmd.Stderr = &stderr
	list, err := cmd.Output()
	if err != nil {
		return 0, fmt.Errorf("go list in %s: %w\n%s", m.Dir, err, lastLines(stderr.String(), 10))
	}
	return len(strings.Fields(string(list))), nil
}

func (m Module) compile(ctx context.Context, out string, stale int, note func(string)) error {
	cmd := m.command(ctx, "build", "-v", "-o", out+string(filepath.Separator))
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	var said []string
	began := time.Now()
	for r := bufio.NewReader(stderr); ; {
		line, err := r.ReadString('\n')
		if err != nil {
			break
		}
		said = append(said, strings.TrimRight(line, "\n"))
		note(progress(len(said), stale, time.Since(began)))
	}
	if err := cmd.Wait(); err != nil {
		if ctx.Err() != nil {
			return errors.New("interrupted; what is compiled stays in Go's cache")
		}
		return fmt.Errorf("go build in %s: %w\n%s", m.Dir, err, lastLines(strings.Join(said, "\n"), 20))
	}
	return nil
}

func progress(done, stale int, elapsed time.Duration) string {
	if done >= stale {
		return fmt.Sprintf("%d packages compiled, linking", done)
	}
	left := time.Duration(float64(elapsed) / float64(done) * float64(stale-done))
	return fmt.Sprintf("%d of %d packages compiled, about %s left", done, stale, max(left.Round(10*time.Second), 10*time.Second))
}

func lastLines(s string, n int) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
