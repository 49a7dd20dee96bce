package state

import (
	"cmp"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// recordFormat is the version of the record's format that this program writes. It reads no newer.
const recordFormat = 1

// maxSlot is the highest X of 127.X.0.0/16 that a lab could have.
const maxSlot = 255

// checkOwner is an error for a folder that belongs to another user, except for root.
func checkOwner(dir string) error {
	var stat unix.Stat_t
	me := os.Geteuid()
	// A folder that cannot be examined is no error here: using it will fail.
	if err := unix.Stat(dir, &stat); err == nil && me != 0 && int(stat.Uid) != me {
		return fmt.Errorf(
			"lab %q in %s belongs to %s; use another --name, or set CCMLAB_HOME to a folder of your own",
			filepath.Base(dir), filepath.Dir(dir), UserName(int(stat.Uid)),
		)
	}
	return nil
}

// UserName names a user in a message, by the number where the user has no name.
func UserName(uid int) string {
	if u, err := user.LookupId(strconv.Itoa(uid)); err == nil {
		return "user " + u.Username
	}
	return fmt.Sprintf("user %d", uid)
}

// validate is an error when the record cannot be used.
func (l *Lab) validate() error {
	name := filepath.Base(l.dir)
	remove := removalAdvice(l.dir)
	inContainers := cmp.Or(l.Cluster, "embedded") != "embedded" && l.Cluster != "external"
	switch {
	case l.Format > recordFormat:
		return fmt.Errorf(
			"lab %q was made by a newer version of lab (its record has format %d, this one reads up to %d); use that version, or %s",
			name, l.Format, recordFormat, remove,
		)
	case l.Name != name:
		return fmt.Errorf("the record of lab %q is damaged: it is called %q; %s", name, l.Name, remove)
	case !inContainers && (l.Slot < 1 || l.Slot > maxSlot || len(l.Ports) == 0):
		return fmt.Errorf(
			"the record of lab %q is damaged: it does not say which addresses and ports are its own; %s", name, remove,
		)
	}
	return nil
}
