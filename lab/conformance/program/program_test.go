package program

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/lab/process"
)

const programBound = 20 * time.Second

// script is a CCM made of a shell's script.
func script(t *testing.T, text string) *CCM {
	dir := t.TempDir()
	path := filepath.Join(dir, "made-up-ccm")
	require.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o700))
	p := &CCM{
		Path: path, Host: process.Host{Lab: dir}, LogFile: filepath.Join(dir, "logs", "ccm.log"),
		Values: Values{
			Kubeconfig: "/the/kubeconfig", CloudConfig: filepath.Join(dir, "cloud.conf"),
			CloudURL: "http://127.0.0.1:1", Port: 10258,
		},
	}
	t.Cleanup(func() { assert.NoError(t, p.Stop(context.Background())) })
	return p
}

// says waits for the program to have said a line.
func says(t *testing.T, p *CCM, line string) {
	t.Helper()
	require.Eventually(t, func() bool {
		return slices.Contains(p.Log(100), line)
	}, programBound, 10*time.Millisecond, line)
}

func runningPrograms(t *testing.T, p *CCM) int {
	running, err := p.Host.Running()
	require.NoError(t, err)
	return len(running)
}

func TestProgram(t *testing.T) {
	// Without a child, which would be found after it, too.
	p := script(t, `echo "$1 $2 $REGION"; while read -r line; do echo "$line"; done <cloud.conf; exec sleep 1000`)
	p.Args = []string{"--kubeconfig={{.Kubeconfig}}", "--port={{.Port}}"}
	p.Env = []string{"REGION=at {{.CloudURL}}"}
	p.ConfigTemplate = "endpoint = {{.CloudURL}}\n{{if .CAFile}}ca = {{.CAFile}}\n{{end}}"
	require.NoError(t, p.Check())
	assert.Equal(t, "made-up-ccm", p.Name())

	require.NoError(t, p.Start(t.Context()))
	says(t, p, "--kubeconfig=/the/kubeconfig --port=10258 at http://127.0.0.1:1")
	says(t, p, "endpoint = http://127.0.0.1:1")
	assert.Len(t, p.Log(1), 1)
	running, err := p.Host.Running()
	require.NoError(t, err)
	require.Contains(t, running, Component, "the lab finds it, should the suite be killed")

	require.NoError(t, p.Start(t.Context()), "it runs already")
	again, err := p.Host.Running()
	require.NoError(t, err)
	assert.Equal(t, running[Component].PID, again[Component].PID)

	require.NoError(t, p.Stop(t.Context()))
	require.NoError(t, p.Stop(t.Context()), "it does not run")
	assert.Zero(t, runningPrograms(t, p))
	assert.Empty(t, p.Crashed(), "being stopped is no crash")

	require.NoError(t, p.Start(t.Context()))
	assert.Equal(t, 1, runningPrograms(t, p))
	require.NoError(t, p.Stop(t.Context()))
	assert.Zero(t, runningPrograms(t, p))
}

func TestProgramCrashes(t *testing.T) {
	p := script(t, `echo "no such flag: $1" >&2; exit 3`)
	p.Args = []string{"--bad"}
	for range 2 {
		require.NoError(t, p.Start(t.Context()))
		select {
		case <-p.Crashed():
		case <-time.After(programBound):
			require.Fail(t, "nobody told of the crash")
		}
		assert.Equal(t, []string{"no such flag: --bad", "it ended by itself: exit status 3"}, p.Log(1))
	}
}

// It is ended even when it does not want to, or there is no time left.
func TestProgramIsKilled(t *testing.T) {
	p := script(t, "trap '' TERM\necho deaf\nwhile :; do sleep 0.1; done")
	require.NoError(t, p.Start(t.Context()))
	says(t, p, "deaf")
	over, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, p.Start(over), context.Canceled)
	require.NoError(t, p.Stop(over))
	p.mu.Lock()
	assert.Nil(t, p.running)
	p.mu.Unlock()
	assert.Empty(t, p.Crashed())
}

func TestProgramCheck(t *testing.T) {
	dir := t.TempDir()
	plain := filepath.Join(dir, "plain")
	require.NoError(t, os.WriteFile(plain, nil, 0o600))
	p := &CCM{
		Path: plain, Args: []string{"--ok={{.Kubeconfig}}", "--bad={{.Kubekonfig}}", "{{"},
		Env:            []string{"TOKEN", "=x", "A={{.Token}}"},
		ConfigTemplate: "{{if not .CAFile}}insecure = {{.Insecure}}{{end}}",
	}
	err := p.Check()
	for _, want := range []string{
		plain + " is not an executable file",
		`argument 2, "--bad={{.Kubekonfig}}"`, "can't evaluate field Kubekonfig",
		"the fields are .Kubeconfig, .CloudConfig, .ClusterName, .ClusterCIDR, .NeedsRoutes, .CloudURL, .DialectURL, .DialectHost, .TokenFile, .KeyFile, .KeyFingerprint, .Project, .Region, .NetworkCode, .CAFile, .Address, .Port",
		`argument 3, "{{"`, `environment "TOKEN": want NAME=value`, `environment "=x": want NAME=value`,
		`environment "A={{.Token}}"`, "the CCM's configuration", "can't evaluate field Insecure",
	} {
		assert.ErrorContains(t, err, want)
	}
	assert.NotContains(t, err.Error(), "argument 1")

	for path, want := range map[string]string{
		filepath.Join(dir, "none"): "no such file", dir: "is not an executable file",
		"program.go": "is not an absolute path",
	} {
		assert.ErrorContains(t, (&CCM{Path: path}).Check(), want)
	}
	// What cannot be filled in is not started either.
	p.Path = "/bin/true"
	p.Host, p.LogFile = process.Host{Lab: dir}, filepath.Join(dir, "log")
	require.ErrorContains(t, p.Start(t.Context()), "the fields are")
	assert.NoFileExists(t, p.LogFile)
}

// Each replica is a process of its own, found by its own name.
func TestReplicas(t *testing.T) {
	p := script(t, `echo "$1"; exec sleep 1000`)
	p.Args, p.ConfigTemplate = []string{"{{.Address}}:{{.Port}} {{.CloudConfig}}"}, "port = {{.Port}}\n"
	p.Values.Address, p.Noise = "127.0.0.1", regexp.MustCompile("^noise")

	itself, err := p.Replica(0)
	require.NoError(t, err)
	assert.Same(t, p, itself)
	r, err := p.Replica(1)
	require.NoError(t, err)
	again, err := p.Replica(1)
	require.NoError(t, err)
	assert.Same(t, r, again)
	second := r.(*CCM)
	t.Cleanup(func() { assert.NoError(t, second.Stop(context.Background())) })
	assert.NotEqual(t, p.Values.Port, second.Values.Port)
	assert.Equal(t, filepath.Join(filepath.Dir(p.LogFile), "ccm-2.log"), second.LogFile)
	assert.Equal(t, p.Noise, second.Noise)
	assert.False(t, second.Running(), "it is not started")

	require.NoError(t, p.Start(t.Context()))
	require.NoError(t, second.Start(t.Context()))
	says(t, second, fmt.Sprintf(
		"127.0.0.1:%d %s", second.Values.Port, filepath.Join(filepath.Dir(p.Values.CloudConfig), "cloud-2.conf"),
	))
	running, err := p.Host.Running()
	require.NoError(t, err)
	assert.Contains(t, running, Component)
	assert.Contains(t, running, Component+"-2")

	require.NoError(t, second.Kill(t.Context()))
	require.NoError(t, second.Kill(t.Context()), "it does not run")
	assert.False(t, second.Running())
	assert.True(t, p.Running())
	assert.Empty(t, second.Crashed(), "being killed is no crash")
	require.Error(t, second.Freeze(), "it does not run")
	require.Error(t, second.Thaw(), "it does not run")
}

// A program that is told its cluster's name can be told another one, for its next start.
func TestClusterIsRenamed(t *testing.T) {
	p := script(t, `echo "$1"; exec sleep 1000`)
	p.Args, p.Values.ClusterName = []string{"{{.Port}}"}, "own"
	assert.False(t, p.CanRenameCluster())
	p.Args = []string{"--cluster-name={{.ClusterName}}"}
	assert.True(t, p.CanRenameCluster())

	for _, name := range []string{"", "other", ""} {
		p.RenameCluster(name)
		require.NoError(t, p.Start(t.Context()))
		says(t, p, "--cluster-name="+cmp.Or(name, "own"))
		require.NoError(t, p.Stop(t.Context()))
	}
}

// What is frozen says nothing until it is thawed, and may end as it likes.
func TestProgramIsFrozen(t *testing.T) {
	p := script(t, `while read -r line; do echo "$line"; done <talk; exit 1`)
	talk := filepath.Join(p.Host.Lab, "talk")
	require.NoError(t, syscall.Mkfifo(talk, 0o600))
	require.NoError(t, p.Start(t.Context()))
	w, err := os.OpenFile(talk, os.O_RDWR, 0)
	require.NoError(t, err)
	say := func(line string) {
		_, err := io.WriteString(w, line+"\n")
		require.NoError(t, err)
	}
	say("before")
	says(t, p, "before")

	require.NoError(t, p.Freeze())
	state := func() string {
		p.mu.Lock()
		defer p.mu.Unlock()
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.running.PID))
		require.NoError(t, err)
		return strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))[0]
	}
	require.Eventually(t, func() bool { return state() == "T" }, programBound, 10*time.Millisecond, "it is stopped")
	say("meanwhile")
	assert.True(t, p.Running())
	assert.NotContains(t, p.Log(9), "meanwhile")
	require.NoError(t, p.Thaw())
	says(t, p, "meanwhile")

	require.NoError(t, w.Close())
	require.Eventually(t, func() bool { return !p.Running() }, programBound, 10*time.Millisecond, "it ends by itself")
	assert.Empty(t, p.Crashed(), "that is no crash")
	assert.Equal(t, []string{"it ended by itself: exit status 1"}, p.Log(9)[len(p.Log(9))-1:])

	require.NoError(t, p.Start(t.Context()), "it can be started again")
	require.NoError(t, p.Freeze())
	require.NoError(t, p.Stop(t.Context()), "one that is frozen is killed")
	assert.Zero(t, runningPrograms(t, p))
}

func TestNoiseIsLeftOut(t *testing.T) {
	p := script(t, `echo first; for i in 1 2 3; do echo "noise $i"; done; echo last; exec sleep 1000`)
	p.Noise = regexp.MustCompile(`^noise \d`)
	require.NoError(t, p.Start(t.Context()))
	says(t, p, "last")
	assert.Equal(t, []string{"first", "last"}, p.Log(2))
	assert.Equal(t, []string{"last"}, p.Log(1))
}
