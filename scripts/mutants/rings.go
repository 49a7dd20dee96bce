package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/ccmlab/ccmlab/lab/conformance"
	"github.com/ccmlab/ccmlab/lab/conformance/mutants"
)

// ringsFile has the table of rings, between ringsBegin and ringsEnd.
const (
	ringsFile  = "ccm/README.md"
	ringsBegin = "<!-- rings: written by make rings -->\n"
	ringsEnd   = "<!-- end of rings -->\n"
)

var rowsOfRings = regexp.MustCompile(`(?s)` + ringsBegin + `.*` + ringsEnd)

// writeRings writes the rows of the rings that were judged as declared, and leaves those of others as they were.
func writeRings(judged []mutants.Mutant, outcomes []outcome, tests []conformance.Test) error {
	readme, err := os.ReadFile(ringsFile)
	if err != nil {
		return err
	}
	before := string(rowsOfRings.Find(readme))
	if before == "" {
		return fmt.Errorf("%s lacks the lines %q and %q, between which the table of rings belongs", ringsFile, ringsBegin, ringsEnd)
	}
	table := ringsBegin + "| ring | lines | what fails without it | what it is for |\n|---|---|---|---|\n"
	rings, err := mutants.Rings()
	if err != nil {
		return err
	}
	for _, ring := range rings {
		row, err := rowOf(ring, tests)
		n := slices.IndexFunc(judged, func(m mutants.Mutant) bool { return m.Name == ring.Name })
		if err != nil {
			return err
		}
		if n < 0 || n >= len(outcomes) || outcomes[n].err != nil {
			row = regexp.MustCompile(`(?m)^\| \[` + ring.Ring + `\].*\n`).FindString(before)
		}
		table += row
	}
	return os.WriteFile(ringsFile, rowsOfRings.ReplaceAllLiteral(readme, []byte(table+ringsEnd)), 0o644)
}

// rowOf is the row of a ring that was judged as declared.
func rowOf(ring mutants.Mutant, tests []conformance.Test) (string, error) {
	lines, err := countLines(filepath.Join("ccm", ring.Ring))
	if err != nil {
		return "", err
	}
	fails := "`" + strings.Join(ring.CaughtBy, "`, `") + "`"
	if ring.Ring == mutants.Core {
		core := 0
		for _, t := range tests {
			if t.Level == conformance.Core {
				core++
			}
		}
		fails = fmt.Sprintf("everything; alone it passes all %d core tests", core)
	}
	return fmt.Sprintf("| [%s](%s) | %d | %s | %s |\n", ring.Ring, ring.Ring, lines, fails,
		strings.Join(strings.Fields(ring.Wrong), " ")), nil
}

// countLines counts the lines of a package, without its tests.
func countLines(dir string) (lines int, err error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		data, err := os.ReadFile(file)
		if err != nil {
			return 0, err
		}
		lines += bytes.Count(data, []byte("\n"))
	}
	return lines, err
}
