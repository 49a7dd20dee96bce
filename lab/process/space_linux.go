package process

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// fullBelow is the free space, in bytes, below which a file system counts as full.
const fullBelow = 1 << 20

// FreeSpace is how many bytes a user may still write to the file system of a path.
func FreeSpace(path string) (free uint64, err error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); err != nil {
		return 0, fmt.Errorf("%s: %w", path, err)
	}
	return fs.Bavail * uint64(fs.Bsize), nil
}

// IsDiskFull tells whether nothing more can be written to a folder.
func IsDiskFull(dir string) bool {
	free, err := FreeSpace(dir)
	return err == nil && free < fullBelow
}
