package build

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A module of one program, built for real.
func TestBuildOnlyWhenStale(t *testing.T) {
	src, out := t.TempDir(), filepath.Join(t.TempDir(), "bin")
	write := func(file, text string) {
		t.Helper()
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(src, file)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(src, file), []byte(text), 0o600))
	}
	write("go.mod", "module example\n\ngo 1.26\n")
	write("cmd/hello/v2/main.go", "package main\n\nfunc main() { println(\"one\") }\n")
	write("greeting/greeting_test.go", "package greeting\n\nimport \"testing\"\n\nfunc TestGreeting(*testing.T) {}\n")
	m := Module{
		Dir: src, Sources: []string{"."}, Without: []string{"ignored"},
		Mains: map[string]string{"./cmd/hello/v2": "greet"}, Tests: map[string]string{"./greeting": "greeting.test"},
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	build := func() bool {
		t.Helper()
		built, err := m.Build(ctx, out, func(string) {})
		require.NoError(t, err)
		return built
	}
	run := func() string {
		t.Helper()
		output, err := exec.CommandContext(ctx, filepath.Join(out, "greet")).CombinedOutput()
		require.NoError(t, err)
		return string(output)
	}

	assert.True(t, build())
	assert.Equal(t, "one\n", run())
	require.NoError(t, exec.CommandContext(ctx, filepath.Join(out, "greeting.test")).Run())
	assert.False(t, build(), "nothing changed")
	write("ignored/readme.txt", "x")
	write("cmd/hello/v2/main_test.go", "package main\n")
	assert.False(t, build(), "nothing that it is made of changed")

	write("cmd/hello/v2/main.go", "package main\n\nfunc main() { println(\"two\") }\n")
	require.NoError(t, os.MkdirAll(filepath.Join(out, ".build-of-a-killed-one"), 0o755))
	assert.True(t, build())
	assert.Equal(t, "two\n", run())
	left, err := filepath.Glob(filepath.Join(out, ".build-*"))
	require.NoError(t, err)
	assert.Empty(t, left)

	write("cmd/hello/v2/main.go", "package main\n\nfunc main() { undefined() }\n")
	_, err = m.Build(ctx, out, func(string) {})
	require.ErrorContains(t, err, "undefined: undefined")
	assert.Equal(t, "two\n", run(), "a failed build leaves the program as it was")

	require.NoError(t, os.Remove(filepath.Join(out, "greet")))
	write("cmd/hello/v2/main.go", "package main\n\nfunc main() { println(\"two\") }\n")
	assert.True(t, build(), "a program that is gone is made again")
}

func TestKubernetesVersionComesFromGoMod(t *testing.T) {
	m, err := Kubernetes(filepath.Join("..", ".."))
	require.NoError(t, err)
	assert.Contains(t, m.Flags[len(m.Flags)-1], "gitVersion=v1.")
	assert.Len(t, m.Mains, 6)
	_, err = Required(m.Dir, "example.org/none")
	require.ErrorContains(t, err, "does not require example.org/none")
}

// The programs are made anew where a module changes that lab/kube takes from another folder.
func TestKubernetesIsMadeOfReplacedModules(t *testing.T) {
	m, err := Kubernetes(filepath.Join("..", ".."))
	require.NoError(t, err)
	mod, err := os.ReadFile(filepath.Join(m.Dir, "go.mod"))
	require.NoError(t, err)
	folders := regexp.MustCompile(`(?m) => (\.\./\S+)$`).FindAllSubmatch(mod, -1)
	require.NotEmpty(t, folders)
	for _, folder := range folders {
		assert.Contains(t, m.Sources, string(folder[1]))
	}
}

// Each folder of lab/node pins an upstream project, and Node has all of them.
func TestNodeHasEveryPinnedProject(t *testing.T) {
	parts, err := Node(filepath.Join("..", ".."))
	require.NoError(t, err)
	dirs, err := os.ReadDir(filepath.Join("..", "node"))
	require.NoError(t, err)
	for _, dir := range dirs {
		require.Contains(t, parts, dir.Name())
		assert.NotEmpty(t, parts[dir.Name()].Mains)
	}
	assert.Equal(t, "ptp", parts["cni"].Mains["github.com/containernetworking/plugins/plugins/main/ptp"])
	assert.Contains(t, strings.Join(parts["containerd"].Flags, " "), "version.Version=v2.")
}

// A dependency of two modules is compiled once if both require the same version. With different
// versions of what all of Kubernetes imports, a first build took minutes more.
func TestKubernetesAndOwnModulesAgreeOnVersions(t *testing.T) {
	own := requiredModules(t, filepath.Join("..", "..", "go.mod"))
	for module, version := range requiredModules(t, filepath.Join("..", "kube", "go.mod")) {
		if ours, both := own[module]; both {
			assert.Equal(
				t, ours, version, "%s: `cd lab/kube && go get %s@%s`, or the other way around", module, module, ours,
			)
		}
	}
}

func requiredModules(t *testing.T, file string) map[string]string {
	t.Helper()
	text, err := exec.CommandContext(t.Context(), "go", "mod", "edit", "-json", file).Output()
	require.NoError(t, err)
	var mod struct {
		Require []struct{ Path, Version string }
		Replace []struct {
			Old, New struct{ Path, Version string }
		}
	}
	require.NoError(t, json.Unmarshal(text, &mod))
	versions := map[string]string{}
	for _, r := range mod.Require {
		versions[r.Path] = r.Version
	}
	for _, r := range mod.Replace {
		if _, required := versions[r.Old.Path]; required && r.New.Version != "" {
			versions[r.Old.Path] = r.New.Version
		}
	}
	return versions
}

func TestProgress(t *testing.T) {
	assert.Equal(t, "100 of 300 packages compiled, about 2m0s left", formatProgress(100, 300, time.Minute))
	assert.Equal(t, "300 packages compiled, linking", formatProgress(300, 300, time.Minute))
}

// A minor's control plane is complete, has that minor's version, and has no kubelet.
func TestMinors(t *testing.T) {
	minors, err := Minors(filepath.Join("..", ".."))
	require.NoError(t, err)
	require.NotEmpty(t, minors)
	newest, err := Kubernetes(filepath.Join("..", ".."))
	require.NoError(t, err)
	for name, m := range minors {
		assert.Contains(t, m.Flags[len(m.Flags)-1], "gitVersion="+name+".")
		assert.NotEqual(t, newest.Flags, m.Flags, "lab/kube is of that minor already")
		assert.Len(t, m.Mains, 3)
		assert.NotContains(t, m.Mains, "./hollow-node")
	}
	assert.Equal(t, []string{"minor", "e2e"}, newest.Without, "a change of theirs builds nothing anew here")
}

// The end-to-end tests are those of the Kubernetes that a lab runs.
func TestEndToEndTests(t *testing.T) {
	tests, err := EndToEndTests(filepath.Join("..", ".."))
	require.NoError(t, err)
	have, err := tests.Version()
	require.NoError(t, err)
	kube, err := Kubernetes(filepath.Join("..", ".."))
	require.NoError(t, err)
	want, err := kube.Version()
	require.NoError(t, err)
	assert.Equal(t, want, have)
	assert.Equal(t, map[string]string{"k8s.io/kubernetes/test/e2e": "e2e.test"}, tests.Tests)
}
