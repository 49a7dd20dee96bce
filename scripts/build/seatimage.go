package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/ccmlab/ccmlab/lab/build"
	"github.com/ccmlab/ccmlab/lab/image"
	"github.com/ccmlab/ccmlab/lab/image/debian"
	"github.com/ccmlab/ccmlab/lab/ui"
)

// seatPackages are a shell, editors, the tools that lessons use, and tini. The first process
// of a container must reap orphaned processes, which tini does and lab does not.
var seatPackages = strings.Fields("bash bash-completion ca-certificates curl jq less nano procps tini vim-tiny")

// buildSeatImage makes bin/seat-image.tar, unless it is newer than all of its parts.
func buildSeatImage(ctx context.Context, steps *ui.Steps, bin, kube string) error {
	root := filepath.Join(bin, "seat", "rootfs.tar")
	if err := steps.Do("root file system", func(note func(string)) (string, error) {
		built, err := debian.RootFS(ctx, root, seatPackages, note)
		if err == nil && !built {
			return root + " is up to date", nil
		}
		return root, err
	}); err != nil {
		return err
	}
	parts := filepath.Join(bin, "seat", "lessons")
	if err := writeLessonParts(ctx, filepath.Join(bin, "lab"), parts); err != nil {
		return err
	}
	archive := filepath.Join(bin, "seat-image.tar")
	return steps.Do("seat image", func(func(string)) (string, error) {
		programs := labPrograms(bin, kube)
		stale, err := build.IsOlder(archive, append(programFiles(programs), root, parts))
		if err != nil {
			return "", err
		}
		if !stale {
			return imageName("seat") + ": " + archive + " is up to date", nil
		}
		return imageName("seat") + ": " + archive, writeSeatImage(ctx, archive, root, parts, programs)
	})
}

// writeLessonParts has the lab command fill a folder with what lessons need beside the programs:
// CCMs with a mistake, and what compiles a learner's own CCM.
func writeLessonParts(ctx context.Context, lab, folder string) error {
	stale, err := build.IsOlder(folder, []string{lab})
	if err != nil || !stale {
		return err
	}
	if err := os.RemoveAll(folder); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, lab, "lesson-parts", folder)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	return cmd.Run()
}

func writeSeatImage(ctx context.Context, archive, root, parts string, programs map[string]string) error {
	file, err := os.Open(root)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	tree, err := image.ReadTree(file)
	if err != nil {
		return err
	}
	spec, err := seatSpec(tree, parts, programs)
	if err != nil {
		return err
	}
	return image.WriteFileWithNotices(ctx, archive, spec)
}

func seatSpec(tree image.Tree, parts string, programs map[string]string) (image.Spec, error) {
	executable := func(name string) bool {
		info, err := os.Stat(filepath.Join(parts, strings.TrimPrefix(name, programsDir+"/")))
		return err == nil && info.Mode()&0o100 != 0
	}
	if err := errors.Join(debian.Prune(tree), tree.Folder(programsDir, parts, executable)); err != nil {
		return image.Spec{}, err
	}
	spec := image.Spec{
		Names: []string{imageName("seat")}, Tree: tree,
		Entrypoint: []string{"/usr/bin/tini", "--", "/" + programsDir + "/lab"},
		Cmd:        []string{"classroom", "up", "--foreground", "--listen", "0.0.0.0"},
		Env:        []string{"LANG=C.UTF-8", "EDITOR=nano"}, // EDITOR is for `kubectl edit`.
	}
	return spec, addProgramsAndUser(&spec, programs, "/bin/bash")
}
