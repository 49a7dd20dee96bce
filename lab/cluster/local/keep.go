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

// restartDelay is the first delay before a restart. It prevents a tight loop when a
// process ends at once.
const restartDelay = time.Second

// stopGrace is how long a process may take to end by itself.
const stopGrace = 3 * time.Second

// Keeper keeps one process running as long as a file, the mark, exists. To start the
// process, create the mark; to stop it, remove the mark and end the process.
type Keeper struct {
	Mark    string
	Running func() (*process.Process, error) // nil if it does not run
	Start   func() (*process.Process, error)
	Log     *slog.Logger
}

// Run works until ctx ends, and then leaves the process as it is. The restart delay
// grows while the process ends soon after each start.
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
