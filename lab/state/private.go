package state

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
)

// OwnFolderAdvice says which folder of labs is safe.
const OwnFolderAdvice = "set CCMLAB_HOME to a folder in which nobody else may write: export CCMLAB_HOME=~/labs, " +
	"or without a home directory export CCMLAB_HOME=$(mktemp -d)"

// strictModes names the variable whose value no turns CheckPrivate off, for containers in which there is nobody else.
const strictModes = "CCMLAB_STRICT_MODES"

// CheckPrivate is an error if another user, except for root, may replace the folder or what is in it. Whoever may do
// that decides what the lab runs. As for sshd's StrictModes, each folder above it matters, too. In a sticky one, such
// as /tmp, others may not replace what is ours. What does not exist is not checked.
func CheckPrivate(dir string) error {
	if os.Getenv(strictModes) == "no" {
		return nil
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	paths := pathsTo(dir)
	if target, err := filepath.EvalSymlinks(dir); err == nil {
		paths = append(paths, pathsTo(target)...)
	}
	for _, path := range paths {
		info, err := os.Lstat(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = checkWriters(path, info, path == paths[len(paths)-1])
		}
		if err != nil {
			return fmt.Errorf("%w; %s", err, OwnFolderAdvice)
		}
	}
	return nil
}

// pathsTo are the path and all above it, from the root.
func pathsTo(path string) (paths []string) {
	for ; path != filepath.Dir(path); path = filepath.Dir(path) {
		paths = append(paths, path)
	}
	slices.Reverse(paths)
	return append([]string{path}, paths...)
}

// checkWriters is an error if another user owns the folder or link, or may write in the folder. In one that is sticky,
// others may, unless it is the last.
func checkWriters(path string, info fs.FileInfo, last bool) error {
	root, err := os.Stat("/")
	if err != nil {
		return err
	}
	uid, gid := ownersOf(info)
	rootUID, _ := ownersOf(root)
	// Whoever owns / may do anything. In a user namespace that is nobody, which stands for root outside.
	if !slices.Contains([]int{0, rootUID, os.Geteuid()}, uid) {
		return fmt.Errorf("%s belongs to %s, who may replace what you keep there", path, UserName(uid))
	}
	mode := info.Mode()
	switch {
	case !mode.IsDir(), mode&fs.ModeSticky != 0 && !last:
	case mode&0o002 != 0, mode&0o020 != 0 && !isOwnGroup(gid):
		return fmt.Errorf(
			"other users may write in %s (%s): chmod go-w %s, or where that is impossible and there is nobody else %s=no",
			path, mode, path, strictModes,
		)
	}
	return nil
}

func ownersOf(info fs.FileInfo) (uid, gid int) {
	stat := info.Sys().(*syscall.Stat_t) //nolint:forcetypeassert // It is on each Unix.
	return int(stat.Uid), int(stat.Gid)
}

// isOwnGroup tells whether a group is root's, or this user's own. Many systems give each user a group of the same name,
// which may write what the user makes.
func isOwnGroup(gid int) bool {
	group, err := user.LookupGroupId(strconv.Itoa(gid))
	if gid == 0 || err != nil {
		return gid == 0
	}
	me, err := user.Current()
	return err == nil && me.Gid == group.Gid && me.Username == group.Name
}
