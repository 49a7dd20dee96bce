package process_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/lab/process"
)

// The error of a program that cannot be run says which it is, why, and what to do.
func TestStartErrors(t *testing.T) {
	dir := t.TempDir()
	for name, tc := range map[string]struct {
		content string
		mode    os.FileMode
		want    string
	}{
		"wrong-kind":   {"\x7fELF, or so it says", 0o755, "is no program for this machine"},
		"no-mode":      {"#!/bin/sh\n", 0o644, "may not be executed"},
		"interpreter":  {"#!/does/not/exist\n", 0o755, "or what it needs to run"},
		"sub/missing":  {"", 0, "is missing"},
		"not-a-folder": {"#!/bin/sh\n", 0o755, ""},
	} {
		t.Run(name, func(t *testing.T) {
			host, path := process.Host{Lab: dir}, filepath.Join(dir, name)
			if tc.mode != 0 {
				require.NoError(t, os.WriteFile(path, []byte(tc.content), tc.mode))
			}
			p, err := host.Start(
				process.Spec{Component: "etcd", Path: path, LogFile: filepath.Join(dir, "logs", "etcd.log")},
			)
			if tc.want == "" {
				require.NoError(t, err)
				require.NoError(t, p.Wait(t.Context()))
				return
			}
			require.ErrorContains(t, err, "starting etcd")
			assert.ErrorContains(t, err, path)
			assert.ErrorContains(t, err, tc.want)
		})
	}
}

// A process of the same user that carries no marks, or only one, belongs to no lab:
// it is not found, so that it is never signalled.
func TestUnmarkedProcessesAreNotFound(t *testing.T) {
	dir := t.TempDir()
	for _, env := range [][]string{
		nil, {"CCMLAB_STATE=" + dir}, {"CCMLAB_COMPONENT=etcd"}, {"NOT_CCMLAB_STATE=" + dir, "CCMLAB_COMPONENT=etcd"},
		{"CCMLAB_STATE=" + dir + "-2", "CCMLAB_COMPONENT=etcd"},
	} {
		stranger := exec.CommandContext(t.Context(), "sleep", "60")
		stranger.Env = append(process.Unmarked(), env...)
		require.NoError(t, stranger.Start())
		t.Cleanup(func() {
			assert.NoError(t, stranger.Process.Kill())
			assert.Error(t, stranger.Wait())
		})
	}
	// A pid file, had anybody left one, says nothing.
	require.NoError(t, os.WriteFile(filepath.Join(dir, "etcd.pid"), fmt.Append(nil, os.Getpid()), 0o600))
	running, err := process.Host{Lab: dir}.Running()
	require.NoError(t, err)
	assert.Empty(t, running)
}

// The hint tells an empty log from one that cannot be read.
func TestLogHint(t *testing.T) {
	file := filepath.Join(t.TempDir(), "etcd.log")
	assert.Contains(t, process.LogHint(file), "its log cannot be read")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	assert.Contains(t, process.LogHint(file), "nothing to its log, "+file)
	require.NoError(t, os.WriteFile(file, []byte("the reason\n"), 0o600))
	assert.Contains(t, process.LogHint(file), "last lines of "+file+":\n  the reason")
	log := "earlier\n{\"error\":\"no space left on device\"}\npanic: failed to create WAL\n\n" +
		strings.Repeat("main.main()\n", 50)
	require.NoError(t, os.WriteFile(file, []byte(log), 0o600))
	hint := process.LogHint(file)
	assert.Contains(
		t, hint, ":\n  {\"error\":\"no space left on device\"}\n  panic: failed to create WAL\n",
		"the reason, and not the stack's end",
	)
	assert.NotContains(t, hint, "earlier")
	assert.Less(t, strings.Count(hint, "main.main"), 8)
}
