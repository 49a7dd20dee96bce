// Package doctor looks at what the lab needs of a machine, and says for each
// thing that is not so what mends it.
package doctor

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// Level is how much a finding matters.
type Level string

// Levels.
const (
	OK Level = "ok"
	// Info is worth knowing, and keeps nobody from a lab.
	Info Level = "info"
	// Fix must be mended.
	Fix Level = "fix"
)

// Finding is what one check saw. Its JSON is a contract: fields are added, never
// renamed.
type Finding struct {
	Check string `json:"check"`
	Level Level  `json:"level"`
	Seen  string `json:"seen"`
	// Fix is what to do, a command to copy where there is one.
	Fix string `json:"fix,omitempty"`
}

// bound is how long a check may take: some ask programs that may hang.
const bound = 1800 * time.Millisecond

// check is one look at the machine.
type check struct {
	name string
	look func(ctx context.Context, m *Machine) Finding
}

// checks in the order in which they are shown.
var checks = []check{
	{"system", system},
	{"clock", clock},
	{"programs", programs},
	{"go", goTool},
	{"gcc", gcc},
	{"tools", tools},
	{"memory", memory},
	{"disk", disk},
	{"folder", folder},
	{"open files", openFiles},
	{"processes", processes},
	{"inotify", inotify},
	{"loopback", loopback},
	{"ports", ports},
	{"low ports", lowPorts},
	{"slots", slots},
	{"labs", labs},
	{"leftovers", leftovers},
	{"proxy", proxy},
	{"kubectl", kubectl},
	{"bundles", bundles},
	{"kind", containers},
}

// Examine makes all checks at once. Cluster is the kind of cluster that is
// wanted: what kind needs is a must for kind alone.
func Examine(ctx context.Context, m *Machine) []Finding {
	findings := make([]Finding, len(checks))
	var all sync.WaitGroup
	for i, c := range checks {
		all.Go(func() { findings[i] = c.examine(ctx, m) })
	}
	all.Wait()
	return findings
}

// examine is bounded even where the look is not: what hangs is left behind.
func (c check) examine(ctx context.Context, m *Machine) Finding {
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	seen := make(chan Finding, 1)
	go func() { seen <- c.look(ctx, m) }()
	var f Finding
	select {
	case f = <-seen:
	case <-ctx.Done():
		f = unknown(fmt.Errorf("no answer within %s", bound))
	}
	f.Check = c.name
	return f
}

// Problems counts what must be mended.
func Problems(findings []Finding) (n int) {
	for _, f := range findings {
		if f.Level == Fix {
			n++
		}
	}
	return n
}

func ok(format string, args ...any) Finding {
	return Finding{Level: OK, Seen: fmt.Sprintf(format, args...)}
}

func info(hint, format string, args ...any) Finding {
	return Finding{Level: Info, Seen: fmt.Sprintf(format, args...), Fix: hint}
}

func fix(remedy, format string, args ...any) Finding {
	return Finding{Level: Fix, Seen: fmt.Sprintf(format, args...), Fix: remedy}
}

// unknown is for a check that could not be made, which it says.
func unknown(err error) Finding { return info("", "could not be checked: %v", err) }
