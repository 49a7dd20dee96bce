package process

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"syscall"
)

// Mine tells whether the process is this user's: root sees those of others, too.
func (p *Process) Mine() bool {
	info, err := os.Stat(fmt.Sprintf("/proc/%d", p.PID))
	if err != nil {
		return false
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(stat.Uid) == os.Getuid()
}

// here tells whether the process means the folder that is seen here by the lab's
// path: one in a container has paths of its own.
func (f Found) here() bool {
	theirs, err1 := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", f.PID))
	ours, err2 := os.Readlink("/proc/self/ns/mnt")
	if err1 == nil && err2 == nil && theirs == ours {
		return true
	}
	there, err1 := os.Stat(fmt.Sprintf("/proc/%d/root%s", f.PID, f.Lab))
	seen, err2 := os.Stat(f.Lab)
	return err1 == nil && err2 == nil && os.SameFile(there, seen)
}

// Paused tells whether a signal or a debugger has stopped the process (state T
// or t of proc(5)): it is there, and answers nobody.
func (p *Process) Paused() bool {
	fields, ok := stat(p.PID)
	return ok && len(fields) > 0 && (fields[0] == "T" || fields[0] == "t")
}

// stat is what /proc/PID/stat says from its third field on, the process's state.
func stat(pid int) (fields []string, ok bool) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil, false
	}
	// The name, in parentheses, may hold anything; fields are counted after it.
	_, rest, ok := strings.Cut(string(text[max(0, bytes.LastIndexByte(text, ')')):]), ") ")
	return strings.Fields(rest), ok
}
