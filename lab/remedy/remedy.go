// Package remedy says what to do about errors of the operating system. These say what failed, and
// not what to do next.
//
// It knows only errors that come from the lab's folder or from starting its programs.
package remedy

import (
	"errors"
	"fmt"
	"io/fs"
	"runtime"
	"strings"
	"syscall"
)

// Of is a clause that says what to do about an error that came from the lab's folder or from
// starting its programs. It is "" for an error that it does not know.
func Of(err error) string {
	for _, known := range []struct {
		is   error
		next string
	}{
		{syscall.ENOEXEC, fmt.Sprintf(
			"it is no program for this machine, %s/%s; `make build` builds one, and LAB_KUBE_BIN must name a folder of such",
			runtime.GOOS, runtime.GOARCH,
		)},
		{
			syscall.ENOSPC,
			"the disk is full: free some space, or set CCMLAB_HOME to a folder on another; `lab doctor` shows how much there is",
		},
		{syscall.EDQUOT, "your disk quota is used up: free some space, or set CCMLAB_HOME to a folder elsewhere"},
		{syscall.EROFS, "the file system is read-only: set CCMLAB_HOME to a folder you may write"},
		{syscall.ENOTDIR, "a part of the path is a file: set CCMLAB_HOME to a folder, or to one that can be made"},
		{syscall.EMFILE, "this process has too many files open: raise `ulimit -n`"},
		{syscall.ENFILE, "this machine has too many files open: end something, or raise fs.file-max"},
		{
			syscall.EAGAIN,
			"the limit of processes is reached: end something, or raise `ulimit -u`; in a container, the limit of its pids",
		},
		{syscall.ENOMEM, "there is no memory left: end something; `lab doctor` shows how much there is"},
		{fs.ErrPermission, "set CCMLAB_HOME to a folder you may write, or see who may read it: ls -ld"},
	} {
		if errors.Is(err, known.is) {
			return known.next
		}
	}
	return ""
}

// With is the error with the remedy added, if there is one.
func With(err error) error {
	next := Of(err)
	if next == "" || strings.Contains(err.Error(), next) {
		return err
	}
	return fmt.Errorf("%w; %s", err, next)
}
