//go:build !linux

package machine

import "syscall"

// endWithUs puts a process into a group of its own, which can be killed as one.
func endWithUs() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
