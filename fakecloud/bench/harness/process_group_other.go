//go:build !linux

package harness

import "syscall"

// processGroupAttr puts a process into a group of its own, which can be killed as a whole.
func processGroupAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
