// Package debian makes root file systems of Debian packages, as the base of images. It needs
// neither root nor a registry.
//
// It does not know what the images are for. Begin with RootFS.
package debian

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/ccmlab/ccmlab/lab/atomicfile"
	"github.com/ccmlab/ccmlab/lab/image"
	"github.com/ccmlab/ccmlab/lab/process"
)

// suite is the last release of Debian whose systemd supports cgroup v1.
const suite = "bookworm"

// RootFS writes an archive with these packages and their dependencies, unless the file was made
// from the same packages before.
func RootFS(ctx context.Context, out string, packages []string, note func(string)) (built bool, err error) {
	args := []string{
		"--variant=minbase", "--format=tar", "--include=" + strings.Join(packages, ","),
		`--aptopt=APT::Install-Recommends "false"`,
	}
	for _, dir := range []string{"doc", "man", "locale", "info"} {
		args = append(args, "--dpkgopt=path-exclude=/usr/share/"+dir+"/*")
	}
	// The copyright of a package must be passed on with it.
	args = append(args, "--dpkgopt=path-include=/usr/share/doc/*/copyright")
	sum := sha256.Sum256([]byte(suite + strings.Join(args, "\n")))
	want := hex.EncodeToString(sum[:])
	stampFile := filepath.Join(filepath.Dir(out), ".stamp")
	if have, err := os.ReadFile(stampFile); err == nil && string(have) == want {
		if _, err := os.Stat(out); err == nil {
			return false, nil
		}
	}
	if err := checkPrerequisites(); err != nil {
		return false, err
	}
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return false, err
	}
	tmp := out + ".tmp"
	defer func() { _ = os.Remove(tmp) }()
	if err := runMmdebstrap(ctx, append(append(args, suite, tmp), aptSources()...), note); err != nil {
		return false, err
	}
	if err := atomicfile.Rename(tmp, out); err != nil {
		return false, err
	}
	return true, os.WriteFile(stampFile, []byte(want), 0o644)
}

// checkPrerequisites says what is missing, before minutes are spent.
func checkPrerequisites() error {
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
		return errors.New(
			"an ordinary user needs newuidmap to unpack Debian packages: install the package uidmap, or run this as root",
		)
	}
	for _, file := range []string{"/etc/subuid", "/etc/subgid"} {
		text, err := os.ReadFile(file)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		if all := "\n" + string(text); !strings.Contains(all, "\n"+me.Username+":") &&
			!strings.Contains(all, "\n"+me.Uid+":") {
			return fmt.Errorf(
				"%s has no range for %s, which unpacking Debian packages needs: `usermod --add-subuids 100000-165535 --add-subgids 100000-165535 %[2]s` as root adds one, or run this as root",
				file, me.Username,
			)
		}
	}
	return nil
}

// aptSources are this machine's own lists of package sources, if it runs the same release of
// Debian. On any other machine mmdebstrap uses its default.
func aptSources() (files []string) {
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

// runMmdebstrap runs mmdebstrap, and calls note with the progress.
func runMmdebstrap(ctx context.Context, args []string, note func(string)) error {
	cmd := exec.CommandContext(ctx, "mmdebstrap", args...)
	cmd.Env = append(os.Environ(), "SOURCE_DATE_EPOCH=0")
	// mmdebstrap cleans up on SIGTERM. When it is killed it leaves mounts.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 30 * time.Second
	var output bytes.Buffer
	cmd.Stderr = io.MultiWriter(&output, &process.LineWriter{Tell: func(line string) error {
		if text, ok := strings.CutPrefix(line, "I: "); ok {
			note(text)
		}
		return nil
	}})
	err := cmd.Run()
	if err != nil && ctx.Err() != nil {
		return errors.New("interrupted")
	}
	if err != nil {
		return fmt.Errorf("mmdebstrap: %w\n%s", err, process.LastLines(output.String(), 15))
	}
	return nil
}

// Prune removes what is needed only by a machine that boots or installs packages.
func Prune(tree image.Tree) error {
	return tree.Remove("dev/*", "var/cache/apt/*", "var/lib/apt/lists/*", "var/log/*",
		// perl-base stays.
		"usr/lib/*/gconv", "usr/share/perl", "usr/share/perl5", "usr/lib/*/perl", "usr/lib/*/libperl.so*")
}

const (
	docFolder  = "usr/share/doc"
	listFolder = "var/lib/dpkg/info" // Has a list of files for each package.
)

// CopyCopyrights adds the copyright of each package that files in the tree
// come from, the licences that the copyrights refer to, and what dpkg's status says of the package. All files of the tree must be
// copies from base, a root file system.
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
	if err := copyStatus(tree, base, packages); err != nil {
		return err
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

// copyStatus copies what dpkg's status says of some packages, to a file for each.
func copyStatus(tree, base image.Tree, packages map[string]bool) error {
	status, err := base.Read(image.DebianStatus)
	if err != nil {
		return err
	}
	for stanza := range strings.SplitSeq(string(status), "\n\n") {
		first, _, _ := strings.Cut(stanza, "\n")
		name := strings.TrimPrefix(first, "Package: ")
		if packages[name] {
			file := path.Join(image.DebianStatusFolder, name)
			if err := tree.Text(file, strings.TrimSpace(stanza)+"\n", 0o644); err != nil {
				return err
			}
		}
	}
	return nil
}

// fileOwners maps each file to its package. The path of a file is the one without links among its
// folders.
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
