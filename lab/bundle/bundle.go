// Package bundle packs everything that a lab needs into one archive, for a room
// without internet: the programs, upstream's among them, the images, and what
// lessons need, with the licences of all that. A list of checksums comes first, against
// which the other files are checked when they are unpacked.
//
// It knows nothing of what the programs do. Begin with Write and Unpack.
package bundle

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/ccmlab/ccmlab/lab/atomicfile"
	"github.com/ccmlab/ccmlab/lab/notices"
	"github.com/ccmlab/ccmlab/lab/process"
)

const (
	// sumsFile is the first file of a bundle, in the format of sha256sum(1). Before each file's line is a comment with
	// its size in bytes: "# 1234".
	sumsFile = "SHA256SUMS"
	// maxSums is the most bytes that are read of sumsFile, before anything can be trusted. Ten
	// thousand files, most of them Go's and the modules', take little more than 1 MB.
	maxSums = 8 << 20
	// maxFile is the most bytes of one file.
	maxFile = 1 << 36
)

// programPatterns match what a bundle has of the folder of programs. The lab command is
// first, so that one can extract it without reading the rest.
var programPatterns = []string{"lab", "fakecloud", "ccm", "kube/*", "images/*.tar", "node-image.tar*"}

// entry is a file to pack, and its name in the bundle.
type entry struct{ name, file string }

// Write packs the folder of programs, and more files by their names in the bundle, into
// file, all or nothing. It adds the licences of third-party code in the programs, and a software
// bill of materials. The same files give the same bundle, byte by byte.
func Write(
	ctx context.Context,
	dir string,
	more map[string]string,
	file string,
	note func(string),
) (packed int, err error) {
	entries, err := programEntries(dir)
	if err != nil {
		return 0, err
	}
	for _, name := range slices.Sorted(maps.Keys(more)) {
		entries = append(entries, entry{name, more[name]})
	}
	scratch, err := os.MkdirTemp("", "bundle-*")
	if err != nil {
		return 0, err
	}
	defer func() { _ = os.RemoveAll(scratch) }()
	note("collecting licences, and what the programs are made of")
	described, err := describeContents(ctx, entries, scratch)
	if err != nil {
		return 0, err
	}
	entries = append(entries, described...)
	note("computing checksums")
	sums, err := computeChecksums(ctx, entries)
	if err != nil {
		return 0, err
	}
	out, err := os.CreateTemp(filepath.Dir(file), ".bundle-*")
	if err != nil {
		return 0, err
	}
	defer func() { _ = os.Remove(out.Name()) }() // After the rename below there is no such file.
	if err := errors.Join(packFiles(ctx, out, entries, sums, note), out.Chmod(0o644), out.Close()); err != nil {
		return 0, err
	}
	return len(entries), atomicfile.Rename(out.Name(), file)
}

// programEntries are the files to pack of the folder of programs. A pattern that matches no file
// is an error.
func programEntries(dir string) ([]entry, error) {
	var entries []entry
	for _, pattern := range programPatterns {
		found, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			return nil, err
		}
		slices.Sort(found)
		n := len(entries)
		for _, file := range found {
			info, err := os.Stat(file)
			if err != nil {
				return nil, err
			}
			name, err := filepath.Rel(dir, file)
			if err != nil {
				return nil, err
			}
			if info.Mode().IsRegular() && !strings.HasPrefix(filepath.Base(name), ".") {
				entries = append(entries, entry{filepath.ToSlash(name), file})
			}
		}
		if len(entries) == n {
			return nil, fmt.Errorf("%s has no %s: `make build node-image` builds what a bundle holds", dir, pattern)
		}
	}
	return entries, nil
}

// describeContents writes into a folder the licences of third-party code in the programs, and their
// software bill of materials, and returns these files. The images contain their own.
func describeContents(ctx context.Context, entries []entry, folder string) ([]entry, error) {
	var collection notices.Collection
	for _, e := range entries {
		if err := addContents(&collection, e); err != nil {
			return nil, err
		}
	}
	files, err := collection.Files(ctx)
	if err != nil {
		return nil, err
	}
	var described []entry
	for _, name := range slices.Sorted(maps.Keys(files)) {
		described = append(described, entry{name, filepath.Join(folder, name)})
		err = errors.Join(err, os.WriteFile(filepath.Join(folder, name), []byte(files[name]), 0o644))
	}
	return described, err
}

func addContents(collection *notices.Collection, e entry) error {
	f, err := os.Open(e.file)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if strings.HasSuffix(e.name, "/vendor/modules.txt") {
		return collection.AddVendored(f)
	}
	info, err := f.Stat()
	if err != nil || info.Mode()&0o111 == 0 {
		return err
	}
	return collection.AddProgram(e.name, f)
}

func computeChecksums(ctx context.Context, entries []entry) ([]byte, error) {
	var sums bytes.Buffer
	for _, e := range entries {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		f, err := os.Open(e.file)
		if err != nil {
			return nil, err
		}
		hash := sha256.New()
		size, err := io.Copy(hash, f)
		if err := errors.Join(err, f.Close()); err != nil {
			return nil, err
		}
		_, _ = fmt.Fprintf(&sums, "# %d\n%x  %s\n", size, hash.Sum(nil), e.name)
	}
	return sums.Bytes(), nil
}

func packFiles(ctx context.Context, out io.Writer, entries []entry, sums []byte, note func(string)) error {
	compressed, err := gzip.NewWriterLevel(out, gzip.BestSpeed)
	if err != nil {
		return err
	}
	w := tar.NewWriter(compressed)
	if err := w.WriteHeader(&tar.Header{Name: sumsFile, Mode: 0o644, Size: int64(len(sums))}); err != nil {
		return err
	}
	if _, err := w.Write(sums); err != nil {
		return err
	}
	for i, e := range entries {
		if err := ctx.Err(); err != nil {
			return err
		}
		note(fmt.Sprintf("%d of %d: %s", i+1, len(entries), e.name))
		if err := packFile(w, e); err != nil {
			return err
		}
	}
	return errors.Join(w.Close(), compressed.Close())
}

func packFile(w *tar.Writer, e entry) error {
	f, err := os.Open(e.file)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	mode := int64(0o644) // The umask of whoever built the file makes no difference.
	if info.Mode()&0o111 != 0 {
		mode = 0o755
	}
	if err := w.WriteHeader(&tar.Header{Name: e.name, Mode: mode, Size: info.Size()}); err != nil {
		return err
	}
	_, err = io.Copy(w, f)
	return err
}

// Unpack unpacks a bundle into the user's cache, where the files stay, and
// returns their folder. A bundle that was unpacked before is not unpacked again.
func Unpack(ctx context.Context, file string, note func(string)) (dir string, err error) {
	f, err := os.Open(file)
	if err != nil {
		return "", fmt.Errorf("--bundle: %w", err)
	}
	defer func() { _ = f.Close() }()
	compressed, err := gzip.NewReader(bufio.NewReaderSize(f, 1<<20))
	if err != nil {
		return "", fmt.Errorf("--bundle %s is no bundle: %w", file, err)
	}
	r := tar.NewReader(compressed)
	sums, id, err := readSums(r)
	if err != nil {
		return "", fmt.Errorf("--bundle %s: %w", file, err)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("where to unpack the bundle: %w", err)
	}
	root := filepath.Join(cache, "ccmlab", "bundles")
	if dir = filepath.Join(root, id); folderExists(dir) {
		return dir, nil
	}
	if err := os.MkdirAll(root, 0o755); err != nil {
		return "", err
	}
	if err := checkSpace(root, sums); err != nil {
		return "", fmt.Errorf("--bundle %s: %w", file, err)
	}
	tmp, err := os.MkdirTemp(root, ".unpacking-*")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	if err := unpackFiles(ctx, r, tmp, sums, note); errors.Is(err, io.ErrUnexpectedEOF) {
		return "", fmt.Errorf("--bundle %s is cut short: copy it here again", file)
	} else if err != nil {
		return "", fmt.Errorf("--bundle %s: %w", file, err)
	}
	if err := os.Chmod(tmp, 0o755); err != nil {
		return "", err
	}
	if err := os.Rename(tmp, dir); err != nil && !folderExists(dir) { // Another command may have been faster.
		return "", err
	}
	return dir, nil
}

func folderExists(dir string) bool {
	_, err := os.Stat(dir)
	return !errors.Is(err, fs.ErrNotExist)
}

// contents is what sumsFile says of a file.
type contents struct {
	size int64
	sum  string
}

// readSums reads the first file of a bundle. The bundle's ID is the checksum of that file.
func readSums(r *tar.Reader) (sums map[string]contents, id string, err error) {
	header, err := r.Next()
	if err != nil || header.Name != sumsFile || header.Size > maxSums {
		return nil, "", errors.Join(fmt.Errorf("its first file is not %s", sumsFile), err)
	}
	data, err := io.ReadAll(r)
	if err != nil {
		return nil, "", err
	}
	sums = map[string]contents{}
	size := int64(-1)
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSpace(line)
		if text, ok := strings.CutPrefix(line, "# "); ok {
			if size, err = strconv.ParseInt(text, 10, 64); err != nil || size < 0 || size > maxFile {
				return nil, "", fmt.Errorf("%s has a line that is no size: %q", sumsFile, line)
			}
			continue
		}
		sum, name, ok := strings.Cut(line, "  ")
		if _, twice := sums[name]; !ok || twice || size < 0 || !filepath.IsLocal(name) {
			return nil, "", fmt.Errorf("%s has a line that is no checksum of a file of a known size: %q", sumsFile, line)
		}
		sums[name], size = contents{size, sum}, -1
	}
	hash := sha256.Sum256(data)
	return sums, hex.EncodeToString(hash[:8]), nil
}

// checkSpace is an error if the file system of dir has no room for the files.
func checkSpace(dir string, sums map[string]contents) error {
	var need uint64
	for _, want := range sums {
		need += uint64(want.size) //nolint:gosec // It is not negative, and maxSums bounds how many there are.
	}
	free, err := process.FreeSpace(dir)
	if err != nil {
		return err
	}
	if need > free {
		return fmt.Errorf("unpacked it takes %d MB, and %s has %d MB free", need>>20, dir, free>>20)
	}
	return nil
}

// unpackFiles writes the files that the checksums name. It fails unless the bundle has all of them
// and each has its size, which is looked at before anything of it is written, and its checksum.
func unpackFiles(ctx context.Context, r *tar.Reader, dir string, sums map[string]contents, note func(string)) error {
	left := len(sums)
	for ; ; left-- {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err := errors.Join(err, ctx.Err()); err != nil {
			return fmt.Errorf("it is damaged: %w", err)
		}
		want, ok := sums[header.Name]
		if !ok || header.Typeflag != tar.TypeReg {
			return fmt.Errorf("it holds %q, which %s does not name, or names twice", header.Name, sumsFile)
		}
		if header.Size != want.size {
			return fmt.Errorf("%s is damaged: it has %d bytes instead of %d", header.Name, header.Size, want.size)
		}
		delete(sums, header.Name)
		note(header.Name)
		if err := unpackFile(r, filepath.Join(dir, header.Name), fs.FileMode(header.Mode).Perm(), want.sum); err != nil {
			return err
		}
	}
	if left != 0 {
		return fmt.Errorf("it is cut short: %d files are missing", left)
	}
	return nil
}

func unpackFile(r io.Reader, file string, mode fs.FileMode, want string) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	hash := sha256.New()
	_, err = io.Copy(io.MultiWriter(f, hash), r)
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	if got := hex.EncodeToString(hash.Sum(nil)); got != want {
		return fmt.Errorf("%s is damaged: its checksum is %s instead of %s", filepath.Base(file), got, want)
	}
	return nil
}
