package remedy_test

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/ccmlab/ccmlab/lab/remedy"
)

func TestRemedy(t *testing.T) {
	for errno, want := range map[error]string{
		syscall.ENOSPC: "the disk is full", syscall.EDQUOT: "quota", syscall.EROFS: "read-only",
		syscall.EACCES: "CCMLAB_HOME",
		syscall.EPERM:  "CCMLAB_HOME", syscall.ENOTDIR: "is a file", syscall.EMFILE: "ulimit -n",
		syscall.ENFILE: "fs.file-max",
		syscall.EAGAIN: "ulimit -u", syscall.ENOMEM: "no memory", syscall.ENOEXEC: "no program for this machine",
	} {
		assert.Contains(
			t, remedy.Of(fmt.Errorf("writing: %w", &os.PathError{Op: "write", Path: "/x", Err: errno})), want,
		)
	}
	assert.Empty(t, remedy.Of(errors.New("something else")), "nothing is made up")
	assert.Empty(t, remedy.Of(nil))
	full := remedy.With(fmt.Errorf("saving: %w", syscall.ENOSPC))
	assert.ErrorIs(t, full, syscall.ENOSPC)
	assert.ErrorContains(t, full, "saving: no space left on device; the disk is full")
	assert.Equal(t, full, remedy.With(full), "said once")
}
