package lessons

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/ccmlab/ccmlab/lab/build"
	"github.com/ccmlab/ccmlab/lab/remedy"
)

// Pack returns the files that a bundle needs beside the programs of a clone, so that
// every lesson can be taken from it: the lessons' mutants, and the toolchain for a
// learner's CCM. Keys are names in the bundle. Files that Pack writes are in scratch, a
// folder that is removed once they are packed.
func Pack(ctx context.Context, scratch string, note func(string)) (map[string]string, error) {
	root, err := findClone()
	if err != nil {
		return nil, fmt.Errorf("%w, and a bundle is packed from one: `make bundle` there", err)
	}
	files := map[string]string{}
	if err := packMutants(ctx, files, note); err != nil {
		return nil, err
	}
	return files, packToolchain(ctx, root, scratch, files, note)
}

func packMutants(ctx context.Context, files map[string]string, note func(string)) error {
	all, err := All()
	if err != nil {
		return err
	}
	for _, l := range all {
		if l.Mutant == "" {
			continue
		}
		program, err := mutantBinary(ctx, l.Mutant, func(how string) { note("the CCM of lesson " + l.ID + ": " + how) })
		if err != nil {
			return fmt.Errorf("the CCM of lesson %s: %w", l.ID, err)
		}
		files[path.Join(mutantsDir, l.Mutant, "ccm")] = program
	}
	return nil
}

// packToolchain packs what bundledToolchain expects.
func packToolchain(ctx context.Context, root, scratch string, files map[string]string, note func(string)) error {
	note("collecting the modules of a learner's CCM")
	if err := vendorModules(ctx, root, scratch); err != nil {
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
	files[path.Join(bundledToolchainDir, "go", "go.env")] = goEnv
	files[path.Join(bundledToolchainDir, "go.mod")] = filepath.Join(scratch, "go.mod")
	return packTree(files, bundledToolchainDir, scratch, "vendor", func(string) bool { return true })
}

// vendorModules writes a module like the learner's, with one package per step, and
// vendors all that these import. The project's own packages are vendored too, and no
// path of the clone remains.
func vendorModules(ctx context.Context, root, folder string) error {
	all, err := All()
	if err != nil {
		return err
	}
	last := 0
	for _, l := range all {
		last = max(last, l.Step)
	}
	for step := range last + 1 {
		files, err := sourcesUpToStep(step)
		if err == nil {
			err = writeFiles(filepath.Join(folder, fmt.Sprintf("step%d", step)), files)
		}
		if err != nil {
			return err
		}
	}
	w, err := cloneToolchain(root)
	if err == nil {
		err = w.writeModule(folder)
	}
	if err != nil {
		return err
	}
	if _, err := build.RunGo(ctx, folder, "mod", "vendor"); err != nil {
		return err
	}
	return errors.Join(
		dropReplacements(filepath.Join(folder, "go.mod"), root),
		dropReplacements(filepath.Join(folder, "vendor", "modules.txt"), root),
	)
}

// dropReplacements removes from a go.mod or a modules.txt that modules are in a folder or
// below it. What is vendored in their place is left.
func dropReplacements(file, folder string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	below := " => " + regexp.QuoteMeta(folder) + "(/.*)?$"
	data = regexp.MustCompile(`(?m)^(replace|#) \S+`+below+`\n`).ReplaceAll(data, nil)
	return os.WriteFile(file, regexp.MustCompile(`(?m)`+below).ReplaceAll(data, nil), 0o644)
}

// goTools are the programs that go build and go vet start, without those for C,
// coverage and profiles.
var goTools = []string{"asm", "compile", "link", "vet"}

// packGo packs the Go distribution that the clone is built with, without what no
// learner needs: the sources of its commands, tests, race detectors, documentation.
func packGo(ctx context.Context, root string, files map[string]string) error {
	said, err := build.RunGo(ctx, root, "env", "-json", "GOROOT", "GOTOOLDIR")
	if err != nil {
		return err
	}
	var env struct{ GOROOT, GOTOOLDIR string }
	if err := json.Unmarshal([]byte(said), &env); err != nil {
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
	to := path.Join(bundledToolchainDir, "go")
	for _, name := range append(single, "pkg/include", "src") {
		if err := packTree(files, to, env.GOROOT, name, isNeededOfGo); err != nil {
			return fmt.Errorf(
				"the Go in %s cannot be packed, as a distribution of the Go project could: %w", env.GOROOT, err,
			)
		}
	}
	return nil
}

// isNeededOfGo tells whether a file or folder of the Go distribution is needed to
// compile for this machine.
func isNeededOfGo(name string) bool {
	return name != "src/cmd" && path.Base(name) != "testdata" && !strings.HasSuffix(name, "_test.go") &&
		path.Ext(name) != ".syso"
}

// packTree packs a file, or the wanted files below a folder.
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
