package bundle

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func ignoreNote(string) {}

// makePrograms makes a folder like the one that `make build node-image` leaves. Only its
// etcd is a real program.
func makePrograms(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{
		"lab": 0o755, "fakecloud": 0o755, "ccm": 0o755, "kube/kubectl": 0o755, "images/hello.tar": 0o644,
		"node-image.tar": 0o644,
		".stamp":         0o644, "kube/.stamp": 0o644, "kube/.build-1/half": 0o755,
	} {
		file := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
		require.NoError(t, os.WriteFile(file, []byte("this is "+name), mode))
	}
	self, err := os.Executable()
	require.NoError(t, err)
	require.NoError(t, os.Symlink(self, filepath.Join(dir, "kube", "etcd")))
	return dir
}

func TestPackAndUnpack(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	file := filepath.Join(t.TempDir(), "bundle.tar.gz")
	from := filepath.Join(t.TempDir(), "made")
	require.NoError(t, os.WriteFile(from, []byte("this is more"), 0o644))
	n, err := Write(t.Context(), makePrograms(t), map[string]string{"own/go.mod": from}, file, ignoreNote)
	require.NoError(t, err)
	assert.Equal(t, 10, n)

	dir, err := Unpack(t.Context(), file, ignoreNote)
	require.NoError(t, err)
	data, err := os.ReadFile(filepath.Join(dir, "kube", "kubectl"))
	require.NoError(t, err)
	assert.Equal(t, "this is kube/kubectl", string(data))
	data, err = os.ReadFile(filepath.Join(dir, "own", "go.mod"))
	require.NoError(t, err)
	assert.Equal(t, "this is more", string(data))
	data, err = os.ReadFile(filepath.Join(dir, "THIRD_PARTY_NOTICES"))
	require.NoError(t, err)
	assert.Contains(t, string(data), "\n    kube/etcd\n\n", "what is no program of Go has no modules")
	assert.Contains(t, string(data), "The Go Authors")
	data, err = os.ReadFile(filepath.Join(dir, "sbom.cdx.json"))
	require.NoError(t, err)
	assert.Contains(t, string(data), `"file:kube/etcd"`)
	assert.Contains(t, string(data), "pkg:golang/stdlib@v1.")
	info, err := os.Stat(filepath.Join(dir, "lab"))
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o755), info.Mode().Perm())
	_, err = os.Stat(filepath.Join(dir, ".stamp"))
	require.ErrorIs(t, err, os.ErrNotExist, "what only a build needs stays out")

	again, err := Unpack(t.Context(), file, func(string) { t.Error("a bundle that is there is unpacked again") })
	require.NoError(t, err)
	assert.Equal(t, dir, again)
}

// Neither the folder, the time nor the umask of a build makes a difference to the bundle.
func TestSameFilesGiveSameBytes(t *testing.T) {
	write := func(dir string) []byte {
		t.Helper()
		file := filepath.Join(t.TempDir(), "bundle.tar.gz")
		more := map[string]string{"own/z": filepath.Join(dir, "ccm"), "own/a": filepath.Join(dir, "lab")}
		_, err := Write(t.Context(), dir, more, file, ignoreNote)
		require.NoError(t, err)
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		return data
	}
	one, two := makePrograms(t), makePrograms(t)
	for name, mode := range map[string]os.FileMode{"lab": 0o700, "kube/kubectl": 0o775, "images/hello.tar": 0o600} {
		file := filepath.Join(two, name)
		require.NoError(t, os.Chmod(file, mode))
		require.NoError(t, os.Chtimes(file, time.Time{}, time.Unix(1_000_000_000, 0)))
	}
	// Compared as a whole: a difference would be printed in full otherwise.
	assert.True(t, bytes.Equal(write(one), write(two)))
}

func TestDamagedBundle(t *testing.T) {
	cache := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", cache)
	file := filepath.Join(t.TempDir(), "bundle.tar.gz")
	_, err := Write(t.Context(), makePrograms(t), nil, file, ignoreNote)
	require.NoError(t, err)
	whole, err := os.ReadFile(file)
	require.NoError(t, err)
	flipped := append([]byte{}, whole...)
	flipped[len(flipped)/2] ^= 1
	for name, data := range map[string][]byte{
		"cut short": whole[:len(whole)*2/3], "a flipped bit": flipped, "something else": []byte("hello"), "empty": nil,
	} {
		require.NoError(t, os.WriteFile(file, data, 0o644))
		_, err := Unpack(t.Context(), file, ignoreNote)
		require.ErrorContains(t, err, file, name)
		assert.Equal(t, name == "cut short", strings.Contains(err.Error(), "is cut short: copy it here again"), err)
		left, err := filepath.Glob(filepath.Join(cache, "ccmlab", "bundles", "*"))
		require.NoError(t, err)
		assert.Empty(t, left, name)
	}
	_, err = Unpack(t.Context(), filepath.Join(cache, "none"), ignoreNote)
	assert.ErrorContains(t, err, "--bundle")
}

// packArchive writes an archive with these two files.
func packArchive(t *testing.T, index, name, content string) (file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "bundle.tar.gz")
	f, err := os.Create(file)
	require.NoError(t, err)
	compressed := gzip.NewWriter(f)
	w := tar.NewWriter(compressed)
	for _, e := range [][2]string{{sumsFile, index}, {name, content}} {
		require.NoError(t, w.WriteHeader(&tar.Header{Name: e[0], Mode: 0o644, Size: int64(len(e[1]))}))
		_, err := w.Write([]byte(e[1]))
		require.NoError(t, err)
	}
	require.NoError(t, errors.Join(w.Close(), compressed.Close(), f.Close()))
	return file
}

// What the index says of a file bounds what is written of it, and a lie is refused before that. Nothing is written
// outside of the bundle's folder, nor is anything begun for which there is no room.
func TestIndexBoundsWhatIsWritten(t *testing.T) {
	cache := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", cache)
	sum := fmt.Sprintf("%x", sha256.Sum256([]byte("hello")))
	var petabytes strings.Builder
	for i := range 1 << 15 {
		_, _ = fmt.Fprintf(&petabytes, "# %d\n%s  %d\n", maxFile, sum, i)
	}
	for name, tc := range map[string]struct{ index, file, want string }{
		"more bytes than stated":   {"# 4\n" + sum + "  lab\n", "lab", "lab is damaged: it has 5 bytes instead of 4"},
		"fewer bytes than stated":  {"# 6\n" + sum + "  lab\n", "lab", "lab is damaged: it has 5 bytes instead of 6"},
		"no size":                  {sum + "  lab\n", "lab", "no checksum of a file of a known size"},
		"a negative size":          {"# -1\n" + sum + "  lab\n", "lab", "no size"},
		"too large a size":         {"# 9223372036854775807\n" + sum + "  lab\n", "lab", "no size"},
		"more than there is room":  {petabytes.String(), "lab", "MB free"},
		"a file that is not named": {"# 5\n" + sum + "  lab\n", "ccm", "does not name"},
		"named twice":              {"# 5\n" + sum + "  lab\n# 5\n" + sum + "  lab\n", "lab", "no checksum"},
		"a way out":                {"# 5\n" + sum + "  ../lab\n", "../lab", "no checksum"},
		"a path from the root":     {"# 5\n" + sum + "  /tmp/lab\n", "/tmp/lab", "no checksum"},
	} {
		t.Run(name, func(t *testing.T) {
			written := false
			_, err := Unpack(t.Context(), packArchive(t, tc.index, tc.file, "hello"), func(string) { written = true })
			require.ErrorContains(t, err, tc.want)
			assert.False(t, written)
		})
	}
	_, err := Unpack(t.Context(), packArchive(t, "# 5\n"+sum+"  lab\n", "lab", "hello"), ignoreNote)
	assert.NoError(t, err)
}

func TestMissingProgram(t *testing.T) {
	dir := makePrograms(t)
	require.NoError(t, os.Remove(filepath.Join(dir, "node-image.tar")))
	_, err := Write(t.Context(), dir, nil, filepath.Join(t.TempDir(), "b"), ignoreNote)
	assert.ErrorContains(t, err, "make build node-image")
}

// A bundle has some ten thousand files, with long names.
func TestManyFiles(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty")
	require.NoError(t, os.WriteFile(empty, nil, 0o644))
	more := map[string]string{}
	for i := range 20_000 {
		more[fmt.Sprintf("own/%s/%d", strings.Repeat("long", 10), i)] = empty
	}
	file := filepath.Join(t.TempDir(), "bundle.tar.gz")
	_, err := Write(t.Context(), makePrograms(t), more, file, ignoreNote)
	require.NoError(t, err)
	f, err := os.Open(file)
	require.NoError(t, err)
	defer func() { _ = f.Close() }()
	compressed, err := gzip.NewReader(f)
	require.NoError(t, err)
	sums, _, err := readSums(tar.NewReader(compressed))
	require.NoError(t, err)
	assert.Len(t, sums, 20_009)
}
