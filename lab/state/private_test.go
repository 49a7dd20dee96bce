package state_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/lab/state"
)

// stranger is a user, and a group, that this machine has no name for.
const stranger = 54321

// A folder that another user may replace, or write in, is refused.
func TestCheckPrivate(t *testing.T) {
	type folder struct {
		mode     fs.FileMode
		uid, gid int // 0 is whoever runs the test.
	}
	ours := folder{mode: 0o700}
	sticky := folder{mode: 0o777 | fs.ModeSticky}
	for name, c := range map[string]struct {
		parent, home folder
		want         string
	}{
		"ours":                       {ours, ours, ""},
		"others may read":            {folder{mode: 0o755}, folder{mode: 0o755}, ""},
		"all may write":              {ours, folder{mode: 0o777}, "may write in HOME (drwxrwxrwx): chmod go-w HOME"},
		"all may write its parent":   {folder{mode: 0o777}, ours, "other users may write in PARENT (drwxrwxrwx)"},
		"ours in a sticky one":       {sticky, ours, ""},
		"sticky":                     {ours, sticky, "other users may write in HOME"},
		"of another in a sticky one": {sticky, folder{mode: 0o755, uid: stranger}, "HOME belongs to user 54321"},
		"in one of another":          {folder{mode: 0o755, uid: stranger}, ours, "PARENT belongs to user 54321"},
		"a group may write":          {ours, folder{mode: 0o770, gid: stranger}, "may write in HOME (drwxrwx---)"},
		"a group may read":           {ours, folder{mode: 0o750, gid: stranger}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			parent, err := filepath.EvalSymlinks(t.TempDir())
			require.NoError(t, err)
			home, link := filepath.Join(parent, "home"), filepath.Join(t.TempDir(), "link")
			require.NoError(t, os.Mkdir(home, 0o700))
			require.NoError(t, os.Symlink(home, link))
			for path, f := range map[string]folder{parent: c.parent, home: c.home} {
				if f.uid+f.gid != 0 {
					if os.Geteuid() != 0 {
						t.Skip("only root may give folders away")
					}
					require.NoError(t, os.Chown(path, f.uid, f.gid))
				}
				require.NoError(t, os.Chmod(path, f.mode))
			}
			for _, path := range []string{home, link} {
				err := state.CheckPrivate(path)
				if c.want == "" {
					assert.NoError(t, err)
					continue
				}
				assert.ErrorContains(t, err, strings.NewReplacer("HOME", home, "PARENT", parent).Replace(c.want))
				assert.ErrorContains(t, err, state.OwnFolderAdvice)
			}
			t.Setenv("CCMLAB_STRICT_MODES", "no")
			assert.NoError(t, state.CheckPrivate(home))
		})
	}
}

// Whoever may repoint a link decides what it leads to.
func TestLinkOfAnother(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root may give links away")
	}
	link := filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.Symlink(t.TempDir(), link))
	require.NoError(t, state.CheckPrivate(link))
	require.NoError(t, os.Lchown(link, stranger, -1))
	assert.ErrorContains(t, state.CheckPrivate(link), link+" belongs to user 54321")
}

// No lab is begun where others decide what it runs. One that is there can be taken down.
func TestLabInAFolderOfOthers(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("CCMLAB_HOME", dir)
	require.NoError(t, os.Chmod(dir, 0o777)) //nolint:gosec // That is what is to be refused.
	_, _, err := state.Enter("lab")
	require.ErrorContains(t, err, "other users may write in "+dir)
	assert.NoDirExists(t, filepath.Join(dir, "lab"))
	l, err := state.Create("lab")
	require.NoError(t, err)
	assert.NoError(t, l.Remove())
}

// The folder /root, which others may not enter, plays the lab of somebody else.
func TestLabOfAnotherUser(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("root may use every lab; CI runs this test as an ordinary user")
	}
	t.Setenv("CCMLAB_HOME", "/")
	_, err := state.Open("root")
	assert.ErrorContains(t, err, `lab "root" in / belongs to user root; use another --name, or set CCMLAB_HOME`)
	blank, err := state.Unrecorded("root")
	require.NoError(t, err)
	assert.ErrorContains(t, blank.Lock(), "belongs to user root")
}
