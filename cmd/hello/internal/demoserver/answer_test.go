package demoserver

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestSays(t *testing.T) {
	golden, err := os.ReadFile("testdata/answers.golden")
	require.NoError(t, err)
	id := Identity{
		Pod: "web-abc", Namespace: "default", Node: "node-1", PodIP: "10.1.0.5", Container: "web", Image: "ccmlab/hello:dev",
		Env: map[string]string{"GREETING": "Good morning"}, Files: map[string]string{"/etc/demo/config/greeting": "Good morning"},
		Request: RequestSeen{Method: "GET", Path: "/a", RemoteAddr: "10.1.0.9:4000", Host: "192.0.2.1:80"},
	}
	early := id.Sentence()
	id.Zone = "nebula-1a"
	text, err := json.Marshal(id)
	require.NoError(t, err)
	assert.Equal(t, string(golden), id.Sentence()+early+string(text)+"\n"+Help+"\n")
}

// The simulated container says and does the same: its files are links to these.
func TestTheSimulatedContainerHasTheseFiles(t *testing.T) {
	for _, name := range []string{"answer.go", "command.go", "files.go"} {
		here, err := os.Stat(name)
		require.NoError(t, err)
		there, err := os.Stat(filepath.Join("../../../../lab/kube/internal/demoserver", name))
		require.NoError(t, err)
		assert.True(t, os.SameFile(here, there), name)
	}
}
