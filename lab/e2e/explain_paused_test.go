package e2e

// That `lab explain` tells a deleted Node and a paused process for what they are,
// and that it and `lab compare` say of a lab that is stopped that it is.

import (
	"bytes"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ccmlab/ccmlab/lab/explain"
)

func TestExplainTellsWhatWasDone(t *testing.T) {
	f := newFixture(t)
	f.lab("up", "--nodes", "1", "--profile", "instant")
	for _, part := range []struct {
		name string
		run  func(*fixture)
	}{
		{"the API server's own Service", func(f *fixture) {
			f.explains(
				"service/kubernetes", explain.Ready,
				"this lab keeps no endpoints for it, as loopback is not allowed there.", "",
			)
		}},
		{"a paused CCM and a paused API server", func(f *fixture) {
			f.cloud("instances", "create", "node-2", "--wait")
			f.explains("node/node-2", explain.Ready, "Node node-2 is ready.", "")
			f.whilePaused("ccm", func() {
				f.cloud("instances", "terminate", "node-2", "--wait")
				f.explains(
					"node/node-2", explain.NotReady, "and the CCM, which would delete it, is stopped by a signal.",
					"kill -CONT ",
				)
			})
			f.whilePaused("kube-apiserver", func() {
				f.explains(
					"node/node-1", explain.Unknown, "cannot be explained: the control plane is stopped by a signal.",
					"kill -CONT ",
				)
			})
		}},
		{"a Node that was deleted", func(f *fixture) {
			require.NoError(f.t, f.kube("operator").CoreV1().Nodes().
				Delete(f.t.Context(), "node-1", metav1.DeleteOptions{}))
			f.explains(
				"node/node-1", explain.NotReady,
				"its Node was deleted, and a kubelet that runs does not register again.",
				"fakecloud instances reboot node-1",
			)
			f.cloud("instances", "reboot", "node-1")
			f.explains("node/node-1", explain.Ready, "Node node-1 is ready.", "")
		}},
		{"a lab that is stopped", func(f *fixture) {
			f.lab("down", "--keep-state")
			// Whichever of the two is looked at first.
			other := f.name + "-too"
			record, err := os.ReadFile(f.dir("lab.json"))
			require.NoError(f.t, err)
			require.NoError(f.t, os.Mkdir(filepath.Join(f.home, other), 0o700))
			record = bytes.ReplaceAll(record, []byte(f.name), []byte(other))
			require.NoError(f.t, os.WriteFile(filepath.Join(f.home, other, "lab.json"), record, 0o600))
			f.t.Cleanup(func() { assert.NoError(f.t, os.RemoveAll(filepath.Join(f.home, other))) })
			for _, args := range [][]string{
				{"explain", "node/node-1"}, {"explain", "node"}, {"compare", f.name, other},
			} {
				out, err := f.try(args...)
				require.Error(f.t, err, args)
				assert.Contains(f.t, out, `"`+f.name+"\" is stopped; `lab up --name "+f.name+"` starts it", args)
			}
		}},
	} {
		if !t.Run(part.name, func(t *testing.T) { part.run(f.in(t)) }) {
			return // What follows builds upon it.
		}
	}
}

// whilePaused stops a component by a signal while do runs.
func (f *fixture) whilePaused(component string, do func()) {
	f.t.Helper()
	p := f.component(component)
	require.NotNil(f.t, p, component)
	require.NoError(f.t, p.Signal(syscall.SIGSTOP))
	defer func() { assert.NoError(f.t, p.Signal(syscall.SIGCONT)) }()
	do()
}
