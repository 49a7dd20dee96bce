package lifecycle

// `lab down`: for good, or with all that the lab knows kept for the next `up`.

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/ccmlab/ccmlab/lab"
	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/cluster/local"
	"github.com/ccmlab/ccmlab/lab/process"
	"github.com/ccmlab/ccmlab/lab/state"
	"github.com/ccmlab/ccmlab/lab/timeline"
)

// labOfFolder is a lab of which only the folder is known. Whatever carries the folder's mark
// is taken for its own, whatever its cluster was.
func labOfFolder(dir string) *lab.Lab {
	st := state.InDir(dir, filepath.Base(dir))
	return &lab.Lab{State: st, Cluster: unknownCluster{lab: st}, Host: process.Host{Lab: dir}}
}

// unknownCluster is that of a lab whose record cannot be read.
type unknownCluster struct {
	cluster.Cluster // None: such a lab can do nothing but go down.
	lab             *state.Lab
}

// Down ends the processes of the lab, and has each kind of cluster delete what carries the
// lab's mark.
func (u unknownCluster) Down(ctx context.Context) (ended int, err error) {
	ended, err = local.NewSite(u.lab, cluster.Binaries{}).Down(ctx)
	for _, kind := range cluster.Kinds() {
		if kind.DeleteRemains != nil {
			n, remainsErr := kind.DeleteRemains(ctx, u.lab)
			ended, err = ended+n, errors.Join(err, remainsErr)
		}
	}
	return ended, err
}

// downGrace is how long the agent has to end by itself.
const downGrace = 1500 * time.Millisecond

// Down ends everything of the lab and deletes its folder. It also ends what a crash left.
// If there is no such lab it returns state.ErrNone.
func Down(ctx context.Context, name string) (ended int, err error) {
	dir, err := state.Dir(name)
	if err != nil {
		return 0, err
	}
	return DownDir(ctx, dir)
}

// DownDir is Down by the lab's folder.
func DownDir(ctx context.Context, dir string) (ended int, err error) {
	l := labOfFolder(dir)
	err = l.State.Lock()
	if errors.Is(err, fs.ErrNotExist) {
		return downWithoutFolder(ctx, l)
	}
	if err != nil {
		return 0, err
	}
	folder := l.State
	defer folder.Unlock()
	if err := folder.CheckContents(); err != nil && !hasRunningProcesses(l) {
		return 0, err
	}
	// What cannot be read, damaged or cut short, is to go all the same.
	if recorded, err := state.OpenDir(dir); err == nil {
		if whole, err := lab.Attach(recorded); err == nil {
			l = whole
		}
	}
	if ended, err = endLab(ctx, l); err != nil {
		return ended, explainInterrupt(ctx, folder, err)
	}
	return ended, folder.Remove()
}

// hasRunningProcesses tells whether processes of the lab run. Then the folder is the lab's
// even without a record: if somebody deletes it under them, a kubelet makes some of it
// anew.
func hasRunningProcesses(l *lab.Lab) bool {
	running, err := l.Host.Running()
	return err == nil && len(running) > 0
}

// downWithoutFolder takes down a lab whose folder is gone. It makes the folder so as to
// lock it: an `up` that begins meanwhile must not lose what it starts. Where the folder
// cannot be made, no `up` can begin either.
func downWithoutFolder(ctx context.Context, l *lab.Lab) (ended int, err error) {
	dir := l.State.Path()
	var parents []string // That are not there either.
	for d := filepath.Dir(dir); ; d = filepath.Dir(d) {
		if _, err := os.Stat(d); !errors.Is(err, fs.ErrNotExist) {
			break
		}
		parents = append(parents, d)
	}
	folder, err := state.CreateDir(dir)
	made := err == nil
	if _, missing := os.Stat(dir); !made && missing == nil {
		return 0, err // Another command was faster.
	}
	ended, err = endLab(ctx, l)
	if made {
		err = errors.Join(err, folder.Remove())
		for _, d := range parents {
			_ = os.Remove(d) // Fails when somebody has put something there.
		}
		folder.Unlock()
	}
	if err == nil && ended == 0 {
		err = fmt.Errorf("%w: %q (looked in %s)", state.ErrNone, l.State.Name, dir)
	}
	return ended, explainInterrupt(ctx, l.State, err)
}

// explainInterrupt says what to do after a Ctrl-C.
func explainInterrupt(ctx context.Context, st *state.Lab, err error) error {
	if err == nil || ctx.Err() == nil {
		return err
	}
	return fmt.Errorf("interrupted; `lab down --name %s` again ends what is left", st.Name)
}

// endLab ends the agent, which would boot again what ends, and then the cluster. The
// cluster keeps its claim until all has ended.
func endLab(ctx context.Context, l *lab.Lab) (ended int, err error) {
	if ended, err = endAgent(ctx, l); err != nil {
		return ended, err
	}
	n, err := l.Cluster.Down(ctx)
	return ended + n, err
}

// endAgent ends the agent, and one that was started meanwhile.
func endAgent(ctx context.Context, l *lab.Lab) (ended int, err error) {
	for {
		running, err := l.Host.Running()
		if err != nil || running[lab.ComponentAgent] == nil {
			return ended, err
		}
		if err := errors.Join(process.Stop(ctx, downGrace, running[lab.ComponentAgent]), ctx.Err()); err != nil {
			return ended, err
		}
		ended++
	}
}

// Pause ends everything of the lab and keeps what it knows: `lab up` comes back
// to the same cloud and the same cluster.
func Pause(ctx context.Context, name string) (ended int, err error) {
	l, err := lab.OpenLocked(name)
	if err != nil {
		return 0, err
	}
	st := l.State
	defer st.Unlock()
	pausable, ok := l.Cluster.(cluster.Pausable)
	if !ok {
		return 0, fmt.Errorf(
			"the state of lab %q is in its %s containers and goes with them: --keep-state is for the other kinds of cluster; without it `lab down --name %s` deletes all",
			name, st.Cluster, name,
		)
	}
	if ended, err = endAgent(ctx, l); err == nil {
		var n int
		n, err = pausable.Pause(ctx)
		ended += n
	}
	if err == nil && ended > 0 {
		err = l.Timeline().Add(timeline.Change{
			Source: timeline.SourceLab, Subject: "lab/" + name, What: "stopped", Detail: "its state is kept",
		})
	}
	return ended, explainInterrupt(ctx, st, err)
}
