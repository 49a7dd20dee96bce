package debian

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/lab/image"
)

// smallRoot is a root file system with two packages.
func smallRoot(t *testing.T) image.Tree {
	t.Helper()
	tree := image.Tree{}
	require.NoError(t, tree.Link("bin", "usr/bin"))
	require.NoError(t, tree.Link("usr/share/doc/greet", "greet-base"))
	require.NoError(t, tree.Link("usr/share/common-licenses/GPL", "GPL-3"))
	for name, text := range map[string]string{
		"usr/bin/greet": "greet", "usr/bin/other": "other", "usr/lib/libgreet.so.1.2": "library", "usr/bin/own": "own",
		"var/lib/dpkg/info/greet:amd64.list":   "/.\n/bin\n/bin/greet\n/usr/lib/libgreet.so.1\n/usr/lib/libgreet.so.1.2\n",
		"var/lib/dpkg/info/other.list":         "/bin/other\n",
		"var/lib/dpkg/info/other.md5sums":      "",
		"var/lib/dpkg/status":                  "Package: greet\nVersion: 1\n\nPackage: other\nVersion: 2\n",
		"usr/share/doc/greet-base/copyright":   "greet's terms",
		"usr/share/doc/other/copyright":        "other's terms",
		"usr/share/common-licenses/GPL-3":      "GPL",
		"usr/share/common-licenses/Apache-2.0": "Apache",
	} {
		require.NoError(t, tree.Text(name, text, 0o644))
	}
	return tree
}

func TestCopyCopyrights(t *testing.T) {
	base, tree := smallRoot(t), image.Tree{}
	require.NoError(t, tree.Text("usr/bin/greet", "greet", 0o755))
	require.NoError(t, tree.Text("usr/lib/libgreet.so.1", "library", 0o644))
	require.NoError(t, CopyCopyrights(tree, base))
	for name, want := range map[string]string{
		"usr/share/doc/greet/copyright": "greet's terms",
		"usr/share/common-licenses/GPL": "GPL", "usr/share/common-licenses/Apache-2.0": "Apache",
		"var/lib/dpkg/status.d/greet": "Package: greet\nVersion: 1\n",
	} {
		text, err := tree.Read(name)
		require.NoError(t, err)
		assert.Equal(t, want, string(text))
	}
	assert.NotContains(t, tree, "usr/share/doc/other/copyright")
	assert.NotContains(t, tree, "var/lib/dpkg/status.d/other")

	tree = image.Tree{"usr/bin/own": base["usr/bin/own"]}
	require.ErrorContains(t, CopyCopyrights(tree, base), "no package of Debian has /usr/bin/own")
	require.NoError(t, base.Remove("usr/share/doc/greet-base"))
	tree = image.Tree{"usr/bin/greet": base["usr/bin/greet"]}
	require.ErrorContains(t, CopyCopyrights(tree, base), "the terms of Debian's package greet")
}
