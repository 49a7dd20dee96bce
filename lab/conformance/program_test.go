package conformance

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/lab/process"
)

const programBound = 20 * time.Second

// script is a CCM made of a shell's script.
func script(t *testing.T, text string) *Program {
	dir := t.TempDir()
	path := filepath.Join(dir, "made-up-ccm")
	require.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o700))
	p := &Program{
		Path: path, Host: process.Host{Lab: dir}, LogFile: filepath.Join(dir, "logs", "ccm.log"),
		Values: Values{Kubeconfig: "/the/kubeconfig", CloudConfig: filepath.Join(dir, "cloud.conf"), CloudURL: "http://127.0.0.1:1", Port: 10258},
	}
	t.Cleanup(func() { assert.NoError(t, p.Stop(context.Background())) })
	return p
}

// says waits for the program to have said a line.
func says(t *testing.T, p *Program, line string) {
	t.Helper()
	require.Eventually(t, func() bool {
		for _, l := range p.Log(100) {
			if l == line {
				return true
			}
		}
		return false
	}, programBound, 10*time.Millisecond, line)
}

func runningPrograms(t *testing.T, p *Program) int {
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
	require.Contains(t, running, ComponentCCM, "the lab finds it, should the suite be killed")

	require.NoError(t, p.Start(t.Context()), "it runs already")
	again, err := p.Host.Running()
	require.NoError(t, err)
	assert.Equal(t, running[ComponentCCM].PID, again[ComponentCCM].PID)

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
	p := &Program{
		Path: plain, Args: []string{"--ok={{.Kubeconfig}}", "--bad={{.Kubekonfig}}", "{{"},
		Env:            []string{"TOKEN", "=x", "A={{.Token}}"},
		ConfigTemplate: "{{if not .CAFile}}insecure = {{.Insecure}}{{end}}",
	}
	err := p.Check()
	for _, want := range []string{
		plain + " is not an executable file",
		`argument 2, "--bad={{.Kubekonfig}}"`, "can't evaluate field Kubekonfig",
		"the fields are .Kubeconfig, .CloudConfig, .ClusterName, .ClusterCIDR, .CloudURL, .TokenFile, .Project, .CAFile, .Address, .Port",
		`argument 3, "{{"`, `environment "TOKEN": want NAME=value`, `environment "=x": want NAME=value`,
		`environment "A={{.Token}}"`, "the CCM's configuration", "can't evaluate field Insecure",
	} {
		assert.ErrorContains(t, err, want)
	}
	assert.NotContains(t, err.Error(), "argument 1")

	for path, want := range map[string]string{
		filepath.Join(dir, "none"): "no such file", dir: "is not an executable file", "program.go": "is not an absolute path",
	} {
		assert.ErrorContains(t, (&Program{Path: path}).Check(), want)
	}
	// What cannot be filled in is not started either.
	p.Path = "/bin/true"
	p.Host, p.LogFile = process.Host{Lab: dir}, filepath.Join(dir, "log")
	require.ErrorContains(t, p.Start(t.Context()), "the fields are")
	assert.NoFileExists(t, p.LogFile)
}
