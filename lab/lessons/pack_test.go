package lessons

import (
	"context"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/lab"
	"github.com/ccmlab/ccmlab/lab/build"
)

// What is packed is enough for every step, where there is neither another Go nor a
// network, and nothing may be written in the bundle. The Go in it compiles, finds what is
// wrong, and says so; that a whole CCM compiles, CI sees.
func TestAWorkshopOfABundle(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	root, err := filepath.Abs(filepath.Join("..", ".."))
	require.NoError(t, err)
	files := map[string]string{}
	require.NoError(t, packToolchain(ctx, root, t.TempDir(), files, func(string) {}))
	bundle := unpacked(t, files)
	w, err := bundledToolchain(filepath.Join(bundle, bundledToolchainDir))
	require.NoError(t, err)
	for name, data := range w.files {
		assert.NotContains(t, string(data), root, name)
	}
	modules, err := os.ReadFile(filepath.Join(w.vendor, "modules.txt"))
	require.NoError(t, err)
	assert.NotContains(t, string(modules), root)
	for name := range vendoredModules(string(modules)) {
		licenses, err := filepath.Glob(filepath.Join(w.vendor, name, "LICENSE*"))
		require.NoError(t, err)
		if name == "github.com/josharian/intern" {
			// `go mod vendor` leaves its license.md behind, which is not in capitals. It is
			// in THIRD_PARTY_NOTICES, since the CCM is made of it, too.
			assert.Empty(t, licenses)
			continue
		}
		assert.NotEmpty(t, licenses, "%s is passed on without its licence", name)
	}
	require.FileExists(t, filepath.Join(bundle, bundledToolchainDir, "go", "LICENSE"))

	alone := []string{"PATH=/nowhere", "HOME=" + t.TempDir(), "GOCACHE=" + cacheOfGo(ctx, t), "GOFLAGS=", "GOPROXY="}
	goRun := func(folder string, args ...string) (string, error) {
		cmd := exec.CommandContext(ctx, w.goCommand, args...)
		cmd.Dir, cmd.Env = folder, lab.Environ(alone, w.env)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	for step := range lastStep + 1 {
		folder := filepath.Join(t.TempDir(), ownCCMDir)
		_, err := w.writeStartingPoint(folder, step+1)
		require.NoError(t, err)
		assert.True(t, w.isModuleWritten(folder))
		out, err := goRun(folder, "list", "-deps", ".")
		require.NoError(t, err, out)
		assert.Contains(t, out, "k8s.io/cloud-provider/app")
		assert.Contains(t, out, build.ModulePath+"/fakecloud/client")
		for _, command := range printedGoCommands(t) {
			out, err := goRun(folder, strings.Fields(command)[1:]...)
			assert.NoError(t, err, "%s: %s", command, out)
		}
	}
	folder := t.TempDir()
	require.NoError(t, w.writeModule(folder))
	write := func(text string) {
		t.Helper()
		require.NoError(t, os.WriteFile(filepath.Join(folder, "main.go"), []byte(text), 0o644))
	}
	write("package main\n\nfunc main() { undefined() }\n")
	err = w.buildCCM(ctx, folder)
	require.ErrorContains(t, err, "main.go:3:15: undefined: undefined")
	write("package main\n\nimport \"fmt\"\n\nfunc main() { fmt.Printf(\"%d\\n\", 1) }\n")
	out, err := goRun(folder, "build")
	require.NoError(t, err, out)
	write("package main\n\nimport \"fmt\"\n\nfunc main() { fmt.Printf(\"%d\\n\", \"one\") }\n")
	out, err = goRun(folder, "vet")
	require.Error(t, err)
	assert.Contains(t, out, "wrong type")
}

// goCommandRE matches a command line of Go's in a block of code.
var goCommandRE = regexp.MustCompile(`(?m)^ {4}(go .*)$`)

// printedGoCommands are those that lessons about a learner's CCM say to type.
func printedGoCommands(t *testing.T) (commands []string) {
	t.Helper()
	all, err := All()
	require.NoError(t, err)
	for _, l := range all {
		for _, task := range l.Tasks {
			text := strings.Join(append(task.Hints, l.Opening, task.Do, task.After), "\n")
			for _, m := range goCommandRE.FindAllStringSubmatch(text, -1) {
				commands = append(commands, m[1])
			}
		}
	}
	require.NotEmpty(t, commands)
	return commands
}

// What a lesson says to type works in a learner's folder, in the shell of `lab env` and
// in any other, as editors' questions do.
func TestGoCommandsInAFolderOfAClone(t *testing.T) {
	root, err := filepath.Abs(filepath.Join("..", ".."))
	require.NoError(t, err)
	w, err := cloneToolchain(root)
	require.NoError(t, err)
	folder := filepath.Join(t.TempDir(), ownCCMDir)
	_, err = w.writeStartingPoint(folder, 1)
	require.NoError(t, err)
	for _, env := range [][]lab.Var{nil, w.env} {
		for _, command := range append(printedGoCommands(t), "go list -m all", "go list -deps ./...") {
			args := strings.Fields(command)
			cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
			cmd.Dir, cmd.Env = folder, lab.Environ(os.Environ(), env)
			out, err := cmd.CombinedOutput()
			assert.NoError(t, err, "%s: %s", command, out)
		}
	}
}

// vendoredModules are those of a modules.txt that have packages there.
func vendoredModules(text string) map[string]bool {
	modules, last := map[string]bool{}, ""
	for line := range strings.Lines(text) {
		if name, ok := strings.CutPrefix(line, "# "); ok {
			last = strings.Fields(name)[0]
		} else if !strings.HasPrefix(line, "#") {
			modules[last] = true
		}
	}
	return modules
}

// unpacked is a folder with files as a bundle has them, which nobody may write to.
func unpacked(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, file := range files {
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		info, err := os.Stat(file)
		require.NoError(t, err)
		to := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(to), 0o755))
		require.NoError(t, os.WriteFile(to, data, info.Mode().Perm()))
	}
	chmod := func(mode fs.FileMode) {
		require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				err = os.Chmod(path, mode)
			}
			return err
		}))
	}
	chmod(0o555)
	t.Cleanup(func() { chmod(0o755) })
	return dir
}

// cacheOfGo has what was compiled before: the flags are the same.
func cacheOfGo(ctx context.Context, t *testing.T) string {
	t.Helper()
	out, err := build.RunGo(ctx, "", "env", "GOCACHE")
	require.NoError(t, err)
	return out[:len(out)-1]
}

// A folder that was begun elsewhere is equipped anew, with the learner's sources in it;
// one that was begun here keeps the go.mod that the learner has changed.
func TestAFolderGoesOnElsewhere(t *testing.T) {
	bundle := t.TempDir()
	require.NoError(t, writeFiles(bundle, map[string][]byte{"go.mod": []byte("module of-the-bundle")}))
	w, err := bundledToolchain(bundle)
	require.NoError(t, err)
	clone, err := cloneToolchain(filepath.Join("..", ".."))
	require.NoError(t, err)
	folder := filepath.Join(t.TempDir(), ownCCMDir)
	_, err = clone.writeStartingPoint(folder, 1)
	require.NoError(t, err)
	assert.True(t, clone.isModuleWritten(folder))
	for _, now := range []*toolchain{w, clone, w} {
		assert.False(t, now.isModuleWritten(folder))
		require.NoError(t, now.writeModule(folder))
		assert.True(t, now.isModuleWritten(folder))
		data, err := os.ReadFile(filepath.Join(folder, "go.mod"))
		require.NoError(t, err)
		assert.Equal(t, now.files["go.mod"], data)
		require.FileExists(t, filepath.Join(folder, "instances.go"))
	}
	require.NoError(t, os.Remove(filepath.Join(folder, "vendor")))
	require.NoError(t, os.MkdirAll(filepath.Join(folder, "vendor", "learners-own"), 0o755))
	require.ErrorContains(t, w.writeModule(folder), "move it away")
}

// Beside a test's program there is neither a clone nor a bundle.
func TestWithoutAWorkshop(t *testing.T) {
	_, err := findToolchain()
	require.ErrorContains(t, err, "lab lesson --bundle FILE")
	require.ErrorIs(t, err, fs.ErrNotExist)
	_, err = mutantBinary(t.Context(), "removed-ports-stay", nil)
	require.ErrorContains(t, err, "`make bundle` packs it")
	_, err = Pack(t.Context(), t.TempDir(), nil)
	require.ErrorContains(t, err, "is no clone of CCM Lab")
}
