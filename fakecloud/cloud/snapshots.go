package cloud

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/store"
)

const (
	snapshotSuffix = ".db"
	// maxSnapshots bounds how much disk space forgotten snapshots take.
	maxSnapshots = 100
)

// validSnapshot matches the names of snapshots, which are names of files too.
var validSnapshot = regexp.MustCompile(`^[a-z0-9][-a-z0-9.]{0,62}$`)

// Snapshot is the state of the whole cloud at one time, with all projects and tokens, in a
// file of its own.
type Snapshot struct {
	Name string
	// CreatedAt is the time of the clock of the cloud that saved it.
	CreatedAt time.Time
	// FileTime is when the file was written, in real time.
	FileTime time.Time
	Bytes    int64
}

// snapshotFiles orders the calls that read and write snapshots.
type snapshotFiles struct {
	mu  sync.Mutex
	dir string
	// onReplaced are called after a snapshot has taken the place of the state.
	onReplaced []func(context.Context) error
}

// removePartial removes the unfinished files of a process that was killed.
func (s *snapshotFiles) removePartial() error {
	if s.dir == "" {
		return nil
	}
	partials, err := filepath.Glob(filepath.Join(s.dir, "*"+store.PartialSuffix))
	for _, file := range partials {
		err = errors.Join(err, os.Remove(file))
	}
	return err
}

// OnReplaced has fn called after a snapshot has taken the place of the state, so that what
// is kept in memory can be read again.
func (c *Cloud) OnReplaced(fn func(context.Context) error) {
	c.snapshots.mu.Lock()
	defer c.snapshots.mu.Unlock()
	c.snapshots.onReplaced = append(c.snapshots.onReplaced, fn)
}

// SaveSnapshot saves the present state under a name that is free.
func (c *Cloud) SaveSnapshot(ctx context.Context, name string) (Snapshot, error) {
	c.snapshots.mu.Lock()
	defer c.snapshots.mu.Unlock()
	path, err := c.snapshotPath(name)
	if err != nil {
		return Snapshot{}, err
	}
	all, err := c.listSnapshots(ctx)
	switch {
	case err != nil:
		return Snapshot{}, err
	case slices.ContainsFunc(all, func(s Snapshot) bool { return s.Name == name }):
		return Snapshot{}, refuse(
			NameTaken, "there is a snapshot %q already: choose another name, or delete that one first", name,
		).withField("name", "is taken")
	case len(all) >= maxSnapshots:
		return Snapshot{}, refuse(
			QuotaExceeded, "there are %d snapshots already, which is the limit: delete some first", maxSnapshots,
		)
	}
	if err := os.MkdirAll(c.snapshots.dir, 0o700); err != nil {
		return Snapshot{}, err
	}
	if err := c.store.Backup(ctx, path); err != nil {
		return Snapshot{}, fmt.Errorf("snapshot %q: %w", name, refuseIfFull(err))
	}
	return c.describeSnapshot(ctx, name)
}

// ListSnapshots gives all snapshots, by name.
func (c *Cloud) ListSnapshots(ctx context.Context) ([]Snapshot, error) {
	c.snapshots.mu.Lock()
	defer c.snapshots.mu.Unlock()
	return c.listSnapshots(ctx)
}

// GetSnapshot describes a snapshot.
func (c *Cloud) GetSnapshot(ctx context.Context, name string) (Snapshot, error) {
	c.snapshots.mu.Lock()
	defer c.snapshots.mu.Unlock()
	return c.describeSnapshot(ctx, name)
}

// OpenSnapshot opens a snapshot's content, which is a SQLite database. The caller closes
// it.
func (c *Cloud) OpenSnapshot(ctx context.Context, name string) (io.ReadSeekCloser, Snapshot, error) {
	c.snapshots.mu.Lock()
	defer c.snapshots.mu.Unlock()
	s, err := c.describeSnapshot(ctx, name)
	if err != nil {
		return nil, s, err
	}
	f, err := os.Open(c.snapshotFile(name))
	return f, s, err
}

// DeleteSnapshot removes a snapshot.
func (c *Cloud) DeleteSnapshot(ctx context.Context, name string) error {
	c.snapshots.mu.Lock()
	defer c.snapshots.mu.Unlock()
	if _, err := c.describeSnapshot(ctx, name); err != nil {
		return err
	}
	return os.Remove(c.snapshotFile(name))
}

// RestoreSnapshot replaces the cloud's state by a snapshot's, completely or not at all.
// Every event stream ends and cannot be resumed. Balancers forward as the snapshot says.
// Callers that wait for an operation get it as it is in the snapshot. What the snapshot
// has due by now happens at once. A virtual clock moves to the snapshot's time if that is
// later, and stays otherwise.
//
// Tokens stay as they are, or one that was deleted or rotated since would open the cloud
// again. Those of a project that the snapshot does not have go with it, and a project that
// was deleted since comes back without any.
func (c *Cloud) RestoreSnapshot(ctx context.Context, name string) (Snapshot, error) {
	return c.restoreSnapshot(ctx, name, c.store.RestoreKeepingTokens)
}

// RestoreSnapshotWithTokens is RestoreSnapshot with the tokens of the snapshot in place of
// those of now.
func (c *Cloud) RestoreSnapshotWithTokens(ctx context.Context, name string) (Snapshot, error) {
	return c.restoreSnapshot(ctx, name, c.store.Restore)
}

// restoreFile brings a snapshot's file in.
type restoreFile func(ctx context.Context, path string) error

func (c *Cloud) restoreSnapshot(ctx context.Context, name string, restore restoreFile) (Snapshot, error) {
	ctx = context.WithoutCancel(ctx)
	c.snapshots.mu.Lock()
	defer c.snapshots.mu.Unlock()
	s, err := c.describeSnapshot(ctx, name)
	if err != nil {
		return s, err
	}
	if v := c.cfg.Virtual; v != nil {
		v.mu.Lock()
		defer v.mu.Unlock()
	}
	snapshotTime, err := c.checkSnapshotTime(ctx, name)
	if err != nil {
		return s, err
	}
	if err := c.replaceState(ctx, name, snapshotTime, restore); err != nil {
		return s, err
	}
	errs := []error{c.adoptClock(ctx)}
	for _, fn := range c.snapshots.onReplaced {
		errs = append(errs, fn(ctx))
	}
	// A rule of the state before may have held something since the snapshot was brought in.
	errs = append(errs, c.change(ctx, releaseHeld))
	// Until here nothing forwards: the balancers of the state before were stopped.
	errs = append(errs, c.restoreBalancers(ctx))
	c.wakeWorker()
	if err := errors.Join(errs...); err != nil {
		// Not wrapped: a refusal would say that nothing was changed.
		return s, fmt.Errorf("snapshot %q has taken the place of the state, but: %v", name, err) //nolint:errorlint // See above.
	}
	return s, nil
}

func (c *Cloud) replaceState(ctx context.Context, name string, snapshotTime time.Time, restore restoreFile) error {
	c.planeMu.Lock()
	defer c.planeMu.Unlock()
	c.replacing.Lock()
	defer c.replacing.Unlock()
	err := restore(ctx, c.snapshotFile(name))
	if errors.Is(err, store.ErrUnusable) {
		return refuse(SnapshotUnusable, "snapshot %q: %v", name, err)
	}
	if err != nil {
		return refuseIfFull(err)
	}
	if v := c.cfg.Virtual; v != nil {
		v.clock.Advance(max(snapshotTime.Sub(c.now()), 0))
	}
	for id := range c.forwarding {
		c.stopForwarding(id)
	}
	c.waiters.notifyAll()
	return c.Reload(ctx)
}

func (c *Cloud) snapshotFile(name string) string {
	return filepath.Join(c.snapshots.dir, name+snapshotSuffix)
}

func (c *Cloud) snapshotPath(name string) (string, error) {
	if !validSnapshot.MatchString(name) {
		return "", refuse(
			InvalidRequest,
			"%q cannot be a snapshot's name: want lower-case letters, digits, \"-\" and \".\", at most 63", name,
		).withField("name", "is not valid")
	}
	if c.snapshots.dir == "" {
		return "", refuse(SnapshotUnusable, "this cloud has no folder for snapshots")
	}
	return c.snapshotFile(name), nil
}

// describeSnapshot describes a snapshot. The lock is held.
func (c *Cloud) describeSnapshot(ctx context.Context, name string) (Snapshot, error) {
	absent := refuse(NotFound, "no snapshot %q; list those there are", name)
	if !validSnapshot.MatchString(name) || c.snapshots.dir == "" {
		return Snapshot{}, absent
	}
	info, err := os.Stat(c.snapshotFile(name))
	if errors.Is(err, fs.ErrNotExist) {
		return Snapshot{}, absent
	}
	if err != nil {
		return Snapshot{}, err
	}
	written := info.ModTime().UTC().Truncate(time.Millisecond)
	return Snapshot{Name: name, CreatedAt: c.savedAt(ctx, name, written), FileTime: written, Bytes: info.Size()}, nil
}

// savedAt is the virtual clock's time when a snapshot was saved. With the real clock it is
// the time at which its file was written. So it is for a file that cannot be read, and for
// one of a release without virtual clocks.
func (c *Cloud) savedAt(ctx context.Context, name string, written time.Time) time.Time {
	clock, err := store.ReadClock(ctx, c.snapshotFile(name))
	if err != nil || clock.Virtual == 0 {
		return written
	}
	return fromMillis(clock.Now)
}

// listSnapshots lists the folder's snapshots. The lock is held.
func (c *Cloud) listSnapshots(ctx context.Context) ([]Snapshot, error) {
	if c.snapshots.dir == "" {
		return nil, nil
	}
	files, err := os.ReadDir(c.snapshots.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var all []Snapshot
	for _, f := range files {
		name, ok := strings.CutSuffix(f.Name(), snapshotSuffix)
		if !ok || !validSnapshot.MatchString(name) {
			continue
		}
		s, err := c.describeSnapshot(ctx, name)
		if err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	return all, nil
}
