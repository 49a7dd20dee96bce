package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// smallDiskBytes is so much that the cloud's data fits well.
const smallDiskBytes = 64 << 20

// smallDisk is a file system in memory that has the cloud's data, so that it can be filled.
type smallDisk struct{ dir string }

// moveToSmallDisk has the cloud go on with its data on a small disk. Only root may mount one.
func (w *world) moveToSmallDisk(ctx context.Context) error {
	if os.Geteuid() != 0 {
		fmt.Println("the disk does not fill in this run: that needs root")
		return nil
	}
	dir, err := os.MkdirTemp("", w.name+"-*")
	if err != nil {
		return err
	}
	if err := unix.Mount("chaos", dir, "tmpfs", 0, fmt.Sprintf("size=%d,mode=0700", smallDiskBytes)); err != nil {
		return errors.Join(fmt.Errorf("a small disk on %s: %w", dir, err), os.Remove(dir))
	}
	w.disk = &smallDisk{dir}
	p, err := w.findComponent("fakecloud")
	if err != nil {
		return err
	}
	if err := errors.Join(p.Signal(syscall.SIGTERM), p.Wait(ctx)); err != nil {
		return err
	}
	files, err := filepath.Glob(w.lab.State.Path("cloud", "cloud.db*"))
	if err != nil {
		return err
	}
	for _, file := range files {
		if err := moveFile(file, filepath.Join(dir, filepath.Base(file))); err != nil {
			return err
		}
	}
	if err := os.Symlink(filepath.Join(dir, "cloud.db"), w.lab.State.Path("cloud", "cloud.db")); err != nil {
		return err
	}
	return w.runLab(ctx, "up")
}

func moveFile(from, to string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return errors.Join(os.WriteFile(to, data, 0o600), os.Remove(from))
}

// fill leaves no room for so long.
func (d *smallDisk) fill(ctx context.Context, during time.Duration) error {
	file, err := os.CreateTemp(d.dir, "filling-*")
	if err != nil {
		return err
	}
	_, err = io.Copy(file, io.LimitReader(zeros{}, 2*smallDiskBytes))
	if err == nil {
		err = errors.New("the disk did not become full")
	} else if errors.Is(err, unix.ENOSPC) {
		err = nil
		waitFor(ctx, during)
	}
	return errors.Join(err, file.Close(), os.Remove(file.Name()))
}

func (d *smallDisk) remove() error {
	return errors.Join(unix.Unmount(d.dir, unix.MNT_DETACH), os.Remove(d.dir))
}

// zeros is a reader of them.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}
