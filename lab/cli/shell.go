package cli

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
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

// plainWord matches words that no shell needs quoted.
var plainWord = regexp.MustCompile(`^[A-Za-z0-9_@%+=:,./-]+$`)

// shellCommandLine joins words into a command line for a shell. It quotes only those
// that need quotes.
func shellCommandLine(words []string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		if quoted[i] = w; !plainWord.MatchString(w) {
			quoted[i] = shellQuote(w)
		}
	}
	return strings.Join(quoted, " ")
}

// shellQuote quotes s for a shell. Inside single quotes only the single quote is
// special.
func shellQuote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
