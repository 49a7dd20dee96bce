package main

import (
	"archive/tar"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/lab/build"
)

// Each image has the licences of what is in it.
func TestImagesCarryLicenses(t *testing.T) {
	t.Chdir(filepath.Join("..", ".."))
	bin := t.TempDir()
	own := build.Own(".")
	args := append(append([]string{"build", "-o", filepath.Join(bin, "hello")}, own.Flags...), "./cmd/hello")
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Env = append(os.Environ(), own.Env...)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	for _, program := range []string{"fakecloud", "ccm"} {
		require.NoError(t, os.Link(filepath.Join(bin, "hello"), filepath.Join(bin, program)))
	}
	result, err := buildImages(t.Context(), bin, func(string) {})
	require.NoError(t, err)
	assert.Contains(t, result, "3 images")
	for _, program := range clusterPrograms {
		files := imageFiles(t, filepath.Join(bin, "images", program+".tar"))
		assert.Contains(t, files["usr/share/doc/ccmlab/LICENSE"], "Apache License")
		assert.Contains(t, files["usr/share/doc/ccmlab/THIRD_PARTY_NOTICES"], "\n    /"+program+"\n")
		assert.Contains(t, files["usr/share/doc/ccmlab/THIRD_PARTY_NOTICES"], "github.com/pires/go-proxyproto v")
		assert.Contains(t, files["usr/share/doc/ccmlab/sbom.cdx.json"], `"pkg:golang/github.com/pires/go-proxyproto@v`)
	}
}

func imageFiles(t *testing.T, archive string) map[string]string {
	t.Helper()
	img, err := tarball.ImageFromPath(archive, nil)
	require.NoError(t, err)
	content := mutate.Extract(img)
	defer func() { require.NoError(t, content.Close()) }()
	files := map[string]string{}
	for r := tar.NewReader(content); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		require.NoError(t, err)
		data, err := io.ReadAll(r)
		require.NoError(t, err)
		files[header.Name] = string(data)
	}
}
