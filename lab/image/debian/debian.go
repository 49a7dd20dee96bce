// Package debian makes root file systems of Debian packages, which images are made
// of: without root, and without any registry.
package debian

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/ccmlab/ccmlab/lab/image"
)

// suite is the last whose systemd still drives cgroup v1.
const suite = "bookworm"

// RootFS writes an archive with these packages and what they need, unless that is what is
// there.
func RootFS(ctx context.Context, out string, packages []string, note func(string)) (built bool, err error) {
	args := []string{"--variant=minbase", "--format=tar", "--include=" + strings.Join(packages, ","), `--aptopt=APT::Install-Recommends "false"`}
	for _, dir := range []string{"doc", "man", "locale", "info"} {
		args = append(args, "--dpkgopt=path-exclude=/usr/share/"+dir+"/*")
	}
	sum := sha256.Sum256([]byte(suite + strings.Join(args, "\n")))
	want := hex.EncodeToString(sum[:])
	stampFile := filepath.Join(filepath.Dir(out), ".stamp")
	if have, err := os.ReadFile(stampFile); err == nil && string(have) == want {
		if _, err := os.Stat(out); err == nil {
			return false, nil
		}
	}
	if err := canDebootstrap(); err != nil {
		return false, err
	}
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return false, err
	}
	tmp := out + ".tmp"
	defer func() { _ = os.Remove(tmp) }()
	if err := mmdebstrap(ctx, append(append(args, suite, tmp), sources()...), note); err != nil {
		return false, err
	}
	if err := os.Rename(tmp, out); err != nil {
		return false, err
	}
	return true, os.WriteFile(stampFile, []byte(want), 0o644)
}

// canDebootstrap says what is missing before minutes are spent.
func canDebootstrap() error {
	if _, err := exec.LookPath("mmdebstrap"); err != nil {
		return errors.New("mmdebstrap is missing; install the package of that name")
	}
	if os.Geteuid() == 0 {
		return nil
	}
	me, err := user.Current()
	if err != nil {
		return err
	}
	if _, err := exec.LookPath("newuidmap"); err != nil {
		return errors.New("an ordinary user needs newuidmap to unpack Debian packages: install the package uidmap, or run this as root")
	}
	for _, file := range []string{"/etc/subuid", "/etc/subgid"} {
		text, err := os.ReadFile(file)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		if all := "\n" + string(text); !strings.Contains(all, "\n"+me.Username+":") && !strings.Contains(all, "\n"+me.Uid+":") {
			return fmt.Errorf("%s has no range for %s, which unpacking Debian packages needs: `usermod --add-subuids 100000-165535 --add-subgids 100000-165535 %[2]s` as root adds one, or run this as root", file, me.Username)
		}
	}
	return nil
}

// sources are where this machine gets the same packages from; any other uses
// what mmdebstrap knows.
func sources() (files []string) {
	release, err := os.ReadFile("/etc/os-release")
	if err != nil || !strings.Contains(string(release), "VERSION_CODENAME="+suite+"\n") {
		return nil
	}
	for _, file := range []string{"/etc/apt/sources.list", "/etc/apt/sources.list.d/debian.sources"} {
		if _, err := os.Stat(file); err == nil {
			files = append(files, file)
		}
	}
	return files
}

func mmdebstrap(ctx context.Context, args []string, note func(string)) error {
	cmd := exec.CommandContext(ctx, "mmdebstrap", args...)
	cmd.Env = append(os.Environ(), "SOURCE_DATE_EPOCH=0")
	// It clears up when asked to end, and leaves mounts when killed.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 30 * time.Second
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	var said []string
	for lines := bufio.NewScanner(stderr); lines.Scan(); {
		said = append(said, lines.Text())
		if text, ok := strings.CutPrefix(lines.Text(), "I: "); ok {
			note(text)
		}
	}
	if err := cmd.Wait(); err != nil {
		if ctx.Err() != nil {
			return errors.New("interrupted")
		}
		return fmt.Errorf("mmdebstrap: %w\n%s", err, strings.Join(said[max(0, len(said)-15):], "\n"))
	}
	return nil
}

// Prune takes away what only a machine that boots, or installs packages, needs.
func Prune(tree image.Tree) error {
	return tree.Remove("dev/*", "var/cache/apt/*", "var/lib/apt/lists/*", "var/log/*",
		"usr/lib/*/gconv", "usr/share/perl", "usr/share/perl5", "usr/lib/*/perl", "usr/lib/*/libperl.so*") // perl-base stays.
}
