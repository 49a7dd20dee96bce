package state_test

import (
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/lab/atomicfile"
	"github.com/ccmlab/ccmlab/lab/state"
)

func TestLabFolderLifecycle(t *testing.T) {
	t.Setenv("CCMLAB_HOME", "")
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	home, err := state.Root()
	require.NoError(t, err)
	_, err = state.Open("lab")
	require.ErrorIs(t, err, state.ErrNone)
	require.ErrorContains(t, err, "`lab up` makes one")
	t.Setenv("CCMLAB_SEAT", "seat-07")
	_, err = state.Open("lab")
	require.ErrorContains(t, err, "`lab lesson reset` makes those of your lesson again")
	assert.NotContains(t, err.Error(), "lab up", "that would make one beside the lesson's")

	l, err := state.Create("lab")
	require.NoError(t, err)
	_, err = state.Create("lab")
	assert.ErrorContains(t, err, "another command is working on lab")
	l.Slot, l.Ports["kube-apiserver"] = 42, 6443
	require.NoError(t, l.Save())
	l.Unlock()

	again, err := state.Open("lab")
	require.NoError(t, err)
	assert.Equal(t, 42, again.Slot)
	assert.Equal(t, map[string]int{"kube-apiserver": 6443}, again.Ports)
	info, err := os.Stat(again.Path("lab.json"))
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode().Perm())

	other, err := state.Create("other")
	require.NoError(t, err)
	require.NoError(t, again.Remove())
	assert.DirExists(t, home, "another lab still lives there")
	require.NoError(t, other.Remove())
	assert.NoDirExists(t, home)
}

func TestDamagedRecord(t *testing.T) {
	t.Setenv("CCMLAB_HOME", t.TempDir())
	l, err := state.Create("lab")
	require.NoError(t, err)
	require.NoError(t, os.Mkdir(l.Path("pki"), 0o700))
	for _, cut := range []string{"", "{", `{"name":"lab"`} {
		require.NoError(t, atomicfile.Write(l.Path("lab.json"), []byte(cut)))
		_, err = state.Open("lab")
		assert.ErrorContains(t, err, "`lab down --name lab` removes it", cut)
		assert.NoError(t, l.CheckContents(), cut)
	}
}

// A lab without a record has a name and a path, and nothing on disk.
func TestUnrecorded(t *testing.T) {
	t.Setenv("CCMLAB_HOME", t.TempDir())
	l, err := state.Unrecorded("lab")
	require.NoError(t, err)
	dir, err := state.Dir("lab")
	require.NoError(t, err)
	assert.Equal(t, "lab", l.Name)
	assert.Equal(t, dir, l.Path())
	assert.NoDirExists(t, dir, "nothing is made")
	assert.Error(t, l.Lock())
	require.NoError(t, l.Remove(), "there is nothing to remove")
	l.Ports["etcd"] = 1 // Not a nil map.

	damaged, err := state.Create("lab")
	require.NoError(t, err)
	require.NoError(t, atomicfile.Write(damaged.Path("lab.json"), []byte("{")))
	damaged.Unlock()
	require.NoError(t, l.Lock())
	defer l.Unlock()
	require.NoError(t, l.Remove())
	assert.NoDirExists(t, dir)
	_, err = state.Unrecorded("../lab")
	assert.ErrorContains(t, err, "lab name")
}

func TestLabNames(t *testing.T) {
	t.Setenv("CCMLAB_HOME", t.TempDir())
	for _, bad := range []string{
		"", "..", "a/b", "A", "-a", "a-", "a b", "this-name-is-longer-than-a-lab-may-be-named-here",
	} {
		_, err := state.Dir(bad)
		assert.ErrorContains(t, err, "lab name", "%q", bad)
	}
	for _, good := range []string{"a", "lab", "seat-12"} {
		_, err := state.Dir(good)
		assert.NoError(t, err)
	}
}

func TestList(t *testing.T) {
	home := filepath.Join(t.TempDir(), "labs")
	t.Setenv("CCMLAB_HOME", home)
	names, err := state.List()
	require.NoError(t, err, "no folder is no labs")
	assert.Empty(t, names)

	for _, name := range []string{"second", "damaged", "first"} {
		l, err := state.Create(name)
		require.NoError(t, err)
		require.NoError(t, l.Save())
		l.Unlock()
	}
	require.NoError(t, os.WriteFile(filepath.Join(home, "damaged", "lab.json"), []byte("{"), 0o600))
	require.NoError(t, os.Mkdir(filepath.Join(home, "damaged", "logs"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(home, "file"), nil, 0o600))
	for name, record := range map[string]string{
		"notes": `{"title":"of a laboratory"}`, "renamed": `{"name":"first"}`, "cut": `{"title":`,
		"number": `{"name":1}`, "blank": "",
	} {
		require.NoError(t, os.Mkdir(filepath.Join(home, name), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(home, name, "lab.json"), []byte(record), 0o600))
		require.NoError(t, os.WriteFile(filepath.Join(home, name, "data"), nil, 0o600))
		l, err := state.Unrecorded(name)
		require.NoError(t, err)
		assert.ErrorContains(t, l.CheckContents(), "is no lab's folder, it holds", name)
	}
	require.NoError(t, os.Mkdir(filepath.Join(home, "stranger"), 0o700))
	require.NoError(t, os.MkdirAll(filepath.Join(home, "Not-A-Name", "lab.json"), 0o700))
	names, err = state.List()
	require.NoError(t, err)
	assert.Equal(t, []string{"damaged", "first", "second"}, names, "what can be read and what cannot, and no stranger")
}

// The error of each record that cannot be used says what is wrong, and what removes the lab.
func TestInvalidRecords(t *testing.T) {
	t.Setenv("CCMLAB_HOME", t.TempDir())
	l, err := state.Create("lab")
	require.NoError(t, err)
	defer l.Unlock()
	require.NoError(t, os.Mkdir(l.Path("pki"), 0o700))
	for record, want := range map[string]string{
		"": "is damaged", "[]": "is damaged", `{"name":1}`: "is damaged", "\x00": "is damaged",
		"{}": `it is called ""`, `{"name":"other","slot":30,"ports":{"etcd":1}}`: `it is called "other"`,
		`{"name":"lab"}`: "does not say which addresses",
		`{"name":"lab","slot":-1,"ports":{"etcd":1}}`:             "does not say which addresses",
		`{"name":"lab","slot":256,"ports":{"etcd":1}}`:            "does not say which addresses",
		`{"name":"lab","slot":30,"cluster":"external"}`:           "does not say which addresses",
		`{"name":"lab","slot":30,"ports":{"etcd":1},"format":99}`: "was made by a newer version",
	} {
		require.NoError(t, atomicfile.Write(l.Path("lab.json"), []byte(record)))
		_, err := state.Open("lab")
		require.ErrorContains(t, err, want, record)
		if l.CheckContents() == nil {
			assert.ErrorContains(t, err, "`lab down --name lab` removes", record)
		} else {
			assert.ErrorContains(t, err, "delete the folder "+l.Path()+" yourself", record)
		}
	}
	require.NoError(
		t, atomicfile.Write(l.Path("lab.json"), []byte(`{"name":"lab","slot":30,"ports":{"etcd":1},"later":"field"}`)),
	)
	_, err = state.Open("lab")
	assert.NoError(t, err, "one from before formats had numbers, with an unknown field")
}

// Where no folder can be made, the error says so and what to set.
func TestFolderCannotBeMade(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	t.Setenv("CCMLAB_HOME", file)
	_, err := state.Create("lab")
	assert.ErrorContains(t, err, "a part of the path is a file: set CCMLAB_HOME")
	_, err = state.Open("lab")
	assert.ErrorContains(t, err, "a part of the path is a file: set CCMLAB_HOME")
	blank, err := state.Unrecorded("lab")
	require.NoError(t, err)
	assert.ErrorContains(t, blank.Lock(), "a part of the path is a file: set CCMLAB_HOME")

	t.Setenv("CCMLAB_HOME", "")
	t.Setenv("XDG_STATE_HOME", "relative/is/ignored")
	t.Setenv("HOME", "")
	_, err = state.Create("lab")
	assert.ErrorContains(t, err, "set CCMLAB_HOME or HOME")

	if os.Geteuid() != 0 { // root may write anywhere.
		dir := t.TempDir()
		require.NoError(t, os.Chmod(dir, 0o500))
		t.Setenv("CCMLAB_HOME", dir)
		_, err = state.Create("lab")
		assert.ErrorContains(t, err, "set CCMLAB_HOME to a folder you may write")
	}
}

func TestEnter(t *testing.T) {
	t.Setenv("CCMLAB_HOME", t.TempDir())
	l, fresh, err := state.Enter("lab")
	require.NoError(t, err)
	assert.True(t, fresh)
	_, _, err = state.Enter("lab")
	require.ErrorContains(t, err, `another command is working on lab "lab": `+"`state.test ")
	l.Slot, l.Ports["etcd"] = 42, 2379
	require.NoError(t, l.Save())
	l.Unlock()

	again, fresh, err := state.Enter("lab")
	require.NoError(t, err)
	assert.False(t, fresh)
	assert.Equal(t, 42, again.Slot)
	_, _, err = state.Enter("lab")
	assert.ErrorContains(t, err, "another command", "it is locked as well")
	require.NoError(t, again.Remove())
	again.Unlock()
	assert.NoDirExists(t, l.Path())
}

// A folder that a crash left half made or half deleted is no lab, and is emptied. A folder that
// never was a lab's is left alone.
func TestEnterAfterCrash(t *testing.T) {
	t.Setenv("CCMLAB_HOME", t.TempDir())
	for name, files := range map[string][]string{
		"made": {".new-123"}, "removed": {"removing.json", "etcd", "pki"}, "empty": nil,
	} {
		l, err := state.Unrecorded(name)
		require.NoError(t, err)
		require.NoError(t, os.Mkdir(l.Path(), 0o700))
		for _, f := range files {
			require.NoError(t, os.WriteFile(l.Path(f), nil, 0o600))
		}
		entered, fresh, err := state.Enter(name)
		require.NoError(t, err, name)
		assert.True(t, fresh, name)
		left, err := filepath.Glob(l.Path("*"))
		require.NoError(t, err)
		assert.Empty(t, left, name)
		entered.Unlock()
	}

	l, err := state.Unrecorded("photos")
	require.NoError(t, err)
	require.NoError(t, os.Mkdir(l.Path(), 0o700))
	require.NoError(t, os.WriteFile(l.Path("cat.jpg"), nil, 0o600))
	_, _, err = state.Enter("photos")
	require.ErrorContains(t, err, "is no lab's folder, it holds cat.jpg")
	assert.FileExists(t, l.Path("cat.jpg"))
	require.NoError(t, l.Lock(), "it is not left locked")
	l.Unlock()

	require.NoError(t, os.WriteFile(l.Path("lab.json"), []byte("{"), 0o600))
	_, _, err = state.Enter("photos")
	require.ErrorContains(t, err, "is damaged")
	require.NoError(t, l.Lock(), "nor is that")
	l.Unlock()
}

// A command that holds the lock holds it on the folder that exists, not on one that another
// command has deleted meanwhile.
func TestConcurrentEnterAndRemove(t *testing.T) {
	t.Setenv("CCMLAB_HOME", t.TempDir())
	var inside atomic.Int32
	var entered atomic.Int32
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 200 {
				l, _, err := state.Enter("lab")
				if err != nil {
					assert.ErrorContains(t, err, "another command is working on lab")
					continue
				}
				assert.Equal(t, int32(1), inside.Add(1))
				entered.Add(1)
				assert.NoError(t, l.Save())
				inside.Add(-1)
				assert.NoError(t, l.Remove()) // The next lab of that name may begin.
				l.Unlock()
			}
		})
	}
	all.Wait()
	assert.NotZero(t, entered.Load())
}

func TestDeletedFolders(t *testing.T) {
	home := t.TempDir()
	t.Setenv("CCMLAB_HOME", home)
	l, _, err := state.Enter("whole")
	require.NoError(t, err)
	defer l.Unlock()
	require.NoError(t, l.Save())
	require.NoError(t, os.MkdirAll(filepath.Join(home, "anew", "n"), 0o700))
	for dir, want := range map[string]bool{
		filepath.Join(home, "whole"): false,
		filepath.Join(home, "anew"):  true,
		filepath.Join(home, "gone"):  true,
		t.TempDir():                  false, // Nothing shows that it is a lab's.
	} {
		assert.Equal(t, want, state.Deleted(dir), dir)
	}
}
