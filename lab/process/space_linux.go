package process

import (
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// little is what no program can work with.
const little = 1 << 20

// Space is how many bytes a user may still write to the file system of a path.
func Space(path string) (free uint64, err error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); err != nil {
		return 0, fmt.Errorf("%s: %w", path, err)
	}
	return fs.Bavail * uint64(fs.Bsize), nil
}

// noSpace says so where a log's disk is full: then the log itself cannot.
func noSpace(file string) string {
	dir := filepath.Dir(file)
	if free, err := Space(dir); err != nil || free >= little {
		return ""
	}
	return "the disk of " + dir + " is full, so that neither it nor its log could be written; free some space, then `lab up`\n"
}
