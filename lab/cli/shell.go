package cli

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// invokedAs is how the person called us, for commands to copy.
func invokedAs() string {
	self := os.Args[0]
	if found, err := exec.LookPath(filepath.Base(self)); err == nil && sameFile(found, self) {
		return filepath.Base(self)
	}
	return self
}

func sameFile(a, b string) bool {
	ia, err1 := os.Stat(a)
	ib, err2 := os.Stat(b)
	return err1 == nil && err2 == nil && os.SameFile(ia, ib)
}

// plainWord needs no quotes in any shell.
var plainWord = regexp.MustCompile(`^[A-Za-z0-9_@%+=:,./-]+$`)

// shellCommandLine is for the shell, and quotes what has to be.
func shellCommandLine(words []string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		if quoted[i] = w; !plainWord.MatchString(w) {
			quoted[i] = shellQuote(w)
		}
	}
	return strings.Join(quoted, " ")
}

// shellQuote is for the shell: inside single quotes nothing is special but they.
func shellQuote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
