package process

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// BelongsToUser tells whether the process belongs to this user. Root also sees the processes of
// others.
func (p *Process) BelongsToUser() bool {
	info, err := os.Stat(fmt.Sprintf("/proc/%d", p.PID))
	if err != nil {
		return false
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(stat.Uid) == os.Getuid()
}

// seesSameLabFolder tells whether the path of the lab's folder names the same folder for the
// process as for this one. A process in a container has other mounts, and so may mean another.
func (f Found) seesSameLabFolder() bool {
	processNamespace, err1 := os.Readlink(procFolder(f.PID) + "/ns/mnt")
	ownNamespace, err2 := os.Readlink("/proc/self/ns/mnt")
	if err1 == nil && err2 == nil && processNamespace == ownNamespace {
		return true
	}
	processFolder, err1 := os.Stat(procFolder(f.PID) + "/root" + f.Lab)
	ownFolder, err2 := os.Stat(f.Lab)
	return err1 == nil && err2 == nil && os.SameFile(processFolder, ownFolder)
}

// Paused tells whether a signal or a debugger has stopped the process (state T
// or t of proc(5)). Such a process exists, and answers no request.
func (p *Process) Paused() bool {
	fields, ok := readStat(fmt.Sprintf("/proc/%d", p.PID))
	return ok && len(fields) > 0 && (fields[0] == "T" || fields[0] == "t")
}

// ticksPerSecond is the unit of startTicks (USER_HZ), the same on every Linux.
const ticksPerSecond = 100

// Started is when the process began, to a hundredth of a second. It is zero if the
// uptime of the kernel cannot be read (/proc/uptime, proc(5)).
func (p *Process) Started() time.Time {
	text, err := os.ReadFile("/proc/uptime")
	if err != nil {
		return time.Time{}
	}
	first, _, _ := strings.Cut(string(text), " ")
	up, err := strconv.ParseFloat(first, 64)
	if err != nil {
		return time.Time{}
	}
	age := up - float64(p.startTicks)/ticksPerSecond
	return time.Now().Add(-time.Duration(age * float64(time.Second)))
}

// readStat reads the file stat in dir, which is /proc/PID or a thread's folder below it. The
// first field that it returns is the third of the file, the state.
func readStat(dir string) (fields []string, ok bool) {
	text, err := os.ReadFile(dir + "/stat")
	if err != nil {
		return nil, false
	}
	// The name, in parentheses, may hold anything; fields are counted after it.
	_, rest, ok := strings.Cut(string(text[max(0, bytes.LastIndexByte(text, ')')):]), ") ")
	return strings.Fields(rest), ok
}

// isEnded tells whether the thread with these fields of its stat file has ended.
func isEnded(fields []string) bool { return fields[0] == "Z" || fields[0] == "X" }

// procFolder is the folder in /proc in which the process can be read. That is /proc/PID, which
// is about the first thread. Once the first thread has ended, most files there are empty; then
// it is the folder of a thread that still runs.
func procFolder(pid int) string {
	process := fmt.Sprintf("/proc/%d", pid)
	if fields, ok := readStat(process); !ok || len(fields) == 0 || !isEnded(fields) {
		return process
	}
	threads, _ := filepath.Glob(process + "/task/[0-9]*")
	for _, thread := range threads {
		if fields, ok := readStat(thread); ok && len(fields) > 0 && !isEnded(fields) {
			return thread
		}
	}
	return process
}
