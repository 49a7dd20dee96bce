package driver

// A driver that the suite starts.

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/ccmlab/ccmlab/lab/conformance/driver/protocol"
	"github.com/ccmlab/ccmlab/lab/process"
)

// Component is the program's name among the lab's processes, by which the lab ends what a suite that
// was killed left behind.
const Component = "conformance-driver"

// Program is how a driver is started.
type Program struct {
	Path string
	Args []string
	// Env is added to a small environment, as NAME=value.
	Env []string
	// Host and LogFile are of the lab that it runs in; what it says is appended to the file.
	Host    process.Host
	LogFile string
}

// Running is a driver that was started.
type Running struct {
	Address Address
	process *process.Process
	folder  string // of its socket
}

// Start returns when the program runs, which does not say that it listens.
func (p Program) Start() (*Running, error) {
	// A socket's path must be short, and a lab's folder may be anywhere.
	folder, err := os.MkdirTemp("", "ccmlab-driver-")
	if err != nil {
		return nil, err
	}
	socket := filepath.Join(folder, "socket")
	started, err := p.Host.Start(process.Spec{
		Component: Component, Path: p.Path, Args: p.Args, LogFile: p.LogFile,
		Env: append([]string{protocol.EnvSocket + "=" + socket}, p.Env...),
	})
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(folder))
	}
	return &Running{Address: Address{network: "unix", target: socket}, process: started, folder: folder}, nil
}

// lastWords is how many lines of a driver that has ended an error has.
const lastWords = 5

// Ended is an error when the program has ended, with the last that it said.
func (r *Running) Ended() error {
	if r.process.Alive() {
		return nil
	}
	exit := "exit status 0"
	if err := r.process.Exit(); err != nil {
		exit = err.Error()
	}
	said, err := process.Tail(r.process.LogFile, lastWords)
	if err != nil {
		said = []string{err.Error()}
	}
	return fmt.Errorf("the driver's program has ended: %s; it said last: %s", exit, strings.Join(said, " / "))
}

// stopGrace is how long it has to end when it is asked to: it may have things in the cloud to delete.
const stopGrace = 20 * time.Second

// Stop asks it to end, and kills it if it does not.
func (r *Running) Stop(ctx context.Context) error {
	return errors.Join(process.Stop(ctx, stopGrace, r.process), os.RemoveAll(r.folder))
}
