package cloud

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/api"
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
type Snapshot = api.Snapshot

// snapshotFiles orders the calls that read and write snapshots.
type snapshotFiles struct {
	mu  sync.Mutex
	dir string
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
func (c *Cloud) OpenSnapshot(ctx context.Context, name string) (*os.File, error) {
	c.snapshots.mu.Lock()
	defer c.snapshots.mu.Unlock()
	if _, err := c.describeSnapshot(ctx, name); err != nil {
		return nil, err
	}
	return os.Open(c.snapshotFile(name))
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
	return Snapshot{Name: name, CreatedAt: c.savedAt(ctx, name, written), Bytes: info.Size()}, nil
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
	all := []Snapshot{}
	if c.snapshots.dir == "" {
		return all, nil
	}
	files, err := os.ReadDir(c.snapshots.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return all, nil
	}
	if err != nil {
		return nil, err
	}
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
