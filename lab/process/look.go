package process

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
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
	theirs, err1 := os.Readlink(folder(f.PID) + "/ns/mnt")
	ours, err2 := os.Readlink("/proc/self/ns/mnt")
	if err1 == nil && err2 == nil && theirs == ours {
		return true
	}
	there, err1 := os.Stat(folder(f.PID) + "/root" + f.Lab)
	seen, err2 := os.Stat(f.Lab)
	return err1 == nil && err2 == nil && os.SameFile(there, seen)
}

// Paused tells whether a signal or a debugger has stopped the process (state T
// or t of proc(5)): it is there, and answers nobody.
func (p *Process) Paused() bool {
	fields, ok := stat(fmt.Sprintf("/proc/%d", p.PID))
	return ok && len(fields) > 0 && (fields[0] == "T" || fields[0] == "t")
}

// stat is what the file of that name in /proc/PID, or in a thread's folder there,
// says from its third field on, the state.
func stat(dir string) (fields []string, ok bool) {
	text, err := os.ReadFile(dir + "/stat")
	if err != nil {
		return nil, false
	}
	// The name, in parentheses, may hold anything; fields are counted after it.
	_, rest, ok := strings.Cut(string(text[max(0, bytes.LastIndexByte(text, ')')):]), ") ")
	return strings.Fields(rest), ok
}

// ended tells whether the thread has, of which these are the fields.
func ended(fields []string) bool { return fields[0] == "Z" || fields[0] == "X" }

// folder is where /proc tells of a process: what its first thread knows, or, when
// that has ended, which takes its knowledge away, one that has not.
func folder(pid int) string {
	process := fmt.Sprintf("/proc/%d", pid)
	if fields, ok := stat(process); !ok || len(fields) == 0 || !ended(fields) {
		return process
	}
	threads, _ := filepath.Glob(process + "/task/[0-9]*")
	for _, thread := range threads {
		if fields, ok := stat(thread); ok && len(fields) > 0 && !ended(fields) {
			return thread
		}
	}
	return process
}
