package lab

// `lab down`: for good, or with all that the lab knows kept for the next `up`.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/cluster/kind"
	"github.com/ccmlab/ccmlab/lab/cluster/local"
	"github.com/ccmlab/ccmlab/lab/process"
	"github.com/ccmlab/ccmlab/lab/state"
	"github.com/ccmlab/ccmlab/lab/timeline"
)

// remains is a lab of which only the folder's name is known: all that carries
// its mark, whatever its cluster was.
func remains(dir string) *Lab {
	st := state.In(dir, filepath.Base(dir))
	return &Lab{State: st, Cluster: remnants{lab: st}, Host: process.Host{Lab: dir}}
}

type remnants struct {
	cluster.Cluster // None: such a lab can do nothing but go down.
	lab             *state.Lab
}

func (r remnants) Down(ctx context.Context) (ended int, err error) {
	processes, err1 := local.NewSite(r.lab, local.Binaries{}).Down(ctx)
	containers, err2 := kind.Clear(ctx, r.lab)
	return processes + containers, errors.Join(err1, err2)
}

// Down ends everything of the lab and deletes its folder. It also works on
// what a crash left, and on a lab that is not there (then it says so).
func Down(ctx context.Context, name string) (ended int, err error) {
	dir, err := state.Dir(name)
	if err != nil {
		return 0, err
	}
	return DownDir(ctx, dir)
}

// DownDir is Down by the lab's folder.
func DownDir(ctx context.Context, dir string) (ended int, err error) {
	l := remains(dir)
	err = l.State.Lock()
	if errors.Is(err, fs.ErrNotExist) {
		return l.downWithoutFolder(ctx)
	}
	if err != nil {
		return 0, err
	}
	folder := l.State
	defer folder.Unlock()
	if err := folder.Ours(); err != nil && !l.haunted() {
		return 0, err
	}
	// What cannot be read, damaged or cut short, is to go all the same.
	if recorded, err := state.OpenDir(dir); err == nil {
		if whole, err := attach(recorded); err == nil {
			l = whole
		}
	}
	if ended, err = l.down(ctx); err != nil {
		return ended, interrupted(ctx, folder, err)
	}
	return ended, folder.Remove()
}

// haunted tells whether processes of the lab run: then the folder is theirs. Where
// somebody deletes it under them, a kubelet makes some of it anew.
func (l *Lab) haunted() bool {
	running, err := l.Host.Running()
	return err == nil && len(running) > 0
}

// downWithoutFolder makes the folder, so as to lock it: an `up` that begins
// meanwhile must not lose what it starts. Where none can be made, none begins.
func (l *Lab) downWithoutFolder(ctx context.Context) (ended int, err error) {
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
	ended, err = l.down(ctx)
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
	return ended, interrupted(ctx, l.State, err)
}

// interrupted says what to do after a Ctrl-C.
func interrupted(ctx context.Context, st *state.Lab, err error) error {
	if err == nil || ctx.Err() == nil {
		return err
	}
	return fmt.Errorf("interrupted; `lab down --name %s` again ends what is left", st.Name)
}

// down ends the agent first: it would boot again what ends. The cluster keeps
// its claim until all has ended.
func (l *Lab) down(ctx context.Context) (ended int, err error) {
	if ended, err = l.endAgent(ctx); err != nil {
		return ended, err
	}
	n, err := l.Cluster.Down(ctx)
	return ended + n, err
}

func (l *Lab) endAgent(ctx context.Context) (ended int, err error) {
	for {
		running, err := l.Host.Running()
		if err != nil || running[componentAgent] == nil {
			return ended, err
		}
		if err := errors.Join(process.Stop(ctx, downGrace, running[componentAgent]), ctx.Err()); err != nil {
			return ended, err
		}
		ended++
	}
}

// Pause ends everything of the lab and keeps what it knows: `lab up` comes back
// to the same cloud and the same cluster.
func Pause(ctx context.Context, name string) (ended int, err error) {
	l, err := OpenLocked(name)
	if err != nil {
		return 0, err
	}
	st := l.State
	defer st.Unlock()
	pausable, ok := l.Cluster.(cluster.Pausable)
	if !ok {
		return 0, fmt.Errorf("the state of lab %q is in its %s containers and goes with them: --keep-state is for the other kinds of cluster; without it `lab down --name %s` deletes all", name, st.Cluster, name)
	}
	if ended, err = l.endAgent(ctx); err == nil {
		var n int
		n, err = pausable.Pause(ctx)
		ended += n
	}
	if err == nil && ended > 0 {
		err = l.Timeline().Add(timeline.Change{Source: timeline.SourceLab, Subject: "lab/" + name, What: "stopped", Detail: "its state is kept"})
	}
	return ended, interrupted(ctx, st, err)
}

// Found is a lab of this user's, or what is left of one.
type Found struct {
	Name, Dir string
	// Leftover is one whose folder was deleted: some processes are all that there
	// is, and what they may have made of the folder anew.
	Leftover bool
}

// Find lists the labs of this user's folder, and what processes are left of
// others, wherever their folders were, in order.
func Find() ([]Found, error) {
	names, err := state.List()
	if err != nil {
		return nil, err
	}
	var all []Found
	for _, name := range names {
		dir, err := state.Dir(name)
		if err != nil {
			return nil, err
		}
		all = append(all, Found{Name: name, Dir: dir})
	}
	processes, err := process.All()
	for _, p := range processes {
		if p.Mine() && state.Deleted(p.Lab) {
			all = append(all, Found{Name: filepath.Base(p.Lab), Dir: p.Lab, Leftover: true})
		}
	}
	slices.SortFunc(all, func(a, b Found) int { return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Dir, b.Dir)) })
	return slices.Compact(all), err
}

// tenant names the lab that lives in the slot of another, as far as this user
// may see; "" if none does.
func tenant(st *state.Lab) string {
	processes, err := process.All()
	if err != nil {
		return ""
	}
	for _, p := range processes {
		other, err := state.OpenDir(p.Lab)
		if err == nil && p.Lab != st.Path() && other.Slot == st.Slot && st.Slot != 0 {
			return fmt.Sprintf(", where lab %q of %s lives now", other.Name, filepath.Dir(p.Lab))
		}
	}
	return ""
}
