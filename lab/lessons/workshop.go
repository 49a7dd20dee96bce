package lessons

// This file answers: what is a learner's CCM compiled with? In a clone that is the
// machine's Go, the clone's sources and the modules in Go's cache; in a bundle it is a
// Go and modules of the bundle's own, and no network is asked.

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

// ownModule is the module of the cloud's client.
const ownModule = build.ModulePath

// workshopFolder is beside a bundle's programs, with a Go, a go.mod and a vendor folder.
const workshopFolder = "own"

// workshop is what a learner's CCM is compiled with.
type workshop struct {
	// goCommand is the program that compiles.
	goCommand string
	// files are go.mod, and go.sum where that is asked for.
	files map[string][]byte
	// vendor is the folder of the modules; "" where they are in Go's cache.
	vendor string
	// env is what a shell needs so that `go build` does what the lab does.
	env []lab.Var
}

// workshopHere is that of the clone, or the bundle, which has this program.
func workshopHere() (*workshop, error) {
	root, notClone := cloneOf()
	if notClone == nil {
		return workshopOf(root)
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	w, err := workshopIn(filepath.Join(filepath.Dir(self), workshopFolder))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("a CCM is compiled with what a bundle or a clone of CCM Lab has: give `lab lesson --bundle FILE`, a file of `make bundle`, or run bin/lab of a clone (%w; %w)", notClone, err)
	}
	return w, err
}

// workshopOf is a clone's. Its go.mod asks for the same modules as the clone's, so that
// they are in Go's cache, and so does what is compiled of them with the same flags.
func workshopOf(root string) (*workshop, error) {
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		return nil, err
	}
	sum, err := os.ReadFile(filepath.Join(root, "go.sum"))
	if err != nil {
		return nil, err
	}
	text := strings.Replace(string(mod), "module "+ownModule, "module "+ownFolder, 1)
	text = withoutModulesBelowOwn(text)
	text += fmt.Sprintf("\nrequire %s v0.0.0\n\nreplace %[1]s => %s\n", ownModule, root)
	return &workshop{
		goCommand: "go",
		files:     map[string][]byte{"go.mod": []byte(text), "go.sum": sum},
		// A clone that has moved on may want other versions than the learner's go.mod names.
		env: []lab.Var{{Name: "GOFLAGS", Value: "-mod=mod " + compileFlags(), Before: " "}},
	}, nil
}

// withoutModulesBelowOwn takes the clone's other modules out of the text of its go.mod. Where
// they are is said relative to the clone, and a learner's CCM is made of none.
func withoutModulesBelowOwn(goMod string) string {
	var left strings.Builder
	for line := range strings.Lines(goMod) {
		if !strings.Contains(line, " "+ownModule+"/") && !strings.HasPrefix(line, "\t"+ownModule+"/") {
			left.WriteString(line)
		}
	}
	return left.String()
}

// workshopIn is a bundle's, in this folder.
func workshopIn(folder string) (*workshop, error) {
	mod, err := os.ReadFile(filepath.Join(folder, "go.mod"))
	if err != nil {
		return nil, err
	}
	root := filepath.Join(folder, "go") // Its go.env says all that is not here.
	return &workshop{
		goCommand: filepath.Join(root, "bin", "go"),
		files:     map[string][]byte{"go.mod": mod},
		vendor:    filepath.Join(folder, "vendor"),
		env:       []lab.Var{{Name: "GOROOT", Value: root}, {Name: "PATH", Value: filepath.Join(root, "bin"), Before: ":"}},
	}, nil
}

// compileFlags are those of the lab's own programs, as GOFLAGS has them. Of the linker's
// it is one: it takes half as long without what debuggers read.
func compileFlags() string {
	flags := slices.DeleteFunc(build.Own("").Flags, func(f string) bool { return strings.HasPrefix(f, "-ldflags=") })
	return strings.Join(append(flags, "-ldflags=-s"), " ")
}

// cloneOf is the root of the clone whose bin holds this program.
func cloneOf() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	root := filepath.Dir(filepath.Dir(self))
	data, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil || !strings.HasPrefix(string(data), "module "+ownModule+"\n") {
		return "", fmt.Errorf("%s is no clone of CCM Lab", root)
	}
	return root, nil
}

// equip has a folder compile here.
func (w *workshop) equip(folder string) error {
	if err := writeAll(folder, w.files); err != nil {
		return err
	}
	link := filepath.Join(folder, "vendor")
	if err := os.Remove(link); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w; move it away: it does not belong to this CCM Lab", err)
	}
	if w.vendor == "" {
		return nil
	}
	return remedy.With(os.Symlink(w.vendor, link))
}

// equipped tells whether a folder was equipped here, or as it is done here. What a
// learner has put into go.mod since is theirs.
func (w *workshop) equipped(folder string) bool {
	vendor, _ := os.Readlink(filepath.Join(folder, "vendor"))
	return vendor == w.vendor
}

// Tools is what the environment of a shell needs, beside the lab's, where lessons take
// place: somebody who writes a CCM types `go build`. A shell lasts for many lessons, so
// all of them have it; there is none where no lesson was started.
func (s *Seat) Tools() ([]lab.Var, error) {
	p, err := s.Progress()
	if err != nil || p.Current == "" {
		return nil, err
	}
	w, err := workshopHere()
	if err != nil {
		return nil, nil //nolint:nilerr // Most lessons need none; those that do, say so when they start.
	}
	return w.env, nil
}

// buildBound is how long a learner's program may take to compile: the first time,
// with all that it is made of.
const buildBound = 15 * time.Minute

// judged is the program that the suite judges. The learner's own is left as it is: the
// lab's agent may start it anew at any time, and the learner says when it changes.
const judged = "." + ownFolder

// build compiles the CCM in a folder, to be judged. An error says what the compiler says.
func (w *workshop) build(ctx context.Context, folder string) (program string, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, buildBound, fmt.Errorf("gave up after %s", buildBound))
	defer cancel()
	program = filepath.Join(folder, judged)
	cmd := exec.CommandContext(ctx, w.goCommand, "build", "-o", program, ".")
	cmd.Dir, cmd.Env = folder, lab.Environ(os.Environ(), w.env)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%s does not compile: %w\n%s", folder, cmp.Or(context.Cause(ctx), err), strings.TrimSpace(string(out)))
	}
	return program, nil
}
