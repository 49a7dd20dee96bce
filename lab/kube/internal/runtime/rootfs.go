package runtime

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

// scratchFolder is the folder of the state directory for what containers write outside their
// volumes. A container's part of it is removed when the container ends.
const scratchFolder = "rootfs"

// errRealMachine is the error of every file of a hostPath volume: a simulated machine has no files
// but the real one's.
var errRealMachine = errors.New("a hostPath volume is not opened, because its files are the real machine's")

// maxDiskBytes bounds what a container has in its file system and in the volumes that it can write
// to.
const maxDiskBytes = 16 << 20

// minFileBytes is counted for each file and directory, beside its content.
const minFileBytes = 4 << 10

// diskQuota counts what a container has written, up to maxDiskBytes.
type diskQuota struct {
	mu   sync.Mutex
	used int64
}

// rootFS is a container's file system for the time of one command: its volumes, and otherwise an
// empty file system of its own. It never opens a file of the real machine.
type rootFS struct {
	mounts []mount // The deeper ones come first, the root last.
	quota  *diskQuota
}

// mount is a mounted directory or file of the state directory. Neither ".." nor a symbolic link
// leads out of an os.Root.
type mount struct {
	mountPath string // path in the container
	root      *os.Root
	file      string // set if a file is mounted, and root is the directory that it is in
	readOnly  bool
	err       error // why it cannot be opened
}

// openRootFS opens the file system of a container; the caller closes it.
func (r *Runtime) openRootFS(c *container) (rootFS, error) {
	state, err := os.OpenRoot(r.options.StateDirectory)
	if err != nil {
		return rootFS{}, err
	}
	defer func() { _ = state.Close() }()
	own := filepath.Join(scratchFolder, c.id)
	if err := state.MkdirAll(own, 0o750); err != nil {
		return rootFS{}, err
	}
	scratch, err := state.OpenRoot(own)
	if err != nil {
		return rootFS{}, err
	}
	// A container engine makes the working directory and the mount points, which ls then shows.
	// Errors are ignored: a command may have put a file in the way.
	_ = scratch.MkdirAll("tmp", 0o755)
	_ = scratch.MkdirAll(relativeToRoot(path.Clean("/"+c.config.GetWorkingDir())), 0o755)
	mounts := []mount{{mountPath: "/", root: scratch}}
	for _, volume := range c.config.GetMounts() {
		m := openMount(state, r.podRelativePath(c.sandbox, volume.GetHostPath()))
		m.mountPath, m.readOnly = path.Clean("/"+volume.GetContainerPath()), volume.GetReadonly()
		m.createMountPoint(scratch)
		mounts = append(mounts, m)
	}
	slices.SortStableFunc(mounts, func(a, b mount) int { return cmp.Compare(len(b.mountPath), len(a.mountPath)) })
	return rootFS{mounts: mounts, quota: &c.quota}, nil
}

// podRelativePath returns a host path relative to the state directory if it is in the pod's own
// folder there, and "" otherwise: a hostPath volume can name any path of the machine, that of
// another pod's volumes too.
func (r *Runtime) podRelativePath(s *sandbox, hostPath string) string {
	uid := s.config.GetMetadata().GetUid()
	relative, err := filepath.Rel(filepath.Join(r.options.StateDirectory, "pods", uid), hostPath)
	if err != nil || uid == "" || !filepath.IsLocal(relative) {
		return ""
	}
	return filepath.Join("pods", uid, relative)
}

// openMount opens a folder or file by its path in the state directory.
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

// createMountPoint makes an empty folder or file where the mount is, for ls to show.
func (m mount) createMountPoint(scratch *os.Root) {
	if m.file == "" {
		_ = scratch.MkdirAll(relativeToRoot(m.mountPath), 0o755)
		return
	}
	_ = scratch.MkdirAll(relativeToRoot(path.Dir(m.mountPath)), 0o755)
	if file, err := scratch.OpenFile(relativeToRoot(m.mountPath), os.O_CREATE|os.O_RDONLY, 0o644); err == nil {
		_ = file.Close()
	}
}

func (r rootFS) close() {
	for _, m := range r.mounts {
		if m.root != nil {
			_ = m.root.Close()
		}
	}
}

func relativeToRoot(absolute string) string { return cmp.Or(strings.TrimPrefix(absolute, "/"), ".") }

// findMount returns the mount that has an absolute path, and the path in the mount.
func (r rootFS) findMount(absolute string) (mount, string) {
	for _, m := range r.mounts {
		relative, inside := strings.CutPrefix(absolute, strings.TrimSuffix(m.mountPath, "/"))
		if !inside || relative != "" && relative[0] != '/' {
			continue
		}
		switch {
		case m.file != "" && relative != "":
			m.err = syscall.ENOTDIR
		case m.file != "":
			return m, m.file
		}
		return m, relativeToRoot(relative)
	}
	return mount{err: fs.ErrNotExist}, "" // Never: the root mount has every path.
}

// onMount calls apply with the mount that has a path and the path in it. Errors name the path as
// the container knows it.
func (r rootFS) onMount(operation, absolute string, writes bool, apply func(mount, string) error) error {
	m, name := r.findMount(path.Clean(absolute))
	err := m.err
	if err == nil && writes && m.readOnly {
		err = syscall.EROFS
	}
	if err == nil {
		err = apply(m, name)
	}
	if inner := (*fs.PathError)(nil); errors.As(err, &inner) {
		err = inner.Err
	}
	if err != nil {
		return &fs.PathError{Op: operation, Path: absolute, Err: err}
	}
	return nil
}

func (r rootFS) openFile(absolute string, flag int, perm fs.FileMode) (file io.ReadWriteCloser, err error) {
	if path.Clean(absolute) == "/dev/null" {
		return nullDevice{}, nil
	}
	writes := flag&(os.O_WRONLY|os.O_RDWR|os.O_CREATE|os.O_TRUNC) != 0
	err = r.onMount("open", absolute, writes, func(m mount, name string) error {
		if writes {
			if err := r.reserveFile(); err != nil {
				return err
			}
		}
		// O_NONBLOCK: opening a named pipe in a volume must not wait for its other end.
		opened, err := m.root.OpenFile(name, flag|syscall.O_NONBLOCK, perm)
		switch {
		case err != nil:
			return err
		case writes:
			file = limitedFile{opened, r.quota}
		default:
			file = opened
		}
		return nil
	})
	return file, err
}

// reserveFile measures what the container has written, and reserves minFileBytes for one more file
// or directory. Its error is that of a full disk.
func (r rootFS) reserveFile() error {
	used := int64(0)
	for _, m := range r.mounts {
		if m.readOnly || m.root == nil || m.file != "" { // The kubelet has written these.
			continue
		}
		_ = fs.WalkDir(m.root.FS(), ".", func(_ string, entry fs.DirEntry, err error) error {
			used += minFileBytes
			if err != nil {
				return nil //nolint:nilerr // It was just removed.
			}
			if info, err := entry.Info(); err == nil && info.Mode().IsRegular() {
				used += info.Size()
			}
			return nil
		})
	}
	r.quota.mu.Lock()
	r.quota.used = used
	r.quota.mu.Unlock()
	return r.quota.reserve(minFileBytes)
}

// reserve adds size bytes, or fails as a full disk does.
func (d *diskQuota) reserve(size int) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.used+int64(size) > maxDiskBytes {
		return syscall.ENOSPC
	}
	d.used += int64(size)
	return nil
}

// limitedFile is a file whose writes count against a quota. It hides os.File's other methods:
// io.Copy would prefer ReadFrom.
type limitedFile struct {
	io.ReadWriteCloser
	quota *diskQuota
}

func (l limitedFile) Write(p []byte) (int, error) {
	if err := l.quota.reserve(len(p)); err != nil {
		return 0, err
	}
	return l.ReadWriteCloser.Write(p)
}

func (r rootFS) statFile(absolute string, follow bool) (info fs.FileInfo, err error) {
	err = r.onMount("stat", absolute, false, func(m mount, name string) (err error) {
		if follow {
			info, err = m.root.Stat(name)
		} else {
			info, err = m.root.Lstat(name)
		}
		return err
	})
	return info, err
}

func (r rootFS) readDir(absolute string) (entries []fs.DirEntry, err error) {
	err = r.onMount("open", absolute, false, func(m mount, name string) (err error) {
		entries, err = fs.ReadDir(m.root.FS(), name)
		return err
	})
	return entries, err
}

func (r rootFS) mkdirAll(absolute string) error {
	return r.onMount("mkdir", absolute, true, func(m mount, name string) error {
		if err := r.reserveFile(); err != nil {
			return err
		}
		return m.root.MkdirAll(name, 0o755)
	})
}

// touchFile makes a file, or sets its times to now.
func (r rootFS) touchFile(absolute string) error {
	return r.onMount("touch", absolute, true, func(m mount, name string) error {
		if err := r.reserveFile(); err != nil {
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

// removeFile removes a file or directory. It refuses mount points, as the kernel does.
func (r rootFS) removeFile(absolute string, recursive bool) error {
	return r.onMount("remove", absolute, true, func(m mount, name string) error {
		switch {
		case name == "." || m.file != "":
			return syscall.EBUSY
		case recursive:
			return m.root.RemoveAll(name)
		}
		return m.root.Remove(name)
	})
}

// removeScratch deletes what a container has written outside its volumes; "" is all containers.
func (r *Runtime) removeScratch(containerID string) {
	if r.options.StateDirectory != "" {
		_ = os.RemoveAll(filepath.Join(r.options.StateDirectory, scratchFolder, containerID))
	}
}

type nullDevice struct{}

func (nullDevice) Read([]byte) (int, error)    { return 0, io.EOF }
func (nullDevice) Write(p []byte) (int, error) { return len(p), nil }
func (nullDevice) Close() error                { return nil }
