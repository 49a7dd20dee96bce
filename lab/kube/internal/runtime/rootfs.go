package runtime

// This file answers which files a container sees: its volumes, and besides them
// an empty file system of its own. No file of the real machine is ever opened.

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const (
	// scratchDirectory holds, below the state directory, what containers write
	// outside their volumes. It goes when they end.
	scratchDirectory = "rootfs"
	devNull          = "/dev/null"
)

// errRealMachine is what a hostPath volume contains: the files of a simulated
// machine would be the real one's.
var errRealMachine = errors.New("a hostPath volume is not opened, because its files are the real machine's")

// rootFS is a container's file system for the time of one command. Each part of it
// is an os.Root, which neither ".." nor a symbolic link leaves.
type rootFS struct {
	scratch *os.Root
	mounts  []mount
}

type mount struct {
	at       string // path in the container
	root     *os.Root
	file     string // set if a file is mounted and not a directory
	readOnly bool
	err      error // why it cannot be opened
}

// openRootFS opens the file system of a container; the caller closes it.
func (r *Runtime) openRootFS(c *container) (*rootFS, error) {
	state, err := os.OpenRoot(r.options.StateDirectory)
	if err != nil {
		return nil, err
	}
	defer func() { _ = state.Close() }()
	own := filepath.Join(scratchDirectory, c.id)
	if err := state.MkdirAll(own, 0o750); err != nil {
		return nil, err
	}
	f := &rootFS{}
	if f.scratch, err = state.OpenRoot(own); err != nil {
		return nil, err
	}
	for _, m := range c.config.GetMounts() {
		f.mounts = append(f.mounts, r.openMount(state, m.GetContainerPath(), m.GetHostPath(), m.GetReadonly()))
	}
	f.layOut(c.config.GetWorkingDir())
	return f, nil
}

func (r *Runtime) openMount(state *os.Root, at, hostPath string, readOnly bool) mount {
	m := mount{at: path.Clean("/" + at), readOnly: readOnly}
	relative, err := filepath.Rel(r.options.StateDirectory, hostPath)
	if err != nil || !filepath.IsLocal(relative) {
		m.err = errRealMachine
		return m
	}
	info, err := state.Stat(relative)
	if err != nil {
		m.err = err
		return m
	}
	if !info.IsDir() {
		relative, m.file = filepath.Dir(relative), filepath.Base(relative)
	}
	m.root, m.err = state.OpenRoot(relative)
	return m
}

// layOut makes what a container engine makes in the root file system: the working
// directory, and the places where volumes are mounted, so that ls shows them. What
// a command has put in the way since stays in the way.
func (f *rootFS) layOut(workingDirectory string) {
	_ = f.scratch.MkdirAll("tmp", 0o755)
	_ = f.scratch.MkdirAll(inRoot(path.Clean("/"+workingDirectory)), 0o755)
	for _, m := range f.mounts {
		if m.file == "" {
			_ = f.scratch.MkdirAll(inRoot(m.at), 0o755)
			continue
		}
		_ = f.scratch.MkdirAll(inRoot(path.Dir(m.at)), 0o755)
		if file, err := f.scratch.OpenFile(inRoot(m.at), os.O_CREATE|os.O_RDONLY, 0o644); err == nil {
			_ = file.Close()
		}
	}
}

func (f *rootFS) close() {
	_ = f.scratch.Close()
	for _, m := range f.mounts {
		if m.root != nil {
			_ = m.root.Close()
		}
	}
}

// place is where a path leads to. If a mount begins there, isMount is set.
type place struct {
	root     *os.Root
	name     string
	readOnly bool
	isMount  bool
}

func inRoot(absolute string) string {
	if relative := strings.TrimPrefix(absolute, "/"); relative != "" {
		return relative
	}
	return "."
}

// find takes an absolute path, and the longest mount that it lies in.
func (f *rootFS) find(absolute string) (place, error) {
	absolute = path.Clean(absolute)
	found, longest := place{root: f.scratch, name: inRoot(absolute)}, ""
	for _, m := range f.mounts {
		relative, inside := strings.CutPrefix(absolute, strings.TrimSuffix(m.at, "/"))
		if !inside || relative != "" && relative[0] != '/' || len(m.at) < len(longest) {
			continue
		}
		if m.err != nil {
			return place{}, m.err
		}
		if m.file != "" && relative != "" {
			return place{}, syscall.ENOTDIR
		}
		longest = m.at
		found = place{root: m.root, name: inRoot(relative), readOnly: m.readOnly, isMount: relative == ""}
		if m.file != "" {
			found.name = m.file
		}
	}
	return found, nil
}

// at finds a path and does something there. What goes wrong is told about the
// path as the container knows it.
func (f *rootFS) at(operation, absolute string, writes bool, do func(place) error) error {
	p, err := f.find(absolute)
	if err == nil && writes && p.readOnly {
		err = syscall.EROFS
	}
	if err == nil {
		err = do(p)
	}
	if inner := (*fs.PathError)(nil); errors.As(err, &inner) {
		err = inner.Err
	}
	if err != nil {
		return &fs.PathError{Op: operation, Path: absolute, Err: err}
	}
	return nil
}

func (f *rootFS) open(absolute string, flag int, perm fs.FileMode) (file io.ReadWriteCloser, err error) {
	if path.Clean(absolute) == devNull {
		return nullDevice{}, nil
	}
	writes := flag&(os.O_WRONLY|os.O_RDWR|os.O_CREATE|os.O_TRUNC|os.O_APPEND) != 0
	err = f.at("open", absolute, writes, func(p place) (err error) {
		// Opening a named pipe that lies in a volume must not wait for its other end.
		file, err = p.root.OpenFile(p.name, flag|syscall.O_NONBLOCK, perm)
		return err
	})
	return file, err
}

func (f *rootFS) stat(absolute string, follow bool) (info fs.FileInfo, err error) {
	err = f.at("stat", absolute, false, func(p place) (err error) {
		if info, err = p.root.Lstat(p.name); err == nil && follow {
			info, err = p.root.Stat(p.name)
		}
		return err
	})
	return info, err
}

func (f *rootFS) readDir(absolute string) (entries []fs.DirEntry, err error) {
	err = f.at("open", absolute, false, func(p place) (err error) {
		entries, err = fs.ReadDir(p.root.FS(), p.name)
		return err
	})
	return entries, err
}

func (f *rootFS) mkdirAll(absolute string) error {
	return f.at("mkdir", absolute, true, func(p place) error { return p.root.MkdirAll(p.name, 0o755) })
}

// touch makes a file, or makes it as new as one just made.
func (f *rootFS) touch(absolute string) error {
	return f.at("touch", absolute, true, func(p place) error {
		file, err := p.root.OpenFile(p.name, os.O_CREATE|os.O_WRONLY|syscall.O_NONBLOCK, 0o644)
		if err != nil {
			return err
		}
		_ = file.Close()
		now := time.Now()
		return p.root.Chtimes(p.name, now, now)
	})
}

// remove refuses to remove what is mounted, as the kernel does.
func (f *rootFS) remove(absolute string, recursive bool) error {
	return f.at("remove", absolute, true, func(p place) error {
		if p.isMount || p.name == "." {
			return syscall.EBUSY
		}
		if recursive {
			return p.root.RemoveAll(p.name)
		}
		return p.root.Remove(p.name)
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
