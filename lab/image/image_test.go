package image

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func writeProgram(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "greet")
	require.NoError(t, os.WriteFile(file, []byte(text), 0o700))
	return file
}

func TestSameInputGivesSameBytes(t *testing.T) {
	dir := t.TempDir()
	write := func(file, text string) []byte {
		t.Helper()
		spec, err := Program("ccmlab/greet:dev", writeProgram(t, text), false)
		require.NoError(t, err)
		require.NoError(t, WriteFile(filepath.Join(dir, file), spec))
		data, err := os.ReadFile(filepath.Join(dir, file))
		require.NoError(t, err)
		return data
	}
	assert.Equal(t, write("one.tar", "hello"), write("two.tar", "hello"))
	assert.NotEqual(t, write("one.tar", "hello"), write("three.tar", "other"))

	one, err := ID(filepath.Join(dir, "one.tar"))
	require.NoError(t, err)
	assert.Regexp(t, "^sha256:[0-9a-f]{64}$", one)
	two, err := ID(filepath.Join(dir, "two.tar"))
	require.NoError(t, err)
	three, err := ID(filepath.Join(dir, "three.tar"))
	require.NoError(t, err)
	assert.Equal(t, one, two)
	assert.NotEqual(t, one, three)
	left, err := filepath.Glob(filepath.Join(dir, ".image-*"))
	require.NoError(t, err)
	assert.Empty(t, left)
}

func TestProgramImage(t *testing.T) {
	spec, err := Program("ccmlab/greet:dev", writeProgram(t, "hello"), false)
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "greet.tar")
	require.NoError(t, WriteFile(file, spec))

	tag, err := name.NewTag("ccmlab/greet:dev")
	require.NoError(t, err)
	img, err := tarball.ImageFromPath(file, &tag)
	require.NoError(t, err)
	config, err := img.ConfigFile()
	require.NoError(t, err)
	assert.Equal(t, []string{"/greet"}, config.Config.Entrypoint)
	assert.Equal(t, "65532:65532", config.Config.User)
	layers, err := img.Layers()
	require.NoError(t, err)
	require.Len(t, layers, 1)
	content, err := layers[0].Uncompressed()
	require.NoError(t, err)
	defer func() { require.NoError(t, content.Close()) }()
	assert.Equal(t, map[string]string{"greet": "hello", "tmp/": ""}, readArchive(t, content))
}

// An image has the licences of what is in it, and its label says the project's own.
func TestImageLicenses(t *testing.T) {
	self, err := os.Executable()
	require.NoError(t, err)
	spec, err := Program("ccmlab/greet:dev", self, false)
	require.NoError(t, err)
	require.NoError(t, spec.Tree.Text("usr/bin/script", "#!/bin/sh\n", 0o755))
	status := "Package: greet\nVersion: 1\nArchitecture: all\n"
	require.NoError(t, spec.Tree.Text("var/lib/dpkg/status", status, 0o644))
	require.NoError(t, spec.Tree.AddNotices(t.Context(), filepath.Join("..", "..")))
	file := filepath.Join(t.TempDir(), "greet.tar")
	require.NoError(t, WriteFile(file, spec))
	img, err := tarball.ImageFromPath(file, nil)
	require.NoError(t, err)
	config, err := img.ConfigFile()
	require.NoError(t, err)
	assert.Equal(t, "Apache-2.0", config.Config.Labels["org.opencontainers.image.licenses"])
	layers, err := img.Layers()
	require.NoError(t, err)
	content, err := layers[0].Uncompressed()
	require.NoError(t, err)
	defer func() { require.NoError(t, content.Close()) }()
	files := readArchive(t, content)
	license, err := os.ReadFile(filepath.Join("..", "..", "LICENSE"))
	require.NoError(t, err)
	assert.Equal(t, string(license), files["usr/share/doc/ccmlab/LICENSE"])
	assert.Contains(t, files["usr/share/doc/ccmlab/THIRD_PARTY_NOTICES"], "\n    /"+filepath.Base(self)+"\n\n")
	assert.Contains(t, files["usr/share/doc/ccmlab/THIRD_PARTY_NOTICES"], "The Go Authors")
	assert.Contains(t, files["usr/share/doc/ccmlab/sbom.cdx.json"], `"file:/`+filepath.Base(self)+`"`)
	assert.Contains(t, files["usr/share/doc/ccmlab/sbom.cdx.json"], `"pkg:deb/debian/greet@1?arch=all"`)

	spec, err = Program("ccmlab/greet:dev", writeProgram(t, "#!/bin/sh\n"), false)
	require.NoError(t, err)
	require.ErrorContains(t, spec.Tree.AddNotices(t.Context(), filepath.Join("..", "..")), "no program")
}

func TestIDErrors(t *testing.T) {
	file := filepath.Join(t.TempDir(), "no.tar")
	_, err := ID(file)
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.NoError(t, os.WriteFile(file, []byte("no archive"), 0o600))
	_, err = ID(file)
	require.ErrorContains(t, err, file)
}

// A tree that was written and read again gives the same archive, also with links.
func TestTreeRoundTrip(t *testing.T) {
	tree := Tree{}
	require.NoError(t, tree.Dir("usr/sbin", 0o755))
	require.NoError(t, tree.Link("sbin", "usr/sbin"))
	require.NoError(t, tree.Text("/sbin/init", "init", 0o755))
	require.NoError(t, tree.Dir("/sbin", 0o700))
	tree["a-hard-link"] = Entry{
		Header: tar.Header{Name: "a-hard-link", Typeflag: tar.TypeLink, Linkname: "usr/sbin/init"},
	}
	assert.Contains(t, tree, "usr/sbin/init", "what is added goes where the link leads")
	assert.Equal(t, int64(0o700), tree["usr/sbin"].Header.Mode)

	file, err := os.Create(filepath.Join(t.TempDir(), "tree.tar"))
	require.NoError(t, err)
	defer func() { _ = file.Close() }()
	var first, second bytes.Buffer
	require.NoError(t, tree.write(io.MultiWriter(file, &first)))
	_, err = file.Seek(0, io.SeekStart)
	require.NoError(t, err)
	again, err := ReadTree(file)
	require.NoError(t, err)
	require.NoError(t, again.write(&second))
	assert.Equal(t, first.Bytes(), second.Bytes())
	content, err := again["usr/sbin/init"].Open()
	require.NoError(t, err)
	text, err := io.ReadAll(content)
	require.NoError(t, err)
	assert.Equal(t, "init", string(text))
}

func TestRemoveIncludesSubfolders(t *testing.T) {
	tree := Tree{}
	for _, name := range []string{"etc/a.wants/x", "etc/a.wants/y/z", "etc/b", "dev/null"} {
		require.NoError(t, tree.Text(name, "", 0o644))
	}
	require.NoError(t, tree.Remove("etc/*.wants/*", "dev/*"))
	var buf bytes.Buffer
	require.NoError(t, tree.write(&buf))
	assert.Equal(t, map[string]string{"dev/": "", "etc/": "", "etc/a.wants/": "", "etc/b": ""}, readArchive(t, &buf))
}

// Whatever links there are, following them terminates, and inside the tree.
func TestRealTerminates(t *testing.T) {
	part := rapid.SampledFrom([]string{"a", "b", "c", "..", ".", ""})
	rapid.Check(t, func(t *rapid.T) {
		tree := Tree{}
		for range rapid.IntRange(0, 8).Draw(t, "links") {
			path := func(label string) string {
				return filepath.Join(rapid.SliceOfN(part, 1, 4).Draw(t, label)...)
			}
			_ = tree.Link(path("name"), rapid.SampledFrom([]string{"", "/"}).Draw(t, "root")+path("target"))
		}
		if real, err := tree.Real(filepath.Join(rapid.SliceOfN(part, 1, 4).Draw(t, "path")...)); err == nil {
			assert.True(t, real == "." || filepath.IsLocal(real), real)
		}
		assert.NoError(t, tree.write(io.Discard))
	})
}

func readArchive(t *testing.T, r io.Reader) map[string]string {
	t.Helper()
	files := map[string]string{}
	for archive := tar.NewReader(r); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		require.NoError(t, err)
		content, err := io.ReadAll(archive)
		require.NoError(t, err)
		files[header.Name] = string(content)
	}
}

// The libraries to expect are those that the machine's own ldd lists.
func TestCopyProgramsCopiesLibraries(t *testing.T) {
	sh, err := exec.LookPath("sh")
	require.NoError(t, err)
	out, err := exec.CommandContext(t.Context(), "ldd", sh).Output()
	require.NoError(t, err)
	from, libraries := Tree{}, []string{}
	require.NoError(t, from.File("bin/sh", sh, 0o755))
	for field := range strings.FieldsSeq(string(out)) {
		if path.IsAbs(field) {
			name := path.Join("usr/lib", path.Base(field))
			require.NoError(t, from.File(name, field, 0o755))
			require.NoError(t, from.Link(path.Dir(field), "/usr/lib"))
			libraries = append(libraries, name)
		}
	}
	require.NoError(t, from.Text("usr/lib/unrelated.so", "", 0o644))

	to := Tree{}
	require.NoError(t, to.CopyPrograms(from, "bin/sh"))
	var bases []string
	for name := range to {
		bases = append(bases, path.Base(name))
	}
	for _, library := range libraries {
		assert.Contains(t, bases, path.Base(library))
	}
	assert.NotContains(t, bases, "unrelated.so")

	for _, library := range libraries {
		if strings.HasPrefix(path.Base(library), "libc.") {
			delete(from, library)
		}
	}
	require.ErrorContains(t, Tree{}.CopyPrograms(from, "bin/sh"), "bin/sh: its library libc.")
}
