package lessons

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/ccmlab/ccmlab/lab"
	"github.com/ccmlab/ccmlab/lab/build"
	"github.com/ccmlab/ccmlab/lab/remedy"
)

// bundledToolchainDir is a folder beside a bundle's programs with a Go distribution, a
// go.mod and vendored modules.
const bundledToolchainDir = "own"

// toolchain compiles a learner's CCM. In a clone it is the machine's Go, the clone's
// sources and the modules in Go's cache. In a bundle it is the bundle's own Go and
// vendored modules, and no network is used.
type toolchain struct {
	// goCommand is the path or name of the go command.
	goCommand string
	// files are go.mod and, where needed, go.sum.
	files map[string][]byte
	// vendor is the folder of vendored modules; "" where they are in Go's cache.
	vendor string
	// env makes `go build` in a shell do the same.
	env []lab.Var
}

// findToolchain returns the toolchain of the clone or bundle that this program is part
// of.
func findToolchain() (*toolchain, error) {
	root, notClone := findClone()
	if notClone == nil {
		return cloneToolchain(root)
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	w, err := bundledToolchain(filepath.Join(filepath.Dir(self), bundledToolchainDir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf(
			"a CCM is compiled with what a bundle or a clone of CCM Lab has: give `lab lesson --bundle FILE`, a file of `make bundle`, or run bin/lab of a clone (%w; %w)",
			notClone, err,
		)
	}
	return w, err
}

// goVersion is what compiles a learner's CCM. The error says what is missing, and what to do.
func goVersion(ctx context.Context) (string, error) {
	w, err := findToolchain()
	if err != nil {
		return "", err
	}
	return w.version(ctx)
}

func (t *toolchain) version(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, t.goCommand, "version").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf(
			"`go version` fails here (%w). Install Go (https://go.dev/doc/install) and have `go` in the PATH, "+
				"or take a bundle, which has its own: `lab lesson --bundle FILE`%s",
			err, strings.TrimRight("\n"+string(out), "\n"),
		)
	}
	return strings.TrimSpace(string(out)), nil
}

// cloneToolchain is the toolchain of a clone. Its go.mod requires the same modules as
// the clone's and uses the same flags, so that Go's cache holds them compiled.
func cloneToolchain(root string) (*toolchain, error) {
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		return nil, err
	}
	sum, err := os.ReadFile(filepath.Join(root, "go.sum"))
	if err != nil {
		return nil, err
	}
	text := strings.Replace(string(mod), "module "+build.ModulePath, "module "+ownCCMDir, 1)
	// The modules that the clone has beside its own are the clone's, wherever the learner's folder is.
	text = strings.ReplaceAll(text, " => ./", " => "+root+"/")
	text += fmt.Sprintf("\nrequire %s v0.0.0\n\nreplace %[1]s => %s\n", build.ModulePath, root)
	return &toolchain{
		goCommand: "go",
		files:     map[string][]byte{"go.mod": []byte(text), "go.sum": sum},
		// A clone that has moved on may want other versions than the learner's go.mod names.
		env: []lab.Var{{Name: "GOFLAGS", Value: "-mod=mod " + compileFlags(), Before: " "}},
	}, nil
}

// bundledToolchain is the toolchain of a bundle, in this folder.
func bundledToolchain(folder string) (*toolchain, error) {
	mod, err := os.ReadFile(filepath.Join(folder, "go.mod"))
	if err != nil {
		return nil, err
	}
	root := filepath.Join(folder, "go") // Its go.env says all that is not here.
	return &toolchain{
		goCommand: filepath.Join(root, "bin", "go"),
		files:     map[string][]byte{"go.mod": mod},
		vendor:    filepath.Join(folder, "vendor"),
		env: []lab.Var{
			{Name: "GOROOT", Value: root}, {Name: "PATH", Value: filepath.Join(root, "bin"), Before: ":"},
		},
	}, nil
}

// compileFlags are the build flags of the lab's own programs, as GOFLAGS has them, but
// one -ldflags: without symbols the linker takes half as long.
func compileFlags() string {
	flags := slices.DeleteFunc(build.Own("").Flags, func(f string) bool { return strings.HasPrefix(f, "-ldflags=") })
	return strings.Join(append(flags, "-ldflags=-s"), " ")
}

// findClone returns the root of the clone whose bin folder holds this program.
func findClone() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	root := filepath.Dir(filepath.Dir(self))
	data, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil || !strings.HasPrefix(string(data), "module "+build.ModulePath+"\n") {
		return "", fmt.Errorf("%s is no clone of CCM Lab", root)
	}
	return root, nil
}

// writeModule writes go.mod, and what belongs to it, into a folder so that it compiles
// with this toolchain.
func (t *toolchain) writeModule(folder string) error {
	if err := writeFiles(folder, t.files); err != nil {
		return err
	}
	link := filepath.Join(folder, "vendor")
	if err := os.Remove(link); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w; move it away: it does not belong to this CCM Lab", err)
	}
	if t.vendor == "" {
		return nil
	}
	return remedy.With(os.Symlink(t.vendor, link))
}

// isModuleWritten tells whether a folder uses this toolchain. Changes that a learner
// has made to go.mod stay.
func (t *toolchain) isModuleWritten(folder string) bool {
	vendor, _ := os.Readlink(filepath.Join(folder, "vendor"))
	return vendor == t.vendor
}

// Tools returns the variables that a shell needs to compile a CCM, beside the lab's. A
// shell outlasts a lesson, so it gets them in every lesson, but not before the first
// was started.
func (s *Seat) Tools() ([]lab.Var, error) {
	p, err := s.Progress()
	if err != nil || p.Current == "" {
		return nil, err
	}
	w, err := findToolchain()
	if err != nil {
		return nil, nil //nolint:nilerr // Most lessons need none; those that do, say so when they start.
	}
	return w.env, nil
}

// buildTimeout bounds a compilation. The first one compiles all dependencies.
const buildTimeout = 15 * time.Minute

// suiteBinary is the program that the suite runs. It is not the learner's own: the
// lab's agent may restart that at any time, and only the learner decides when it
// changes.
const suiteBinary = "." + ownCCMDir

// buildCCM compiles the CCM in a folder for the suite, as suiteBinary. The error has the
// compiler's output.
func (t *toolchain) buildCCM(ctx context.Context, folder string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, buildTimeout, fmt.Errorf("gave up after %s", buildTimeout))
	defer cancel()
	cmd := exec.CommandContext(ctx, t.goCommand, "build", "-o", suiteBinary, ".")
	cmd.Dir, cmd.Env = folder, lab.Environ(os.Environ(), t.env)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf(
			"%s does not compile: %w\n%s", folder, cmp.Or(context.Cause(ctx), err), strings.TrimSpace(string(out)),
		)
	}
	return nil
}
