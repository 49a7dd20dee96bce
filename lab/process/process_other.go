//go:build !linux

package process

// On other systems the lab's command builds, and says why it starts nothing.

import (
	"context"
	"fmt"
	"runtime"
	"syscall"
)

// Supported is an error where the lab cannot keep track of processes.
func Supported() error {
	return fmt.Errorf(
		"the lab needs Linux, this is %s: it finds its processes in /proc, and listens on all of 127.0.0.0/8; use a Linux virtual machine or container",
		runtime.GOOS,
	)
}

func setParentDeathSignal(*syscall.SysProcAttr) {}

func scanProcesses() ([]Found, error) { return nil, Supported() }

func readStartTicks(int) (ticks uint64, alive bool) { return 0, false }

func (p *Process) awaitEnd(context.Context) error { return Supported() }

// Signal sends sig, unless the process has ended.
func (p *Process) Signal(syscall.Signal) error { return Supported() }

// FreeSpace is how many bytes a user may still write to the file system of a path.
func FreeSpace(string) (free uint64, err error) { return 0, Supported() }

// IsDiskFull tells whether nothing more can be written to a folder.
func IsDiskFull(string) bool { return false }
