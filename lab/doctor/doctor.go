// Package doctor checks a machine for what would make `lab up` fail, and says for each
// problem what fixes it.
//
// It changes nothing on the machine, and sees it only through Machine, so that a test can put
// another in its place. Begin with Examine and the list of checks.
package doctor

import (
	"context"
	"fmt"
)

// Level is how much a finding matters.
type Level string

// Levels.
const (
	OK Level = "ok"
	// Info is worth knowing, and prevents no lab.
	Info Level = "info"
	// Fix must be fixed before a lab can run.
	Fix Level = "fix"
)

// Finding is the result of one check. Its JSON is a contract: fields are added, never
// renamed.
type Finding struct {
	Check string `json:"check"`
	Level Level  `json:"level"`
	Seen  string `json:"seen"`
	// Fix is what to do; a command to copy, where there is one.
	Fix string `json:"fix,omitempty"`
}

// checks in the order in which they are shown.
var checks = []struct {
	name    string
	examine func(ctx context.Context, m *Machine) Finding
}{
	{"system", checkSystem},
	{"clock", checkClock},
	{"programs", checkPrograms},
	{"memory", checkMemory},
	{"disk", checkDisk},
	{"folder", checkFolder},
	{"open files", checkOpenFiles},
	{"processes", checkProcesses},
	{"inotify", checkInotify},
	{"loopback", checkLoopback},
	{"ports", checkPorts},
	{"leftovers", checkLeftovers},
	{"proxy", checkProxy},
	{"kind", checkContainerEngine},
}

// Examine makes all checks. What only a kind cluster needs is a problem only where
// m.Cluster is kind.
func Examine(ctx context.Context, m *Machine) []Finding {
	findings := make([]Finding, len(checks))
	for i, c := range checks {
		findings[i] = c.examine(ctx, m)
		findings[i].Check = c.name
	}
	return findings
}

// Problems counts the findings that must be fixed.
func Problems(findings []Finding) (n int) {
	for _, f := range findings {
		if f.Level == Fix {
			n++
		}
	}
	return n
}

func okFinding(format string, args ...any) Finding {
	return Finding{Level: OK, Seen: fmt.Sprintf(format, args...)}
}

func infoFinding(hint, format string, args ...any) Finding {
	return Finding{Level: Info, Seen: fmt.Sprintf(format, args...), Fix: hint}
}

func fixFinding(remedy, format string, args ...any) Finding {
	return Finding{Level: Fix, Seen: fmt.Sprintf(format, args...), Fix: remedy}
}

// unknownFinding is the finding of a check that could not be made.
func unknownFinding(err error) Finding { return infoFinding("", "could not be checked: %v", err) }
