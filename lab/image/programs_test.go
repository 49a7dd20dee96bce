package image

import (
	"os/exec"
	"path"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

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
