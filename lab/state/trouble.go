package state

// What can be wrong with a lab that is there: it is somebody else's, or its
// record is of no use.

import (
	"cmp"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// format is the newest record that this program reads, and the one it writes.
const format = 1

// loopback is the last of 127.X.0.0/16 that a lab could have.
const loopback = 255

// foreign is an error for a folder that belongs to another user; root may do
// what it likes.
func foreign(dir string) error {
	var stat unix.Stat_t
	me := os.Geteuid()
	// What cannot be looked at, whoever wants it will see.
	if err := unix.Stat(dir, &stat); err == nil && me != 0 && int(stat.Uid) != me {
		return fmt.Errorf("lab %q in %s belongs to %s; use another --name, or set CCMLAB_HOME to a folder of your own", filepath.Base(dir), filepath.Dir(dir), UserName(int(stat.Uid)))
	}
	return nil
}

// UserName is a user's name, or the number of one that has none.
func UserName(uid int) string {
	if u, err := user.LookupId(strconv.Itoa(uid)); err == nil {
		return "user " + u.Username
	}
	return fmt.Sprintf("user %d", uid)
}

// check is an error when the record is of no use.
func (l *Lab) check() error {
	name := filepath.Base(l.dir)
	remove := removal(l.dir)
	inContainers := cmp.Or(l.Cluster, "embedded") != "embedded" && l.Cluster != "external"
	switch {
	case l.Format > format:
		return fmt.Errorf("lab %q was made by a newer version of lab (its record has format %d, this one reads up to %d); use that version, or %s", name, l.Format, format, remove)
	case l.Name != name:
		return fmt.Errorf("the record of lab %q is damaged: it is called %q; %s", name, l.Name, remove)
	case !inContainers && (l.Slot < 1 || l.Slot > loopback || len(l.Ports) == 0):
		return fmt.Errorf("the record of lab %q is damaged: it does not say which addresses and ports are its own; %s", name, remove)
	}
	return nil
}
