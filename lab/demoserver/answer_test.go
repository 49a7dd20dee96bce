package demoserver

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
)

func TestAnswersMatchGolden(t *testing.T) {
	golden, err := os.ReadFile("testdata/answers.golden")
	requireNoError(t, err)
	id := Identity{
		Pod: "web-abc", Namespace: "default", Node: "node-1", PodIP: "10.1.0.5", Container: "web",
		Image:   "ccmlab/hello:dev",
		Env:     map[string]string{"GREETING": "Good morning"},
		Files:   map[string]string{"/etc/demo/config/greeting": "Good morning"},
		Request: RequestInfo{Method: "GET", Path: "/a", RemoteAddr: "10.1.0.9:4000", Host: "192.0.2.1:80"},
	}
	early := id.Sentence()
	id.Zone = "nebula-1a"
	text, err := json.Marshal(id)
	requireNoError(t, err)
	assertEqual(t, string(golden), id.Sentence()+early+string(text)+"\n"+Help+"\n")
}

// What the module required, the hollow node's module would have to require in the same version.
func TestModuleRequiresNothing(t *testing.T) {
	mod, err := os.ReadFile("go.mod")
	requireNoError(t, err)
	for line := range strings.Lines(string(mod)) {
		assertEqual(t, false, strings.HasPrefix(line, "require"), line)
	}
}
