package notices

import (
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	swagger "github.com/swaggest/swgui/v5/static"
	"golang.org/x/mod/module"

	"github.com/ccmlab/ccmlab/lab/build"
)

// root is the folder of the clone.
var root = filepath.Join("..", "..")

func addFile(t *testing.T, c *Collection, name string) error {
	t.Helper()
	file, err := os.Open(name)
	require.NoError(t, err)
	defer func() { require.NoError(t, file.Close()) }()
	return c.AddProgram(filepath.Base(name), file)
}

// A program of this project contains the list of its modules.
func TestProgramModules(t *testing.T) {
	hello := filepath.Join(t.TempDir(), "hello")
	own := build.Own(root)
	args := append(append([]string{"build", "-o", hello}, own.Flags...), "./cmd/hello")
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir, cmd.Env = root, append(os.Environ(), own.Env...)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	version, err := build.Required(root, "github.com/pires/go-proxyproto")
	require.NoError(t, err)
	var notices []string
	for range 2 {
		var c Collection
		require.NoError(t, addFile(t, &c, hello))
		text, err := c.terms(t.Context())
		require.NoError(t, err)
		notices = append(notices, text)
	}
	assert.Equal(t, notices[0], notices[1])
	assert.Contains(t, notices[0], "\n    hello\n")
	assert.Contains(t, notices[0], "\ngithub.com/pires/go-proxyproto "+version+" [")
	assert.Contains(t, notices[0], "Copyright 2009 The Go Authors.")
	assert.NotContains(t, notices[0], build.ModulePath)
}

// Each part that a module contains without its licence has it here.
func TestPartsWithoutTerms(t *testing.T) {
	c := Collection{programs: map[string]bool{"fakecloud": true}, modules: map[module.Version]bool{}}
	for name := range partsWithoutTerms {
		version, err := build.Required(root, name)
		require.NoError(t, err)
		c.modules[module.Version{Path: name, Version: version}] = true
	}
	text, err := c.terms(t.Context())
	require.NoError(t, err)
	for _, part := range []string{"sqlite", "glibc", "swagger-ui"} {
		assert.Contains(t, text, "\n"+part+" (with ")
	}
	assert.Contains(t, text, "SmartBear Software")
	assert.Contains(t, text, "GNU LESSER GENERAL PUBLIC LICENSE")
}

func readOwnText(name string) (string, error) {
	data, err := texts.ReadFile(name)
	return string(data), err
}

// collectionWithCache makes a module cache with these files only, and a collection of these
// modules.
func collectionWithCache(t *testing.T, files map[string]string, modules ...module.Version) *Collection {
	t.Helper()
	cache := t.TempDir()
	t.Setenv("GOMODCACHE", cache)
	t.Setenv("GOPROXY", "off")
	for name, text := range files {
		file := filepath.Join(cache, filepath.FromSlash(name))
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	}
	c := &Collection{programs: map[string]bool{"greet": true}, modules: map[module.Version]bool{}}
	for _, m := range modules {
		c.modules[m] = true
	}
	return c
}

func TestTextHasEachTextOnce(t *testing.T) {
	c := collectionWithCache(t, map[string]string{
		"example.org/one@v1.0.0/LICENSE":                      "Do as you\r\nlike.\r\n",
		"example.org/one@v1.0.0/NOTICE.txt":                   "We made it.",
		"example.org/one@v1.0.0/license.go":                   "no terms",
		"example.org/one@v1.0.0/LICENSES/README":              "no terms",
		"example.org/one@v1.0.0/contributors.png":             "no terms\x00",
		"example.org/one@v1.0.0/testdata/LICENSE":             "no terms",
		"example.org/one@v1.0.0/third_party/forked/license":   "Ask them.",
		"example.org/!upper@v2.0.0+incompatible/Licence.md":   "  Do as\n  you like.",
		"example.org/!upper@v2.0.0+incompatible/PATENTS":      "None.",
		"example.org/!upper@v2.0.0+incompatible/_old/COPYING": "no terms",
	},
		module.Version{Path: "example.org/one", Version: "v1.0.0"},
		module.Version{Path: "example.org/Upper", Version: "v2.0.0+incompatible"})
	text, err := c.terms(t.Context())
	require.NoError(t, err)
	assert.Contains(t, text, `
Go's runtime and standard library [1][2]
example.org/Upper v2.0.0+incompatible [3][4]
example.org/one v1.0.0 [3][5][6]
`)
	rule := strings.Repeat("=", 80)
	assert.Contains(t, text, rule+`
[3] example.org/Upper v2.0.0+incompatible: Licence.md
    example.org/one v1.0.0: LICENSE

  Do as
  you like.

`+rule+`
[4] example.org/Upper v2.0.0+incompatible: PATENTS

None.

`+rule+`
[5] example.org/one v1.0.0: NOTICE.txt

We made it.

`+rule+`
[6] example.org/one v1.0.0: third_party/forked/license

Ask them.
`)
	assert.NotContains(t, text, "no terms")
}

func TestMissingTermsAreAnError(t *testing.T) {
	one := module.Version{Path: "example.org/one", Version: "v1.0.0"}
	_, err := collectionWithCache(t, map[string]string{
		"example.org/one@v1.0.0/NOTICE": "We made it.", "example.org/one@v1.0.0/third_party/LICENSE": "Ask them.",
	}, one).terms(t.Context())
	require.ErrorContains(t, err, "example.org/one v1.0.0 has no licence text")
	_, err = collectionWithCache(t, nil, one).terms(t.Context())
	require.ErrorContains(t, err, "example.org/one@v1.0.0")
	_, err = new(Collection).terms(t.Context())
	require.ErrorContains(t, err, "no program")
}

// Licences cannot be looked up for third-party programs that were not compiled from a module's
// version.
func TestProgramsWithoutModules(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	write("go.mod", `module example.org/greet

go 1.26

require example.org/dep v0.0.0

replace example.org/dep => ./dep
`)
	write("dep/go.mod", "module example.org/dep\n\ngo 1.26\n")
	write("dep/dep.go", "package dep\n")
	write("main.go", "package main\n\nimport _ \"example.org/dep\"\n\nfunc main() {}\n")
	write("alone/main.go", "package main\n\nfunc main() {}\n")
	compile := func(modules, name, from string) error {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-o", name, from)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "GO111MODULE="+modules, "GOFLAGS=", "CGO_ENABLED=0")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		return addFile(t, new(Collection), filepath.Join(dir, name))
	}
	err := compile("on", "greet", ".")
	require.ErrorContains(t, err, "greet is made of a module whose licence cannot be looked up")
	require.ErrorContains(t, err, "./dep")
	err = compile("off", "lonely", "./alone/main.go")
	require.ErrorContains(t, err, "lonely does not say of which modules it is made")

	c := new(Collection)
	require.NoError(t, addFile(t, c, filepath.Join(dir, "main.go")))
	assert.Empty(t, c.programs, "a file that Go did not compile is none of its programs")
}

// The exceptions that are kept by hand are still right.
func TestExceptions(t *testing.T) {
	goroot, err := build.RunGo(t.Context(), os.TempDir(), "env", "GOROOT")
	require.NoError(t, err)
	for _, name := range []string{"LICENSE", "PATENTS"} {
		want, err := os.ReadFile(filepath.Join(strings.TrimSpace(goroot), name))
		if err != nil {
			t.Logf("%s is without %s, as some distributions' is", runtime.Version(), name)
			continue
		}
		have, err := readOwnText("texts/go/" + name)
		require.NoError(t, err)
		assert.Equal(t, string(want), have)
	}

	packed, err := swagger.FS.Open("swagger-ui-bundle.js.gz")
	require.NoError(t, err)
	defer func() { require.NoError(t, packed.Close()) }()
	unpacked, err := gzip.NewReader(packed)
	require.NoError(t, err)
	script, err := io.ReadAll(unpacked)
	require.NoError(t, err)
	assert.True(t, bytes.Contains(script, []byte(`PACKAGE_VERSION:"5.29.0"`)), "another Swagger UI has its own terms")

	mod, err := os.ReadFile(filepath.Join(root, "lab", "kube", "go.mod"))
	require.NoError(t, err)
	for name := range replacedByOwn {
		assert.Contains(t, string(mod), "replace "+name+" => ./")
	}
}
