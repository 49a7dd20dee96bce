package runtime

// This file answers which files a container sees: its volumes, and besides them
// an empty file system of its own. No file of the real machine is ever opened.

import (
	"cmp"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// scratchDirectory holds, below the state directory, what containers write
// outside their volumes. It goes when they end.
const scratchDirectory = "rootfs"

// errRealMachine is what a hostPath volume contains: the files of a simulated
// machine would be the real one's.
var errRealMachine = errors.New("a hostPath volume is not opened, because its files are the real machine's")

// rootFS is a container's file system for the time of one command: its mounts,
// those deeper in the tree first and the root last.
type rootFS []mount

// mount is a directory or file of the state directory. An os.Root is left neither
// by ".." nor through a symbolic link.
type mount struct {
	at       string // path in the container
	root     *os.Root
	file     string // set if a file is mounted, and root is the directory that it is in
	readOnly bool
	err      error // why it cannot be opened
}

// openRootFS opens the file system of a container; the caller closes it.
func (r *Runtime) openRootFS(c *container) (rootFS, error) {
	state, err := os.OpenRoot(r.options.StateDirectory)
	if err != nil {
		return nil, err
	}
	defer func() { _ = state.Close() }()
	own := filepath.Join(scratchDirectory, c.id)
	if err := state.MkdirAll(own, 0o750); err != nil {
		return nil, err
	}
	scratch, err := state.OpenRoot(own)
	if err != nil {
		return nil, err
	}
	// As a container engine does: the working directory, and the places where
	// volumes are mounted, so that ls shows them. What a command has put in the
	// way since stays in the way.
	_ = scratch.MkdirAll("tmp", 0o755)
	_ = scratch.MkdirAll(inRoot(path.Clean("/"+c.config.GetWorkingDir())), 0o755)
	files := rootFS{{at: "/", root: scratch}}
	for _, volume := range c.config.GetMounts() {
		m := r.openMount(state, volume.GetHostPath())
		m.at, m.readOnly = path.Clean("/"+volume.GetContainerPath()), volume.GetReadonly()
		m.makePlace(scratch)
		files = append(files, m)
	}
	slices.SortStableFunc(files, func(a, b mount) int { return cmp.Compare(len(b.at), len(a.at)) })
	return files, nil
}

func (r *Runtime) openMount(state *os.Root, hostPath string) (m mount) {
	relative, err := filepath.Rel(r.options.StateDirectory, hostPath)
	if err != nil || !filepath.IsLocal(relative) {
		return mount{err: errRealMachine}
	}
	info, err := state.Stat(relative)
	if err != nil {
		return mount{err: err}
	}
	if !info.IsDir() {
		relative, m.file = filepath.Dir(relative), filepath.Base(relative)
	}
	m.root, m.err = state.OpenRoot(relative)
	return m
}

func (m mount) makePlace(scratch *os.Root) {
	if m.file == "" {
		_ = scratch.MkdirAll(inRoot(m.at), 0o755)
		return
	}
	_ = scratch.MkdirAll(inRoot(path.Dir(m.at)), 0o755)
	if file, err := scratch.OpenFile(inRoot(m.at), os.O_CREATE|os.O_RDONLY, 0o644); err == nil {
		_ = file.Close()
	}
}

func (f rootFS) close() {
	for _, m := range f {
		if m.root != nil {
			_ = m.root.Close()
		}
	}
}

func inRoot(absolute string) string { return cmp.Or(strings.TrimPrefix(absolute, "/"), ".") }

// find returns the mount that an absolute path lies in, and its name there.
func (f rootFS) find(absolute string) (mount, string) {
	for _, m := range f {
		below, inside := strings.CutPrefix(absolute, strings.TrimSuffix(m.at, "/"))
		if !inside || below != "" && below[0] != '/' {
			continue
		}
		switch {
		case m.file != "" && below != "":
			m.err = syscall.ENOTDIR
		case m.file != "":
			return m, m.file
		}
		return m, inRoot(below)
	}
	return mount{err: fs.ErrNotExist}, "" // never: the root holds every path
}

// at finds a path and does something there. What goes wrong is told about the
// path as the container knows it.
func (f rootFS) at(operation, absolute string, writes bool, do func(mount, string) error) error {
	m, name := f.find(path.Clean(absolute))
	err := m.err
	if err == nil && writes && m.readOnly {
		err = syscall.EROFS
	}
	if err == nil {
		err = do(m, name)
	}
	if inner := (*fs.PathError)(nil); errors.As(err, &inner) {
		err = inner.Err
	}
	if err != nil {
		return &fs.PathError{Op: operation, Path: absolute, Err: err}
	}
	return nil
}

func (f rootFS) open(absolute string, flag int, perm fs.FileMode) (file io.ReadWriteCloser, err error) {
	if path.Clean(absolute) == "/dev/null" {
		return nullDevice{}, nil
	}
	err = f.at("open", absolute, flag&(os.O_WRONLY|os.O_RDWR|os.O_CREATE|os.O_TRUNC) != 0, func(m mount, name string) (err error) {
		// Opening a named pipe that lies in a volume must not wait for its other end.
		file, err = m.root.OpenFile(name, flag|syscall.O_NONBLOCK, perm)
		return err
	})
	return file, err
}

func (f rootFS) stat(absolute string, follow bool) (info fs.FileInfo, err error) {
	err = f.at("stat", absolute, false, func(m mount, name string) (err error) {
		if follow {
			info, err = m.root.Stat(name)
		} else {
			info, err = m.root.Lstat(name)
		}
		return err
	})
	return info, err
}

func (f rootFS) readDir(absolute string) (entries []fs.DirEntry, err error) {
	err = f.at("open", absolute, false, func(m mount, name string) (err error) {
		entries, err = fs.ReadDir(m.root.FS(), name)
		return err
	})
	return entries, err
}

func (f rootFS) mkdirAll(absolute string) error {
	return f.at("mkdir", absolute, true, func(m mount, name string) error { return m.root.MkdirAll(name, 0o755) })
}

// touch makes a file, or makes it as new as one just made.
func (f rootFS) touch(absolute string) error {
	return f.at("touch", absolute, true, func(m mount, name string) error {
		file, err := m.root.OpenFile(name, os.O_CREATE|os.O_WRONLY|syscall.O_NONBLOCK, 0o644)
		if err != nil {
			return err
		}
		_ = file.Close()
		return m.root.Chtimes(name, time.Now(), time.Now())
	})
}

// remove refuses to remove what is mounted, as the kernel does.
func (f rootFS) remove(absolute string, recursive bool) error {
	return f.at("remove", absolute, true, func(m mount, name string) error {
		switch {
		case name == "." || m.file != "":
			return syscall.EBUSY
		case recursive:
			return m.root.RemoveAll(name)
		}
		return m.root.Remove(name)
	})
}

// removeScratch deletes what a container wrote outside its volumes.
func (r *Runtime) removeScratch(containerID string) {
	if r.options.StateDirectory != "" {
		_ = os.RemoveAll(filepath.Join(r.options.StateDirectory, scratchDirectory, containerID))
	}
}

type nullDevice struct{}

func (nullDevice) Read([]byte) (int, error)    { return 0, io.EOF }
func (nullDevice) Write(p []byte) (int, error) { return len(p), nil }
func (nullDevice) Close() error                { return nil }
