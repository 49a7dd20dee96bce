package hollowkubelet

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
)

// confinedOS is the real operating system inside root. Outside of root it changes nothing: writing
// a file is refused, and other changes, such as the links of /var/log/containers, silently do
// nothing.
type confinedOS struct {
	kubecontainer.RealOS
	root string
}

func (c confinedOS) isInside(path string) bool {
	relative, err := filepath.Rel(c.root, path)
	return err == nil && relative != ".." && !strings.HasPrefix(relative, ".."+string(filepath.Separator))
}

// ifInside calls do for a path inside root. For others it does nothing, and succeeds.
func (c confinedOS) ifInside(path string, do func() error) error {
	if !c.isInside(path) {
		return nil
	}
	return do()
}

func (c confinedOS) MkdirAll(path string, perm os.FileMode) error {
	return c.ifInside(path, func() error { return c.RealOS.MkdirAll(path, perm) })
}

func (c confinedOS) Symlink(oldname, newname string) error {
	return c.ifInside(newname, func() error { return c.RealOS.Symlink(oldname, newname) })
}

func (c confinedOS) Remove(path string) error {
	return c.ifInside(path, func() error { return c.RealOS.Remove(path) })
}

func (c confinedOS) RemoveAll(path string) error {
	return c.ifInside(path, func() error { return c.RealOS.RemoveAll(path) })
}

func (c confinedOS) Chmod(path string, perm os.FileMode) error {
	return c.ifInside(path, func() error { return c.RealOS.Chmod(path, perm) })
}

func (c confinedOS) Chtimes(path string, atime, mtime time.Time) error {
	return c.ifInside(path, func() error { return c.RealOS.Chtimes(path, atime, mtime) })
}

func (c confinedOS) Rename(oldpath, newpath string) error {
	if !c.isInside(oldpath) || !c.isInside(newpath) {
		return &fs.PathError{Op: "rename", Path: oldpath, Err: fs.ErrPermission}
	}
	return c.RealOS.Rename(oldpath, newpath)
}

func (c confinedOS) Create(path string) (*os.File, error) {
	if !c.isInside(path) {
		return nil, &fs.PathError{Op: "create", Path: path, Err: fs.ErrPermission}
	}
	return c.RealOS.Create(path)
}

func (c confinedOS) OpenFile(path string, flag int, perm os.FileMode) (*os.File, error) {
	if flag != os.O_RDONLY && !c.isInside(path) {
		return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrPermission}
	}
	return c.RealOS.OpenFile(path, flag, perm)
}

// Glob finds nothing outside root, so that the kubelet's garbage collection does not see another
// kubelet's links in /var/log/containers.
func (c confinedOS) Glob(pattern string) ([]string, error) {
	if !c.isInside(pattern) {
		return nil, nil
	}
	return c.RealOS.Glob(pattern)
}
