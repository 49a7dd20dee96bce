package machine

import "syscall"

// endWithUs puts a process into a group of its own, which can be killed as one,
// and has it told to end if we die. A shell's Ctrl-C reaches only us.
func endWithUs() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
}
