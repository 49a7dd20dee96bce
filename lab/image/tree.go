package image

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Tree is a file system that becomes a layer. Its keys are paths without the leading slash. All
// entries have the same time. They belong to root, unless they were read from an archive.
type Tree map[string]Entry

// Entry is a file, a folder, a link or a device.
type Entry struct {
	Header tar.Header
	Open   func() (Content, error) // Opens a file; nil for others.
}

// Content is what is in a file.
type Content interface {
	io.ReadCloser
	io.ReaderAt
}

// Dir adds a folder.
func (t Tree) Dir(name string, mode fs.FileMode) error {
	return t.addEntry(name, tar.Header{Typeflag: tar.TypeDir, Mode: tarMode(mode)}, nil)
}

// File adds a copy of a file of this machine. The file must not change until the tree is written,
// because it is read only then.
func (t Tree) File(name, source string, mode fs.FileMode) error {
	info, err := os.Stat(source)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is no file", source)
	}
	return t.addEntry(name, tar.Header{Typeflag: tar.TypeReg, Mode: tarMode(mode), Size: info.Size()},
		func() (Content, error) { return os.Open(source) })
}

// Text adds a file with that text.
func (t Tree) Text(name, text string, mode fs.FileMode) error {
	return t.addEntry(name, tar.Header{
		Typeflag: tar.TypeReg, Mode: tarMode(mode), Size: int64(len(text)),
	}, func() (Content, error) {
		return section{io.NewSectionReader(strings.NewReader(text), 0, int64(len(text)))}, nil
	})
}

// Link adds a symbolic link.
func (t Tree) Link(name, target string) error {
	return t.addEntry(name, tar.Header{Typeflag: tar.TypeSymlink, Mode: 0o777, Linkname: target}, nil)
}

// Folder adds everything below a folder of this machine. The files for which executable is true
// get mode 0755, others 0644.
func (t Tree) Folder(name, source string, executable func(name string) bool) error {
	return filepath.WalkDir(source, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(source, file)
		if err != nil {
			return err
		}
		to := path.Join(name, filepath.ToSlash(rel))
		switch {
		case d.IsDir():
			return t.Dir(to, 0o755)
		case executable(to):
			return t.File(to, file, 0o755)
		}
		return t.File(to, file, 0o644)
	})
}

// Remove removes what the patterns match, and everything below it.
func (t Tree) Remove(patterns ...string) error {
	for _, pattern := range patterns {
		for name := range t {
			for at := name; at != "."; at = path.Dir(at) {
				match, err := path.Match(pattern, at)
				if err != nil {
					return fmt.Errorf("%s: %w", pattern, err)
				}
				if match {
					delete(t, name)
				}
			}
		}
	}
	return nil
}

// addEntry adds an entry at the path to which links lead: /sbin may be a link to /usr/sbin.
func (t Tree) addEntry(name string, header tar.Header, open func() (Content, error)) error {
	name = strings.Trim(path.Clean("/"+name), "/")
	if name == "" {
		return nil // The root is there.
	}
	parent, err := t.Real(path.Dir(name))
	if err != nil {
		return err
	}
	for dir := parent; dir != "."; dir = path.Dir(dir) {
		if _, ok := t[dir]; !ok {
			t[dir] = Entry{Header: tar.Header{Name: dir + "/", Typeflag: tar.TypeDir, Mode: 0o755}}
		}
	}
	name = path.Join(parent, path.Base(name))
	if header.Typeflag == tar.TypeDir {
		if real, err := t.Real(name); err == nil {
			name = real
		}
	}
	header.Name = name
	if header.Typeflag == tar.TypeDir {
		header.Name += "/"
	}
	t[name] = Entry{Header: header, Open: open}
	return nil
}

// Real is the path to which the links on a path lead. Parts of the path that do not exist are
// kept.
func (t Tree) Real(name string) (string, error) {
	at := "."
	rest := strings.Split(strings.Trim(path.Clean("/"+name), "/"), "/")
	for links := 0; len(rest) > 0; {
		at, rest = path.Join(at, rest[0]), rest[1:]
		entry, ok := t[at]
		if !ok || entry.Header.Typeflag != tar.TypeSymlink {
			continue
		}
		if links++; links > 40 {
			return "", fmt.Errorf("%s: too many links", name)
		}
		target := entry.Header.Linkname
		if !path.IsAbs(target) {
			target = path.Join("/", path.Dir(at), target)
		}
		at, rest = ".", append(strings.Split(strings.Trim(path.Clean(target), "/"), "/"), rest...)
	}
	return at, nil
}

// ReadTree reads an uncompressed archive. The file must stay open and unchanged
// for as long as the tree is used.
func ReadTree(f *os.File) (Tree, error) {
	t := Tree{}
	for r := tar.NewReader(f); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return t, nil
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f.Name(), err)
		}
		name := strings.Trim(path.Clean("/"+header.Name), "/")
		if name == "" {
			continue
		}
		entry := Entry{Header: *header}
		entry.Header.Name = name
		if header.Typeflag == tar.TypeDir {
			entry.Header.Name += "/"
		}
		if header.Typeflag == tar.TypeLink {
			entry.Header.Linkname = strings.Trim(path.Clean("/"+header.Linkname), "/")
		}
		if header.Typeflag == tar.TypeReg {
			offset, err := f.Seek(0, io.SeekCurrent) // The tar reader reads no further than the header.
			if err != nil {
				return nil, err
			}
			entry.Open = func() (Content, error) { return section{io.NewSectionReader(f, offset, header.Size)}, nil }
		}
		t[name] = entry
	}
}

// section is a part of a file, or a text, as Content.
type section struct{ *io.SectionReader }

func (section) Close() error { return nil }

// write writes the tree as an archive: sorted, and hard links last, so that their targets come
// before them.
func (t Tree) write(w io.Writer) error {
	names := slices.Sorted(maps.Keys(t))
	out := tar.NewWriter(w)
	for _, hard := range []bool{false, true} {
		for _, name := range names {
			if entry := t[name]; (entry.Header.Typeflag == tar.TypeLink) == hard {
				if err := entry.write(out); err != nil {
					return fmt.Errorf("%s: %w", name, err)
				}
			}
		}
	}
	return out.Close()
}

func (e Entry) write(out *tar.Writer) error {
	header := e.Header
	header.ModTime, header.AccessTime, header.ChangeTime = time.Unix(0, 0), time.Time{}, time.Time{}
	header.Format = tar.FormatPAX
	if err := out.WriteHeader(&header); err != nil || e.Open == nil {
		return err
	}
	content, err := e.Open()
	if err != nil {
		return err
	}
	defer func() { _ = content.Close() }()
	_, err = io.Copy(out, content)
	return err
}

func tarMode(mode fs.FileMode) int64 {
	bits := int64(mode.Perm())
	if mode&fs.ModeSticky != 0 {
		bits |= 0o1000
	}
	return bits
}

// Read returns the content of a file.
func (t Tree) Read(name string) ([]byte, error) {
	entry, err := t.findFile(name)
	if err != nil {
		return nil, err
	}
	content, err := entry.Open()
	if err != nil {
		return nil, err
	}
	defer func() { _ = content.Close() }()
	return io.ReadAll(content)
}

// findFile is the file at a path. It follows symbolic and hard links.
func (t Tree) findFile(name string) (Entry, error) {
	real, err := t.Real(name)
	if err != nil {
		return Entry{}, err
	}
	entry := t[real]
	if entry.Header.Typeflag == tar.TypeLink {
		entry = t[entry.Header.Linkname]
	}
	if entry.Open == nil {
		return Entry{}, &fs.PathError{Op: "read", Path: name, Err: fs.ErrNotExist}
	}
	return entry, nil
}
