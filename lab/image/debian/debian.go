// Package debian makes root file systems of Debian packages, which images are made
// of: without root, and without any registry.
package debian

import (
	"archive/tar"
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path"
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
	// Who passes a package on passes on its terms.
	args = append(args, "--dpkgopt=path-include=/usr/share/doc/*/copyright")
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

const (
	docFolder  = "usr/share/doc"
	listFolder = "var/lib/dpkg/info" // Of each package a list of its files.
)

// CopyCopyrights adds the copyright of each package that the files in a tree
// came from, and the licences that those refer to. All of the tree must be
// copied from base, a root file system.
func CopyCopyrights(tree, base image.Tree) error {
	owners, err := fileOwners(base)
	if err != nil {
		return err
	}
	packages := map[string]bool{}
	for name, entry := range tree {
		if entry.Header.Typeflag != tar.TypeReg {
			continue
		}
		if owners[name] == "" {
			return fmt.Errorf("no package of Debian has /%s: whose terms are its own?", name)
		}
		packages[owners[name]] = true
	}
	for name := range packages {
		if err := copyText(tree, base, path.Join(docFolder, name, "copyright")); err != nil {
			return fmt.Errorf("the terms of Debian's package %s: %w", name, err)
		}
	}
	for name, entry := range base {
		if path.Dir(name) == "usr/share/common-licenses" && entry.Header.Typeflag != tar.TypeDir {
			if err := copyText(tree, base, name); err != nil {
				return err
			}
		}
	}
	return nil
}

// fileOwners says which package has a file, by its path without links in folders.
func fileOwners(base image.Tree) (map[string]string, error) {
	owners := map[string]string{}
	for name := range base {
		list, isList := strings.CutSuffix(path.Base(name), ".list")
		if path.Dir(name) != listFolder || !isList {
			continue
		}
		text, err := base.Read(name)
		if err != nil {
			return nil, err
		}
		owner, _, _ := strings.Cut(list, ":") // An architecture may follow.
		for file := range strings.Lines(string(text)) {
			file = strings.TrimSpace(file)
			folder, err := base.Real(path.Dir(file))
			if err != nil {
				return nil, err
			}
			owners[path.Join(folder, path.Base(file))] = owner
		}
	}
	return owners, nil
}

func copyText(tree, base image.Tree, name string) error {
	text, err := base.Read(name)
	if err != nil {
		return err
	}
	return tree.Text(name, string(text), 0o644)
}
