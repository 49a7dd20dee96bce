// Package notices collects the licences of third-party code that is compiled into Go
// programs, because they must be passed on with the programs. A program contains the list of
// its modules, and their licences are in Go's module cache, from which it was compiled.
//
// It knows neither images nor bundles. Begin with Collection.
package notices

import (
	"bytes"
	"context"
	"debug/buildinfo"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/mod/module"

	"github.com/ccmlab/ccmlab/lab/build"
	"github.com/ccmlab/ccmlab/lab/process"
)

const (
	// LicenseFile is the file with the project's own licence, in a clone and wherever programs
	// are passed on.
	LicenseFile = "LICENSE"
	// ThirdPartyFile is the file beside it with the third-party licences, where programs are
	// passed on.
	ThirdPartyFile = "THIRD_PARTY_NOTICES"
)

// Collection is the set of programs in one artefact, and of the modules that they are made of.
type Collection struct {
	programs map[string]bool
	modules  map[module.Version]bool
}

// AddProgram adds a program, and lists it by this name. A file that Go did not compile is ignored.
func (c *Collection) AddProgram(name string, program io.ReaderAt) error {
	info, err := buildinfo.Read(program)
	if err != nil {
		return nil //nolint:nilerr // The error says that the file is no Go program.
	}
	if _, known := otherTerms[info.Path]; known && info.Main.Path == "" {
		return nil
	}
	if c.programs == nil {
		c.programs, c.modules = map[string]bool{}, map[module.Version]bool{}
	}
	c.programs[name] = true
	if strings.HasPrefix(info.Path, "cmd/") {
		return nil // A program of Go's own, made of nothing else.
	}
	if info.Main.Path == "" {
		return fmt.Errorf("%s does not say of which modules it is made", name)
	}
	for _, m := range append(info.Deps, &info.Main) {
		if _, known := replacedByOwn[m.Path]; known && m.Replace != nil || isOwnModule(m.Path) {
			continue
		}
		if m.Replace != nil {
			m = m.Replace
		}
		if isOwnModule(m.Path) {
			continue
		}
		version := module.Version{Path: m.Path, Version: m.Version}
		if err := module.Check(version.Path, version.Version); err != nil {
			return fmt.Errorf("%s is made of a module whose licence cannot be looked up: %w", name, err)
		}
		c.modules[version] = true
	}
	return nil
}

// isOwnModule tells whether a module is one of this repository's.
func isOwnModule(path string) bool {
	return path == build.ModulePath || strings.HasPrefix(path, build.ModulePath+"/")
}

// Text is the text of all licences. It is the same whenever the programs are the same.
func (c *Collection) Text(ctx context.Context) (string, error) {
	if len(c.programs) == 0 {
		return "", errors.New("there is no program whose third-party notices could be collected")
	}
	modules := slices.Collect(maps.Keys(c.modules))
	module.Sort(modules)
	folders, err := moduleFolders(ctx, modules)
	if err != nil {
		return "", err
	}
	l := listing{byWords: map[string]int{}}
	errs := []error{l.addOwnText("Go's runtime and standard library", "go")}
	for _, m := range modules {
		errs = append(errs, l.addComponent(m.Path+" "+m.Version, os.DirFS(folders[m])))
		for _, part := range partsWithoutTerms[m.Path] {
			errs = append(errs, l.addOwnText(part+" (with "+m.Path+")", part))
		}
	}
	return l.format(slices.Sorted(maps.Keys(c.programs))), errors.Join(errs...)
}

// moduleFolders says where the modules are in Go's cache. It downloads modules that are missing
// there, because another machine compiled the programs.
func moduleFolders(ctx context.Context, modules []module.Version) (map[module.Version]string, error) {
	cache, err := goCommand(ctx, "env", "GOMODCACHE")
	if err != nil {
		return nil, err
	}
	folders := map[module.Version]string{}
	download := []string{"mod", "download"}
	for _, m := range modules {
		escapedPath, pathErr := module.EscapePath(m.Path)
		escapedVersion, versionErr := module.EscapeVersion(m.Version)
		if err := errors.Join(pathErr, versionErr); err != nil {
			return nil, err
		}
		folders[m] = filepath.Join(strings.TrimSpace(cache), filepath.FromSlash(escapedPath)+"@"+escapedVersion)
		if _, err := os.Stat(folders[m]); errors.Is(err, fs.ErrNotExist) {
			download = append(download, m.Path+"@"+m.Version)
		}
	}
	if len(download) > 2 {
		if _, err := goCommand(ctx, download...); err != nil {
			return nil, fmt.Errorf("the licences of what the programs are made of: %w", err)
		}
	}
	return folders, nil
}

// goCommand runs go outside of any module, so that no go.mod or go.sum is changed.
func goCommand(ctx context.Context, args ...string) (string, error) {
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir, cmd.Stderr = os.TempDir(), &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, process.LastLines(stderr.String(), 10))
	}
	return string(out), nil
}

// listing is what the text is made from: the components, and each licence text once,
// no matter how many components have it.
type listing struct {
	components []string
	texts      []licenseText
	byWords    map[string]int // The index in texts, by the words of a text: white space does not count.
}

type licenseText struct {
	text  string
	files []string
}

// addComponent adds all licence texts in a component's folder.
func (l *listing) addComponent(component string, folder fs.FS) error {
	files, err := licenseFiles(folder)
	if err != nil {
		return fmt.Errorf("the licence of %s: %w", component, err)
	}
	if !slices.ContainsFunc(files, licenseFile.isOfAll) {
		return fmt.Errorf(
			"%s has no licence text: what it is called, if it has one, belongs into lab/notices", component,
		)
	}
	var numbers []string
	for _, file := range files {
		words := strings.Join(strings.Fields(file.text), " ")
		at, known := l.byWords[words]
		if !known {
			at = len(l.texts)
			l.byWords[words] = at
			l.texts = append(l.texts, licenseText{text: file.text})
		}
		l.texts[at].files = append(l.texts[at].files, component+": "+file.name)
		if number := fmt.Sprintf("[%d]", at+1); !slices.Contains(numbers, number) {
			numbers = append(numbers, number)
		}
	}
	l.components = append(l.components, component+" "+strings.Join(numbers, ""))
	return nil
}

// addOwnText adds a component whose licence is kept here, in a folder of texts.
func (l *listing) addOwnText(component, folder string) error {
	files, err := fs.Sub(texts, path.Join("texts", folder))
	if err != nil {
		return err
	}
	return l.addComponent(component, files)
}

const headerFormat = `Third-party notices of CCM Lab

CCM Lab is under the Apache License, version 2.0: see LICENSE beside this file.
These programs of it, and those it brings along, are compiled with other
people's code:

    %s

What that code is comes first, each with the numbers of its terms, which follow.
A module's terms are all here, also where a program uses only a part of it.
"go mod download MODULE@VERSION" fetches a module's source. Where there are
packages of Debian, the terms of each are in /usr/share/doc/PACKAGE/copyright.
An image beside these programs has its own notices in /usr/share/doc/ccmlab.

`

func (l *listing) format(programs []string) string {
	var out strings.Builder
	_, _ = fmt.Fprintf(&out, headerFormat, strings.Join(programs, "\n    "))
	for _, component := range l.components {
		_, _ = fmt.Fprintf(&out, "%s\n", component)
	}
	for i, t := range l.texts {
		files := strings.Join(t.files, "\n    ")
		_, _ = fmt.Fprintf(&out, "\n%s\n[%d] %s\n\n%s\n", strings.Repeat("=", 80), i+1, files, t.text)
	}
	return out.String()
}

// licenseFile is a licence text, with the file's name in its module.
type licenseFile struct{ name, text string }

// licenseFiles are the files below a folder whose names say that they contain licence terms.
func licenseFiles(folder fs.FS) (files []licenseFile, err error) {
	err = fs.WalkDir(folder, ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && name != "." && isNeverCompiled(d.Name()):
			return fs.SkipDir
		case !d.Type().IsRegular() || !hasTerms(d.Name()):
			return nil
		}
		data, err := fs.ReadFile(folder, name)
		if err == nil && !bytes.ContainsRune(data, 0) { // Otherwise it is no text, e.g. a picture of the authors.
			text := strings.Trim(strings.ReplaceAll(string(data), "\r\n", "\n"), "\n")
			files = append(files, licenseFile{name: name, text: text})
		}
		return err
	})
	return files, err
}

// isNeverCompiled tells whether the go command ignores a folder with this name.
func isNeverCompiled(name string) bool {
	return name == "testdata" || strings.HasPrefix(name, "_") || strings.HasPrefix(name, ".")
}

// metaPrefixes begin the names of the files that `go mod vendor` copies along
// (cmd/go/internal/modcmd/vendor.go). "LICENCE" is one more spelling.
var metaPrefixes = []string{
	"AUTHORS", "CONTRIBUTORS", "COPYLEFT", "COPYING", "COPYRIGHT", "LEGAL", "LICENCE", "LICENSE", "NOTICE",
	"PATENTS",
}

// hasTerms tells whether a file with this name contains licence terms.
func hasTerms(name string) bool {
	return path.Ext(name) != ".go" && slices.ContainsFunc(metaPrefixes, func(prefix string) bool {
		return strings.HasPrefix(strings.ToUpper(name), prefix)
	})
}

// isOfAll tells whether the file has the licence of its whole module, not of a part.
func (l licenseFile) isOfAll() bool {
	return slices.ContainsFunc([]string{"COPYING", "COPYRIGHT", "LICENCE", "LICENSE"}, func(prefix string) bool {
		return strings.HasPrefix(strings.ToUpper(l.name), prefix)
	}) && !strings.Contains(l.name, "/")
}
