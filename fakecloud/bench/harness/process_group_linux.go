package harness

import "syscall"

// processGroupAttr puts a process into a group of its own, which can be killed as a whole and
// which a shell's Ctrl-C does not reach. If this process dies, the kernel sends it SIGTERM.
func processGroupAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
}
