// Package kubebuild builds upstream Kubernetes, etcd and the hollow node from
// the nested module lab/kube, once, and says how far it is: on empty caches
// this takes minutes.
package kubebuild

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
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"time"
)

// mains are the packages, and what their binary is called where that is not
// the last element of the path.
var mains = map[string]string{
	"go.etcd.io/etcd/server/v3":                     "etcd",
	"k8s.io/kubernetes/cmd/kube-apiserver":          "",
	"k8s.io/kubernetes/cmd/kube-controller-manager": "",
	"k8s.io/kubernetes/cmd/kube-scheduler":          "",
	"k8s.io/kubernetes/cmd/kubectl":                 "",
	"./hollow-node":                                 "",
}

const stampFile = ".stamp"

var requireRE = regexp.MustCompile(`(?m)^(?:require)?\s+k8s\.io/kubernetes (v\S+)`)

// upstreamVersion is what the module pins.
func upstreamVersion(src string) (string, error) {
	mod, err := os.ReadFile(filepath.Join(src, "go.mod"))
	if err != nil {
		return "", err
	}
	m := requireRE.FindSubmatch(mod)
	if m == nil {
		return "", fmt.Errorf("%s does not require k8s.io/kubernetes", filepath.Join(src, "go.mod"))
	}
	return string(m[1]), nil
}

// flags are the same for every upstream binary: with others, Go's cache would
// hold, and compile, everything twice.
func flags(version string) []string {
	const pkg = "k8s.io/component-base/version"
	set := func(name, value string) string { return " -X " + pkg + "." + name + "=" + value }
	major, minor, _ := strings.Cut(strings.TrimPrefix(version, "v"), ".")
	minor, _, _ = strings.Cut(minor, ".")
	return []string{"-trimpath", "-buildvcs=false", "-ldflags=-s -w" +
		set("gitVersion", version) + set("gitMajor", major) + set("gitMinor", minor) + set("gitTreeState", "clean") +
		set("gitCommit", strings.Repeat("0", 40)) + set("buildDate", "1970-01-01T00:00:00Z")}
}

// Build makes out hold the binaries of the module in src. note is told how
// far it is. It does nothing when out is up to date.
func Build(ctx context.Context, src, out string, note func(string)) (built bool, err error) {
	version, err := upstreamVersion(src)
	if err != nil {
		return false, err
	}
	b := builder{src: src, flags: flags(version)}
	want, err := b.stamp()
	if err != nil {
		return false, err
	}
	if have, err := os.ReadFile(filepath.Join(out, stampFile)); err == nil && string(have) == want && complete(out) {
		return false, nil
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return false, err
	}
	note("looking at what is compiled already, downloading what is missing")
	stale, err := b.countStale(ctx)
	if err != nil {
		return false, err
	}
	tmp, err := os.MkdirTemp(out, ".build-*")
	if err != nil {
		return false, err
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	if err := b.compile(ctx, tmp, stale, note); err != nil {
		return false, err
	}
	for pkg, name := range mains {
		built := filepath.Base(strings.TrimSuffix(pkg, "/v3"))
		if name == "" {
			name = built
		}
		if err := os.Rename(filepath.Join(tmp, built), filepath.Join(out, name)); err != nil {
			return false, err
		}
	}
	return true, os.WriteFile(filepath.Join(out, stampFile), []byte(want), 0o644)
}

type builder struct {
	src   string
	flags []string
}

func complete(out string) bool {
	for pkg, name := range mains {
		if name == "" {
			name = filepath.Base(pkg)
		}
		if _, err := os.Stat(filepath.Join(out, name)); err != nil {
			return false
		}
	}
	return true
}

// stamp is a hash of all that the binaries are made from.
func (b builder) stamp() (string, error) {
	h := sha256.New()
	_, _ = fmt.Fprintln(h, runtime.Version(), b.flags)
	err := filepath.WalkDir(b.src, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.HasSuffix(path, "_test.go") {
			return err
		}
		if ext := filepath.Ext(path); ext != ".go" && ext != ".mod" && ext != ".sum" {
			return nil
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }()
		rel, err := filepath.Rel(b.src, path)
		if err != nil {
			return err
		}
		_, _ = fmt.Fprintln(h, rel)
		_, err = io.Copy(h, f)
		return err
	})
	return hex.EncodeToString(h.Sum(nil)), err
}

func (b builder) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = b.src
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	return cmd
}

func packages() []string {
	var all []string
	for pkg := range mains {
		all = append(all, pkg)
	}
	return all
}

func (b builder) countStale(ctx context.Context) (int, error) {
	args := append([]string{"list", "-deps", "-f", "{{if .Stale}}{{.ImportPath}}{{end}}"}, b.flags...)
	var stderr bytes.Buffer
	cmd := b.command(ctx, append(args, packages()...)...)
	cmd.Stderr = &stderr
	list, err := cmd.Output()
	if err != nil {
		return 0, fmt.Errorf("go list in %s: %w\n%s", b.src, err, lastLines(stderr.String(), 10))
	}
	return len(strings.Fields(string(list))), nil
}

func (b builder) compile(ctx context.Context, out string, stale int, note func(string)) error {
	args := append([]string{"build", "-v", "-o", out + string(filepath.Separator)}, b.flags...)
	cmd := b.command(ctx, append(args, packages()...)...)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	var said []string
	began, done := time.Now(), 0
	for sc := bufio.NewScanner(stderr); sc.Scan(); {
		said = append(said, sc.Text())
		done++
		note(progress(done, stale, time.Since(began)))
	}
	if err := cmd.Wait(); err != nil {
		if ctx.Err() != nil {
			return errors.New("interrupted; what is compiled stays in Go's cache")
		}
		return fmt.Errorf("go build in %s: %w\n%s", b.src, err, lastLines(strings.Join(said, "\n"), 20))
	}
	return nil
}

func progress(done, stale int, elapsed time.Duration) string {
	if done >= stale {
		return fmt.Sprintf("%d packages compiled, linking", done)
	}
	left := time.Duration(float64(elapsed) / float64(done) * float64(stale-done))
	return fmt.Sprintf("%d of %d packages compiled, about %s left", done, stale, left.Round(10*time.Second))
}

func lastLines(s string, n int) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
