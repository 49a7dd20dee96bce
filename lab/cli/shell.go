package cli

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// invokedAs returns how this program was called, for the commands that messages offer
// to copy. It is the bare name if PATH leads to this program.
func invokedAs() string {
	self := os.Args[0]
	if found, err := exec.LookPath(filepath.Base(self)); err == nil && sameFile(found, self) {
		return filepath.Base(self)
	}
	return self
}

// sameFile tells whether both paths lead to the same existing file.
func sameFile(a, b string) bool {
	ia, err1 := os.Stat(a)
	ib, err2 := os.Stat(b)
	return err1 == nil && err2 == nil && os.SameFile(ia, ib)
}

// shellQuote quotes s for a shell. Inside single quotes only the single quote is
// special.
func shellQuote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
