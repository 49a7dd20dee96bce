package image

import (
	"archive/tar"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ccmlab/ccmlab/lab/notices"
)

// CopyPrograms copies programs and plug-ins from another tree, each under the
// name that is given here. It also copies the libraries that they are linked to, and the libraries
// of these.
func (t Tree) CopyPrograms(from Tree, names ...string) error {
	dirs := from.libraryDirs()
	done := map[string]bool{}
	for len(names) > 0 {
		name := names[0]
		names = names[1:]
		if done[name] {
			continue
		}
		done[name] = true
		entry, err := from.findFile(name)
		if err != nil {
			return err
		}
		needs, err := entry.listLibraries()
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		for _, need := range needs {
			library, err := from.findLibrary(need, dirs)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			names = append(names, library)
		}
		if err := t.addEntry(name, entry.Header, entry.Open); err != nil {
			return err
		}
	}
	return nil
}

// listLibraries lists the libraries that an ELF file is linked to, and the loader of a program.
func (e Entry) listLibraries() (needs []string, err error) {
	content, err := e.Open()
	if err != nil {
		return nil, err
	}
	defer func() { _ = content.Close() }()
	file, err := elf.NewFile(content)
	if err != nil {
		return nil, err
	}
	for _, p := range file.Progs {
		if p.Type == elf.PT_INTERP {
			loader, err := io.ReadAll(io.LimitReader(p.Open(), 4096))
			if err != nil {
				return nil, err
			}
			needs = append(needs, strings.TrimRight(string(loader), "\x00"))
		}
	}
	libraries, err := file.ImportedLibraries()
	return append(needs, libraries...), err
}

// libraryDirs are the folders in which Debian has libraries.
func (t Tree) libraryDirs() []string {
	dirs := []string{"usr/lib", "usr/lib64"}
	for name := range t {
		if ok, err := path.Match("usr/lib/*-linux-gnu*", name); ok && err == nil {
			dirs = append(dirs, name)
		}
	}
	slices.Sort(dirs)
	return dirs
}

// findLibrary is the path of a library, which may be given as a path or as a name in one of dirs.
func (t Tree) findLibrary(name string, dirs []string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	for _, dir := range dirs {
		if _, err := t.findFile(path.Join(dir, name)); err == nil {
			return path.Join(dir, name), nil
		}
	}
	return "", errors.New("its library " + name + " is not there")
}

// DocFolder is the folder in which an image has the licences, and the list of what it is made of.
const DocFolder = "usr/share/doc/ccmlab"

const (
	// DebianStatus is dpkg's list of packages.
	DebianStatus = "var/lib/dpkg/status"
	// DebianStatusFolder has a file for each package, in an image that has no dpkg.
	DebianStatusFolder = "var/lib/dpkg/status.d"
)

// AddNotices adds the licences that must be passed on with an image: the project's own, from the
// root of a clone, and those of third-party code in all programs that the tree has by now. It also
// adds a software bill of materials: the modules of these programs, and Debian's packages.
func (t Tree) AddNotices(ctx context.Context, root string) error {
	var collection notices.Collection
	for _, name := range slices.Sorted(maps.Keys(t)) {
		if name == DebianStatus || path.Dir(name) == DebianStatusFolder {
			status, err := t.Read(name)
			if err != nil {
				return err
			}
			collection.AddDebian(status)
		}
		entry := t[name]
		if entry.Header.Typeflag != tar.TypeReg || entry.Header.Mode&0o111 == 0 || entry.Open == nil {
			continue
		}
		content, err := entry.Open()
		if err != nil {
			return err
		}
		if err := errors.Join(collection.AddProgram("/"+name, content), content.Close()); err != nil {
			return err
		}
	}
	files, err := collection.Files(ctx)
	if err != nil {
		return err
	}
	for name, text := range files {
		if err := t.Text(path.Join(DocFolder, name), text, 0o644); err != nil {
			return err
		}
	}
	return t.File(path.Join(DocFolder, notices.LicenseFile), filepath.Join(root, notices.LicenseFile), 0o644)
}
