package store_test

import (
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
	"github.com/ccmlab/ccmlab/fakecloud/store"
)

// written is a data file with some hundred rows, and its path.
func written(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "cloud.db")
	s := must.Do(store.Open(t.Context(), path))(t)
	require.NoError(t, s.Write(t.Context(), func(tx *store.Tx) error {
		errs := []error{addProject(t.Context(), tx, "p")}
		for n := range int64(300) {
			errs = append(errs, addInstance(t.Context(), tx, n))
		}
		return errors.Join(errs...)
	}))
	require.NoError(t, s.Close())
	return path
}

// crashed is what a killed process leaves: the data file and a log of some
// changes, each of one commit.
func crashed(t *testing.T, changes int) string {
	t.Helper()
	dir := t.TempDir()
	s := open(t, filepath.Join(dir, "live.db"))
	for n := range changes {
		require.NoError(t, s.Write(t.Context(), func(tx *store.Tx) error {
			return addProject(t.Context(), tx, fmt.Sprintf("p%d", n))
		}))
	}
	copyWithLog(t, filepath.Join(dir, "live.db"), filepath.Join(dir, "cloud.db"))
	return filepath.Join(dir, "cloud.db")
}

func copyWithLog(t *testing.T, from, to string) {
	t.Helper()
	for _, beside := range []string{"", "-wal"} {
		edit(t, from+beside, to+beside, func(b []byte) []byte { return b })
	}
}

func edit(t *testing.T, from, to string, change func([]byte) []byte) {
	t.Helper()
	require.NoError(t, os.WriteFile(to, change(must.Do(os.ReadFile(from))(t)), 0o600))
}

// flip turns over a run of bytes.
func flip(from, n int) func([]byte) []byte {
	return func(b []byte) []byte {
		for i := from; i < from+n; i++ {
			b[i] ^= 0xff
		}
		return b
	}
}

// refused asserts that neither Open, CheckFile nor Restore takes the file, all
// say so, and that it is as it was afterwards.
func refused(t *testing.T, path, want string) {
	t.Helper()
	read := func() string {
		db, _ := os.ReadFile(path) // A directory has none.
		wal, _ := os.ReadFile(path + "-wal")
		return string(db) + "|" + string(wal)
	}
	before := read()
	_, err := store.Open(t.Context(), path)
	require.ErrorContains(t, err, want)
	require.ErrorContains(t, err, path)
	require.ErrorContains(t, err, "left untouched")
	require.ErrorContains(t, store.CheckFile(t.Context(), path), want)
	kept := filepath.Join(t.TempDir(), "kept.db")
	s := open(t, kept)
	add(t, s, "kept")
	require.NoError(t, s.Close())
	require.ErrorContains(t, store.Restore(t.Context(), kept, path), "nothing was changed")
	assert.Equal(t, []string{"kept"}, projects(t, open(t, kept)))
	assert.True(t, before == read(), "the file was changed")
}

func TestDamagedFilesAreRefusedAndUntouched(t *testing.T) {
	const page = 4096
	sound := written(t)
	for name, damage := range map[string]func([]byte) []byte{
		"truncated":                func(b []byte) []byte { return b[:len(b)/2] },
		"truncated within a page":  func(b []byte) []byte { return b[:len(b)-page/2] },
		"truncated to its header":  func(b []byte) []byte { return b[:100] },
		"a page of flipped bits":   func(b []byte) []byte { return flip(len(b)/2/page*page, page)(b) },
		"bytes of a page's header": func(b []byte) []byte { return flip(len(b)/2/page*page, 8)(b) },
		"pages of zeros": func(b []byte) []byte {
			clear(b[len(b)/2/page*page:][:4*page])
			return b
		},
		"the first page's schema": func(b []byte) []byte { return flip(100, page-100)(b) },
		"not SQLite's":            func(b []byte) []byte { return append([]byte("a shopping list, no database\n"), b...) },
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "cloud.db")
			edit(t, sound, path, damage)
			refused(t, path, "not a usable database")
			require.ErrorIs(t, store.CheckFile(t.Context(), path), store.ErrUnusable)
		})
	}
	require.NoError(t, store.CheckFile(t.Context(), sound))
}

func TestForeignFilesAreRefusedAndUntouched(t *testing.T) {
	for statement, want := range map[string]string{
		"CREATE TABLE recipes (name TEXT)": "another program's",
		"CREATE TABLE goose_db_version (version_id INTEGER); INSERT INTO goose_db_version VALUES (99999)": "newer fakecloud (schema 99999",
		"CREATE TABLE p (id INTEGER PRIMARY KEY); CREATE TABLE c (p REFERENCES p); INSERT INTO c VALUES (7); " +
			"CREATE TABLE goose_db_version (version_id INTEGER); INSERT INTO goose_db_version VALUES (1)": "row 1 of table c refers to one that is missing in table p",
	} {
		path := filepath.Join(t.TempDir(), "cloud.db")
		conn := must.Do(sql.Open("sqlite3", path))(t)
		_, err := conn.ExecContext(t.Context(), statement)
		require.NoError(t, errors.Join(err, conn.Close()))
		refused(t, path, want)
	}
}

func TestWhatCannotBeReadIsRefused(t *testing.T) {
	dir := t.TempDir()
	refused(t, dir, "is a directory")
	loop := filepath.Join(dir, "loop.db")
	require.NoError(t, os.Symlink(loop, loop))
	_, err := store.Open(t.Context(), loop)
	require.ErrorContains(t, err, "too many links")
	if os.Geteuid() == 0 {
		t.Log("root may read everything")
		return
	}
	secret := written(t)
	require.NoError(t, os.Chmod(secret, 0))
	refused(t, secret, "permission denied")
}

// A log is damaged if what was acknowledged is; what a crash can leave is not.
func TestDamagedLogs(t *testing.T) {
	const changes = 6
	// pages are where the pages of each change begin in the log.
	pages := func(b []byte) (starts []int) {
		begins := true
		for at := 32; at < len(b); at += 24 + 4096 {
			if begins {
				starts = append(starts, at)
			}
			begins = binary.BigEndian.Uint32(b[at+4:]) != 0
		}
		require.Len(t, starts, changes)
		return starts
	}
	for name, c := range map[string]struct {
		damage func([]byte) []byte
		want   string // or how many changes are there afterwards:
		left   int
	}{
		"whole":              {func(b []byte) []byte { return b }, "", 6},
		"header":             {flip(4, 20), "damaged header", 0},
		"header's checksum":  {flip(24, 8), "damaged header", 0},
		"first page":         {flip(500, 1), "damaged before page", 0},
		"page in the middle": {func(b []byte) []byte { return flip(pages(b)[2]+1000, 5)(b) }, "damaged before page", 0},
		"head of one":        {func(b []byte) []byte { return flip(pages(b)[2], 24)(b) }, "damaged before page", 0},
		"zeros in the middle": {
			func(b []byte) []byte { clear(b[pages(b)[1]:pages(b)[3]]); return b }, "damaged before page", 0,
		},
		"last change torn":            {func(b []byte) []byte { return flip(pages(b)[5]+1000, 5)(b) }, "", 5},
		"last change cut off":         {func(b []byte) []byte { return b[:pages(b)[5]+2000] }, "", 5},
		"nothing but a broken header": {func(b []byte) []byte { return flip(4, 20)(b[:32]) }, "", 0},
		"empty":                       {func(b []byte) []byte { return nil }, "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			path := crashed(t, changes)
			edit(t, path+"-wal", path+"-wal", c.damage)
			if c.want != "" {
				refused(t, path, c.want)
				return
			}
			require.NoError(t, store.CheckFile(t.Context(), path))
			assert.Len(t, projects(t, open(t, path)), c.left)
		})
	}
}

// Wherever a log is damaged: what was acknowledged before its last two changes
// is there, or the file is refused.
func TestNoDamageToALogGoesUnseen(t *testing.T) {
	const changes = 4
	path := crashed(t, changes)
	log := must.Do(os.ReadFile(path + "-wal"))(t)
	rapid.Check(t, func(rt *rapid.T) {
		at := rapid.IntRange(0, len(log)-1).Draw(rt, "at")
		n := rapid.IntRange(1, min(5000, len(log)-at)).Draw(rt, "n")
		hurt := filepath.Join(must.Do(os.MkdirTemp(t.TempDir(), ""))(rt), "cloud.db")
		edit(t, path, hurt, func(b []byte) []byte { return b })
		edit(t, path+"-wal", hurt+"-wal", flip(at, n))
		s, err := store.Open(t.Context(), hurt)
		if err != nil {
			require.ErrorIs(rt, err, store.ErrUnusable)
			return
		}
		defer func() { require.NoError(rt, s.Close()) }()
		require.GreaterOrEqual(rt, len(projects(t, s)), changes-2)
	})
}

// A log is part of its data file, and not thrown away when that is gone.
func TestALogWithoutItsFileIsRefused(t *testing.T) {
	path := crashed(t, 3)
	require.NoError(t, os.Truncate(path, 0))
	refused(t, path, "not a usable database")
	require.NoError(t, os.Remove(path))
	_, err := store.Open(t.Context(), path)
	require.ErrorContains(t, err, "its write-ahead log (-wal) is there")
	assert.NoFileExists(t, path)
	assert.FileExists(t, path+"-wal")
}

// Whatever SQLite leaves in a log is no damage: pages of the log before it, and
// of changes that were undone when some of them had been written already.
func TestLogsThatBeganAnewAreSound(t *testing.T) {
	dir := t.TempDir()
	s := open(t, filepath.Join(dir, "live.db"))
	copied := filepath.Join(dir, "copy.db")
	var n int
	change := func(rows int, outcome error) {
		require.ErrorIs(t, s.Write(t.Context(), func(tx *store.Tx) error {
			for range rows {
				n++
				if err := addProject(t.Context(), tx, strings.Repeat("x", 3000)+fmt.Sprint(n)); err != nil {
					return err
				}
			}
			return outcome
		}), outcome)
	}
	sound := func() {
		t.Helper()
		copyWithLog(t, filepath.Join(dir, "live.db"), copied)
		require.NoError(t, store.CheckFile(t.Context(), copied))
	}
	for s.Stats().Checkpoints == 0 {
		change(1000, nil)
	}
	change(10, nil)
	sound()
	change(1000, errBoom)
	sound()
	change(10, nil)
	sound()
}
