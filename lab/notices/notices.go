// Package notices tells what an artefact is made of: the licences of third-party code that is
// compiled into its Go programs, because they must be passed on with the programs, and a software
// bill of materials (sbom.go). A program contains the list of its modules, and their licences are
// in Go's module cache, from which it was compiled.
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
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/mod/module"

	"github.com/ccmlab/ccmlab/lab/build"
)

const (
	// LicenseFile is the file with the project's own licence, in a clone and wherever programs
	// are passed on.
	LicenseFile = "LICENSE"
	// ThirdPartyFile is the file beside it with the third-party licences, where programs are
	// passed on.
	ThirdPartyFile = "THIRD_PARTY_NOTICES"
	// SBOMFile is the software bill of materials beside both.
	SBOMFile = "sbom.cdx.json"
)

// Collection is the set of programs in one artefact, and of the modules that they are made of.
type Collection struct {
	Inventory
	programs map[string]bool
	modules  map[module.Version]bool
}

// AddProgram adds a program, and lists it by this name. A file that Go did not compile is ignored.
func (c *Collection) AddProgram(name string, program io.ReaderAt) error {
	info, err := buildinfo.Read(program)
	if err != nil {
		return nil //nolint:nilerr // The error says that the file is no Go program.
	}
	c.addProgram(name, info)
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
		if isOwnModule(m.Path) || m.Replace != nil && replacedByOwn[m.Path] != "" {
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

// Files are the texts to pass on, by the files' names. They are the same whenever the artefact is
// the same.
func (c *Collection) Files(ctx context.Context) (map[string]string, error) {
	terms, err1 := c.terms(ctx)
	bom, err2 := c.sbom()
	return map[string]string{ThirdPartyFile: terms, SBOMFile: bom}, errors.Join(err1, err2)
}

// terms is the text of all licences.
func (c *Collection) terms(ctx context.Context) (string, error) {
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
	for i, m := range modules {
		errs = append(errs, l.addComponent(m.Path+" "+m.Version, os.DirFS(folders[i])))
		for _, part := range partsWithoutTerms[m.Path] {
			errs = append(errs, l.addOwnText(part+" (with "+m.Path+")", part))
		}
	}
	return l.format(slices.Sorted(maps.Keys(c.programs))), errors.Join(errs...)
}

// moduleFolders says where the modules are in Go's cache. It downloads modules that are missing
// there, because another machine compiled the programs.
func moduleFolders(ctx context.Context, modules []module.Version) (folders []string, err error) {
	outside := os.TempDir() // Of any module, so that no go.mod or go.sum is changed.
	cache, err := build.RunGo(ctx, outside, "env", "GOMODCACHE")
	if err != nil {
		return nil, err
	}
	download := []string{"mod", "download"}
	for _, m := range modules {
		escaped, err1 := module.EscapePath(m.Path)
		version, err2 := module.EscapeVersion(m.Version)
		if err := errors.Join(err1, err2); err != nil {
			return nil, err
		}
		folder := filepath.Join(strings.TrimSpace(cache), filepath.FromSlash(escaped)+"@"+version)
		if _, err := os.Stat(folder); errors.Is(err, fs.ErrNotExist) {
			download = append(download, m.Path+"@"+m.Version)
		}
		folders = append(folders, folder)
	}
	if len(download) > 2 {
		if _, err := build.RunGo(ctx, outside, download...); err != nil {
			return nil, fmt.Errorf("the licences of what the programs are made of: %w", err)
		}
	}
	return folders, nil
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
	var numbers []string
	whole := false
	err := fs.WalkDir(folder, ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && name != "." && neverCompiled.MatchString(d.Name()):
			return fs.SkipDir
		case !d.Type().IsRegular() || !hasTerms.MatchString(d.Name()) || path.Ext(name) == ".go":
			return nil
		}
		data, err := fs.ReadFile(folder, name)
		if err != nil || bytes.ContainsRune(data, 0) { // This is no text, e.g. a picture of the authors.
			return err
		}
		whole = whole || hasOwnTerms.MatchString(name)
		number := l.addText(string(data), component+": "+name)
		if !slices.Contains(numbers, number) {
			numbers = append(numbers, number)
		}
		return nil
	})
	switch {
	case err != nil:
		return fmt.Errorf("the licence of %s: %w", component, err)
	case !whole:
		return fmt.Errorf(
			"%s has no licence text: what it is called, if it has one, belongs into lab/notices", component,
		)
	}
	l.components = append(l.components, component+" "+strings.Join(numbers, ""))
	return nil
}

// addText adds a text of a file, and returns its number.
func (l *listing) addText(text, file string) string {
	words := strings.Join(strings.Fields(text), " ")
	at, known := l.byWords[words]
	if !known {
		at = len(l.texts)
		l.byWords[words] = at
		l.texts = append(l.texts, licenseText{text: strings.Trim(strings.ReplaceAll(text, "\r\n", "\n"), "\n")})
	}
	l.texts[at].files = append(l.texts[at].files, file)
	return fmt.Sprintf("[%d]", at+1)
}

// addOwnText adds a component whose licence is kept here, in a folder of texts.
func (l *listing) addOwnText(component, folder string) error {
	files, err := fs.Sub(texts, path.Join("texts", folder))
	if err != nil {
		return err
	}
	return l.addComponent(component, files)
}

var (
	// neverCompiled matches folders that the go command ignores.
	neverCompiled = regexp.MustCompile(`^(testdata$|_|\.)`)
	// hasTerms matches the files that `go mod vendor` copies along
	// (cmd/go/internal/modcmd/vendor.go). "LICENCE" is one more spelling.
	hasTerms = regexp.MustCompile(
		`(?i)^(AUTHORS|CONTRIBUTORS|COPYLEFT|COPYING|COPYRIGHT|LEGAL|LICEN[CS]E|NOTICE|PATENTS)`,
	)
	// hasOwnTerms matches the paths of files with the licence of a whole module, not of a part.
	hasOwnTerms = regexp.MustCompile(`(?i)^(COPYING|COPYRIGHT|LICEN[CS]E)[^/]*$`)
)

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
