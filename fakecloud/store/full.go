package store

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/mattn/go-sqlite3"
)

// ErrFull means that nothing was changed because the disk has no room, or a quota of it is used up.
var ErrFull = errors.New("no room on the disk")

// markFull makes an error that a lack of room caused ErrFull, too.
func markFull(err error) error {
	var failed sqlite3.Error
	if errors.As(err, &failed) && failed.Code == sqlite3.ErrFull || isNoRoom(err) || isNoRoom(failed.SystemErrno) {
		return fmt.Errorf("%w: %w", ErrFull, err)
	}
	return err
}

// isNoRoom is true for what SQLite does not report as SQLITE_FULL: a quota, and what fsync or the file -shm runs into.
func isNoRoom(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}
