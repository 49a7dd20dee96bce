package chaos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// smallDiskBytes is so much that the cloud's data fits well.
const smallDiskBytes = 64 << 20

// smallDisk is the folder of a file system in memory that has the cloud's data, so that it can be filled; "" is none.
type smallDisk string

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
	w.disk = smallDisk(dir)
	p, err := w.findComponent("fakecloud")
	if err != nil {
		return err
	}
	if err := errors.Join(p.Signal(syscall.SIGTERM), p.Wait(ctx)); err != nil {
		return err
	}
	data := w.lab.State.Path("cloud", "cloud.db")
	files, err := filepath.Glob(data + "*")
	if err != nil {
		return err
	}
	if out, err := exec.CommandContext(ctx, "mv", append(files, dir)...).CombinedOutput(); err != nil {
		return fmt.Errorf("moving the cloud's data: %w: %s", err, out)
	}
	if err := os.Symlink(filepath.Join(dir, filepath.Base(data)), data); err != nil {
		return err
	}
	_, err = w.runLab(ctx, "up")
	return err
}

// fill leaves no room for so long.
func (d smallDisk) fill(ctx context.Context, during time.Duration) error {
	if d == "" {
		return errors.New("only root has a small disk made")
	}
	zeros, err := os.Open("/dev/zero")
	if err != nil {
		return err
	}
	defer func() { _ = zeros.Close() }()
	file, err := os.CreateTemp(string(d), "filling-*")
	if err != nil {
		return err
	}
	if _, err = io.Copy(file, io.LimitReader(zeros, 2*smallDiskBytes)); errors.Is(err, unix.ENOSPC) {
		err = nil
		waitFor(ctx, during)
	} else if err == nil {
		err = errors.New("the disk did not become full")
	}
	return errors.Join(err, file.Close(), os.Remove(file.Name()))
}

func (d smallDisk) remove() error {
	if d == "" {
		return nil
	}
	return errors.Join(unix.Unmount(string(d), unix.MNT_DETACH), os.Remove(string(d)))
}
