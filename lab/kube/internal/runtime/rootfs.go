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
	"sync"
	"syscall"
	"time"
)

// scratchDirectory holds, below the state directory, what containers write
// outside their volumes. It goes when they end.
const scratchDirectory = "rootfs"

// errRealMachine is what a hostPath volume contains: the files of a simulated
// machine would be the real one's.
var errRealMachine = errors.New("a hostPath volume is not opened, because its files are the real machine's")

// maxDisk is how many bytes a container may have in its file system and in the
// volumes that it can write to.
const maxDisk = 16 << 20

// block is what a file or directory takes at least.
const block = 4 << 10

// disk keeps a container within maxDisk.
type disk struct {
	mu   sync.Mutex
	used int64
}

// rootFS is a container's file system for the time of one command.
type rootFS struct {
	mounts []mount // those deeper in the tree first and the root last
	disk   *disk
}

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
		return rootFS{}, err
	}
	defer func() { _ = state.Close() }()
	own := filepath.Join(scratchDirectory, c.id)
	if err := state.MkdirAll(own, 0o750); err != nil {
		return rootFS{}, err
	}
	scratch, err := state.OpenRoot(own)
	if err != nil {
		return rootFS{}, err
	}
	// As a container engine does: the working directory, and the places where
	// volumes are mounted, so that ls shows them. What a command has put in the
	// way since stays in the way.
	_ = scratch.MkdirAll("tmp", 0o755)
	_ = scratch.MkdirAll(inRoot(path.Clean("/"+c.config.GetWorkingDir())), 0o755)
	mounts := []mount{{at: "/", root: scratch}}
	for _, volume := range c.config.GetMounts() {
		m := openMount(state, r.inPod(c.sandbox, volume.GetHostPath()))
		m.at, m.readOnly = path.Clean("/"+volume.GetContainerPath()), volume.GetReadonly()
		m.makePlace(scratch)
		mounts = append(mounts, m)
	}
	slices.SortStableFunc(mounts, func(a, b mount) int { return cmp.Compare(len(b.at), len(a.at)) })
	return rootFS{mounts: mounts, disk: &c.disk}, nil
}

// inPod returns a path relative to the state directory, or "" unless it is in the
// pod's own folder there: what else there is of the node's, other pods' volumes
// above all, a hostPath volume can name like any other place of the machine.
func (r *Runtime) inPod(s *sandbox, hostPath string) string {
	uid := s.config.GetMetadata().GetUid()
	relative, err := filepath.Rel(filepath.Join(r.options.StateDirectory, "pods", uid), hostPath)
	if err != nil || uid == "" || !filepath.IsLocal(relative) {
		return ""
	}
	return filepath.Join("pods", uid, relative)
}

func openMount(state *os.Root, relative string) (m mount) {
	if relative == "" {
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
	for _, m := range f.mounts {
		if m.root != nil {
			_ = m.root.Close()
		}
	}
}

func inRoot(absolute string) string { return cmp.Or(strings.TrimPrefix(absolute, "/"), ".") }

// find returns the mount that an absolute path lies in, and its name there.
func (f rootFS) find(absolute string) (mount, string) {
	for _, m := range f.mounts {
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
	writes := flag&(os.O_WRONLY|os.O_RDWR|os.O_CREATE|os.O_TRUNC) != 0
	err = f.at("open", absolute, writes, func(m mount, name string) error {
		if writes {
			if err := f.room(); err != nil {
				return err
			}
		}
		// Opening a named pipe that lies in a volume must not wait for its other end.
		opened, err := m.root.OpenFile(name, flag|syscall.O_NONBLOCK, perm)
		switch {
		case err != nil:
			return err
		case writes:
			file = limitedFile{opened, f.disk}
		default:
			file = opened
		}
		return nil
	})
	return file, err
}

// room measures what the container has written, and says whether one more file
// fits.
func (f rootFS) room() error {
	used := int64(0)
	for _, m := range f.mounts {
		if m.readOnly || m.root == nil || m.file != "" { // which the kubelet wrote
			continue
		}
		_ = fs.WalkDir(m.root.FS(), ".", func(_ string, entry fs.DirEntry, err error) error {
			used += block
			if err != nil {
				return nil //nolint:nilerr // It has just gone.
			}
			if info, err := entry.Info(); err == nil && info.Mode().IsRegular() {
				used += info.Size()
			}
			return nil
		})
	}
	f.disk.mu.Lock()
	f.disk.used = used
	f.disk.mu.Unlock()
	return f.disk.take(block)
}

func (d *disk) take(size int) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.used+int64(size) > maxDisk {
		return syscall.ENOSPC
	}
	d.used += int64(size)
	return nil
}

// limitedFile has no method of os.File but these: io.Copy would prefer ReadFrom.
type limitedFile struct {
	io.ReadWriteCloser
	disk *disk
}

func (f limitedFile) Write(p []byte) (int, error) {
	if err := f.disk.take(len(p)); err != nil {
		return 0, err
	}
	return f.ReadWriteCloser.Write(p)
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
	return f.at("mkdir", absolute, true, func(m mount, name string) error {
		if err := f.room(); err != nil {
			return err
		}
		return m.root.MkdirAll(name, 0o755)
	})
}

// touch makes a file, or makes it as new as one just made.
func (f rootFS) touch(absolute string) error {
	return f.at("touch", absolute, true, func(m mount, name string) error {
		if err := f.room(); err != nil {
			return err
		}
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
