package state

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/ccmlab/ccmlab/lab/atomicfile"
)

// removingFile is the name of lab.json while the folder is being deleted. From then on there is no
// lab, and the next command that enters the folder deletes what is left.
const removingFile = "removing.json"

// Enter locks the lab of this name, whose folder it makes if need be, and then reads
// the record. The lab is fresh when there is no record. The record is read under the
// lock, because another command may change it before. Where others decide what the lab
// would run, it is not entered. It can still be taken down.
func Enter(name string) (l *Lab, fresh bool, err error) {
	empty, err := Create(name)
	if err != nil {
		return nil, false, err
	}
	if err := CheckPrivate(empty.dir); err != nil {
		_ = os.Remove(empty.dir) // If it was made just now, and so is empty.
		empty.Unlock()
		return nil, false, err
	}
	l, err = OpenDir(empty.dir)
	if errors.Is(err, ErrNone) {
		if err = empty.CheckContents(); err == nil {
			err = empty.deleteContents()
		}
		l, fresh = empty, true
	}
	if err != nil {
		empty.Unlock()
		return nil, false, err
	}
	l.lock = empty.lock
	return l, fresh, nil
}

// OpenLocked locks the lab of this name, and then reads the record. Before the lock is held,
// another command may change it.
func OpenLocked(name string) (*Lab, error) {
	folder, err := Unrecorded(name)
	if err != nil {
		return nil, err
	}
	if err := folder.Lock(); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	l, err := OpenDir(folder.dir)
	if err != nil {
		folder.Unlock()
		return nil, err
	}
	if folder.lock == nil { // An `up` has made the folder just now.
		return OpenLocked(name)
	}
	l.lock = folder.lock
	return l, nil
}

// CheckContents is an error when the folder holds files and nothing shows that they are
// a lab's: CCMLAB_HOME may name a folder that also has other contents.
func (l *Lab) CheckContents() error {
	entries, err := os.ReadDir(l.dir)
	if err != nil || hasRecord(l.dir) {
		return err
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), atomicfile.TempPrefix) || e.Name() == "lab.json" &&
			isEmptyFile(l.Path("lab.json")) {
			continue // A crash may have left such a file.
		}
		return fmt.Errorf(
			"%s is no lab's folder, it holds %s: use another --name, or set CCMLAB_HOME to a folder for labs alone",
			l.dir, e.Name(),
		)
	}
	return nil
}

// hasRecord tells whether the folder is a lab's. It is if the record names it. Where a crash or a
// full disk has cut the record short, it is if the folder has a subfolder that a lab makes:
// other programs may also have a file called lab.json.
func hasRecord(dir string) bool {
	for _, file := range []string{"lab.json", removingFile} {
		data, err := os.ReadFile(filepath.Join(dir, file))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		var record struct {
			Name string `json:"name"`
		}
		switch {
		case err != nil || !json.Valid(data):
			return slices.ContainsFunc([]string{"logs", "pki", "cloud"}, func(made string) bool {
				_, err := os.Stat(filepath.Join(dir, made))
				return err == nil
			})
		case json.Unmarshal(data, &record) == nil && record.Name == filepath.Base(dir):
			return true
		}
	}
	return false
}

func isEmptyFile(file string) bool {
	info, err := os.Stat(file)
	return err == nil && info.Mode().IsRegular() && info.Size() == 0
}

// removalAdvice says how the lab in this folder is removed.
func removalAdvice(dir string) string {
	if err := InDir(dir, filepath.Base(dir)).CheckContents(); err != nil {
		return fmt.Sprintf(
			"if that is a lab's, delete the folder %s yourself: `lab down` does not, since nothing says so", dir,
		)
	}
	return fmt.Sprintf("`lab down --name %s` removes it", filepath.Base(dir))
}

// deleteContents deletes what is in the folder, in an order in which a crash half-way leaves no
// record of a lab that is there in part.
func (l *Lab) deleteContents() error {
	if err := os.Rename(l.Path("lab.json"), l.Path(removingFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	entries, err := os.ReadDir(l.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		if e.Name() != removingFile {
			err = errors.Join(err, os.RemoveAll(l.Path(e.Name())))
		}
	}
	if err == nil {
		err = os.RemoveAll(l.Path(removingFile))
	}
	return err
}

// isSameFolder tells whether the path still names the open folder.
func isSameFolder(f *os.File, path string) bool {
	opened, err1 := f.Stat()
	current, err2 := os.Stat(path)
	return err1 == nil && err2 == nil && os.SameFile(opened, current)
}

// lockHolder says which command has locked the folder, as part of a message. It reads
// /proc/locks (proc(5)), and is "" if nobody is found there.
func lockHolder(dir string) string {
	info, err := os.Stat(dir)
	if err != nil {
		return ""
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	locks, err := os.Open("/proc/locks")
	if !ok || err != nil {
		return ""
	}
	defer func() { _ = locks.Close() }()
	for lines := bufio.NewScanner(locks); lines.Scan(); {
		// 1: FLOCK ADVISORY WRITE 1234 fd:00:5678 0 EOF
		f := strings.Fields(lines.Text())
		if len(f) < 6 || f[1] != "FLOCK" || !strings.HasSuffix(f[5], fmt.Sprintf(":%d", stat.Ino)) {
			continue
		}
		line, err := os.ReadFile("/proc/" + f[4] + "/cmdline")
		args := strings.Fields(string(bytes.ReplaceAll(line, []byte{0}, []byte(" "))))
		if err != nil || len(args) == 0 {
			continue // It has ended, or is an inode of that number elsewhere.
		}
		args[0] = filepath.Base(args[0])
		return fmt.Sprintf(": `%s` (pid %s)", strings.Join(args, " "), f[4])
	}
	return ""
}
