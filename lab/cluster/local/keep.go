package local

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/ccmlab/ccmlab/lab/process"
)

const (
	// healthyRun is how long a process must have lived for its end not to
	// count as a failure of its start.
	healthyRun = 10 * time.Second
	maxDelay   = 30 * time.Second
)

// restartDelay keeps a process that dies at once from being restarted in a
// tight loop.
const restartDelay = time.Second

// stopGrace is how long a process has to end by itself.
const stopGrace = 3 * time.Second

// Keeper keeps one process running for as long as a file, the mark, is there.
// Whoever wants the process makes the mark; whoever does not removes it and
// ends the process.
type Keeper struct {
	Mark    string
	Running func() (*process.Process, error) // nil if it does not run
	Start   func() (*process.Process, error)
	Log     *slog.Logger
}

// Run works until ctx ends, and leaves the process as it is then. A process
// that ends soon after its start is started again later and later.
func (k Keeper) Run(ctx context.Context) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return err
	}
	defer func() { _ = watcher.Close() }()
	if err := watcher.Add(filepath.Dir(k.Mark)); err != nil {
		return err
	}
	delay := restartDelay
	for ctx.Err() == nil {
		began := time.Now()
		p, err := k.findOrStart(ctx)
		if err != nil {
			k.Log.Error("keeping the CCM running", "error", err)
		}
		if p == nil && err == nil { // Not wanted.
			delay = restartDelay
			k.waitForMark(ctx, watcher)
			continue
		}
		if p != nil && p.Wait(ctx) != nil {
			return nil
		}
		if time.Since(began) > healthyRun {
			delay = restartDelay
		}
		k.Log.Info("the CCM ended", "again", k.isWanted(), "after", delay)
		select {
		case <-ctx.Done():
		case <-time.After(delay):
		}
		delay = min(2*delay, maxDelay)
	}
	return nil
}

func (k Keeper) isWanted() bool {
	_, err := os.Stat(k.Mark)
	return err == nil
}

// findOrStart returns the process, started if need be; nil if it is not wanted.
func (k Keeper) findOrStart(ctx context.Context) (*process.Process, error) {
	p, err := k.Running()
	if err != nil || p != nil || !k.isWanted() {
		return p, err
	}
	if p, err = k.Start(); err != nil {
		return nil, err
	}
	k.Log.Info("started the CCM", "pid", p.PID)
	if !k.isWanted() { // It was removed just now, by somebody who saw nothing running.
		return nil, process.Stop(ctx, stopGrace, p)
	}
	return p, nil
}

func (k Keeper) waitForMark(ctx context.Context, w *fsnotify.Watcher) {
	for !k.isWanted() {
		select {
		case <-w.Events:
		case err := <-w.Errors:
			k.Log.Error("watching for the CCM's mark", "error", err)
		case <-ctx.Done():
			return
		}
	}
}
