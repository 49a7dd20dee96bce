package lessons

// This file answers: what does a bundle hold beside the programs, so that every lesson
// can be taken from it? The CCMs with a mistake, and what compiles a learner's own.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"

	"github.com/ccmlab/ccmlab/lab/process"
	"github.com/ccmlab/ccmlab/lab/remedy"
)

// Pack is what is to be packed beside the programs of a clone: files, by their name in
// the bundle. Those that it makes are in scratch, a folder that goes once they are packed.
func Pack(ctx context.Context, scratch string, note func(string)) (map[string]string, error) {
	root, err := cloneOf()
	if err != nil {
		return nil, fmt.Errorf("%w, and a bundle is packed from one: `make bundle` there", err)
	}
	files := map[string]string{}
	if err := packSuspects(ctx, files, note); err != nil {
		return nil, err
	}
	return files, packWorkshop(ctx, root, scratch, files, note)
}

func packSuspects(ctx context.Context, files map[string]string, note func(string)) error {
	all, err := All()
	if err != nil {
		return err
	}
	for _, l := range all {
		if l.Mutant == "" {
			continue
		}
		program, err := suspect(ctx, l.Mutant, func(how string) { note("the CCM of lesson " + l.ID + ": " + how) })
		if err != nil {
			return fmt.Errorf("the CCM of lesson %s: %w", l.ID, err)
		}
		files[path.Join(suspects, l.Mutant, "ccm")] = program
	}
	return nil
}

// packWorkshop has what workshopIn finds.
func packWorkshop(ctx context.Context, root, scratch string, files map[string]string, note func(string)) error {
	note("collecting the modules of a learner's CCM")
	if err := vendor(ctx, root, scratch); err != nil {
		return err
	}
	note("collecting what the go command needs")
	if err := packGo(ctx, root, files); err != nil {
		return err
	}
	// Go's own may ask for modules and for other versions of Go. Without a C compiler's
	// help nothing is lost: the flags leave out all that is written in C.
	env := "GOPROXY=off\nGOTOOLCHAIN=local\nCGO_ENABLED=0\nGOFLAGS=" + compileFlags() + "\n"
	goEnv := filepath.Join(scratch, "go.env")
	if err := os.WriteFile(goEnv, []byte(env), 0o644); err != nil {
		return remedy.With(err)
	}
	files[path.Join(workshopFolder, "go", "go.env")] = goEnv
	files[path.Join(workshopFolder, "go.mod")] = filepath.Join(scratch, "go.mod")
	return packTree(files, workshopFolder, scratch, "vendor", func(string) bool { return true })
}

// vendor makes a module like the learner's, with a package for each step, and in its
// folder vendor all that these import. What is from the clone is there, too: nothing
// says where that was.
func vendor(ctx context.Context, root, folder string) error {
	all, err := All()
	if err != nil {
		return err
	}
	last := 0
	for _, l := range all {
		last = max(last, l.Step)
	}
	for step := range last + 1 {
		files, err := written(step)
		if err == nil {
			err = writeAll(filepath.Join(folder, fmt.Sprintf("step%d", step)), files)
		}
		if err != nil {
			return err
		}
	}
	w, err := workshopOf(root)
	if err == nil {
		err = w.equip(folder)
	}
	if err != nil {
		return err
	}
	if _, err := goSays(ctx, folder, "mod", "vendor"); err != nil {
		return err
	}
	return errors.Join(
		withoutLines(filepath.Join(folder, "go.mod"), "replace "+ownModule+" => "+root, ""),
		withoutLines(filepath.Join(folder, "vendor", "modules.txt"), "# "+ownModule+" => "+root, " => "+root),
	)
}

// withoutLines takes a line out of a file, and from the other lines what they end with.
func withoutLines(file, line, end string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var kept strings.Builder
	for l := range strings.Lines(string(data)) {
		if l = strings.TrimSuffix(l, "\n"); l != line {
			kept.WriteString(strings.TrimSuffix(l, end) + "\n")
		}
	}
	return os.WriteFile(file, []byte(kept.String()), 0o644)
}

// goTools are the programs that go build and go vet start. Those that are left out are
// for C, for coverage and for profiles.
var goTools = []string{"asm", "compile", "link", "vet"}

// packGo packs the Go that the clone is built with, but for what no learner needs: its
// commands' own sources, tests, race detectors, documentation.
func packGo(ctx context.Context, root string, files map[string]string) error {
	said, err := goSays(ctx, root, "env", "-json", "GOROOT", "GOTOOLDIR")
	if err != nil {
		return err
	}
	var env struct{ GOROOT, GOTOOLDIR string }
	if err := json.Unmarshal(said, &env); err != nil {
		return err
	}
	tools, err := filepath.Rel(env.GOROOT, env.GOTOOLDIR)
	if err != nil {
		return err
	}
	single := []string{"LICENSE", "PATENTS", "VERSION", "bin/go", "bin/gofmt"}
	for _, tool := range goTools {
		single = append(single, filepath.ToSlash(filepath.Join(tools, tool)))
	}
	to := path.Join(workshopFolder, "go")
	for _, name := range append(single, "pkg/include", "src") {
		if err := packTree(files, to, env.GOROOT, name, ofGo); err != nil {
			return fmt.Errorf("the Go in %s cannot be packed, as a distribution of the Go project could: %w", env.GOROOT, err)
		}
	}
	return nil
}

// ofGo tells whether a file or folder of Go's is needed to compile for this machine.
func ofGo(name string) bool {
	return name != "src/cmd" && path.Base(name) != "testdata" && !strings.HasSuffix(name, "_test.go") && path.Ext(name) != ".syso"
}

// packTree packs a file, or what is wanted below a folder.
func packTree(files map[string]string, to, from, name string, wanted func(name string) bool) error {
	return fs.WalkDir(os.DirFS(from), name, func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case !wanted(name) && d.IsDir():
			return fs.SkipDir
		case d.Type().IsRegular() && wanted(name):
			files[path.Join(to, name)] = filepath.Join(from, filepath.FromSlash(name))
		}
		return nil
	})
}

// goSays is what the go command prints.
func goSays(ctx context.Context, dir string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	said, err := cmd.Output()
	if failed := new(exec.ExitError); errors.As(err, &failed) {
		err = fmt.Errorf("%w\n%s", err, process.LastLines(string(failed.Stderr), 10))
	}
	if err != nil {
		return nil, fmt.Errorf("go %s: %w", strings.Join(args, " "), err)
	}
	return said, nil
}
