package process

import (
	"bytes"
	"fmt"
	"os"
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

// Paused tells whether a signal or a debugger has stopped the process (state T
// or t of proc(5)): it is there, and answers nobody.
func (p *Process) Paused() bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.PID))
	if err != nil {
		return false
	}
	// The name, in parentheses, may hold anything.
	rest := bytes.TrimLeft(stat[bytes.LastIndexByte(stat, ')')+1:], " ")
	return len(rest) > 0 && (rest[0] == 'T' || rest[0] == 't')
}
