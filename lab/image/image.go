// Package image makes container images of one layer without a container
// engine. The same input gives the same bytes, so that an image which is loaded
// already is recognised by its ID.
//
// It does not know which images the project has. Begin with Spec, Tree and WriteFile.
package image

import (
	"bufio"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/ccmlab/ccmlab/lab/atomicfile"
)

// Spec is what an image is made of.
type Spec struct {
	Names      []string // With their tags, such as ccmlab/ccm:dev.
	Tree       Tree
	Entrypoint []string
	Cmd        []string // The arguments, unless others are given.
	Env        []string
	User       string
	StopSignal string
	Licenses   string // An SPDX expression, such as Apache-2.0, for the image's label.
}

// OwnLicense is the project's licence, as a value of Spec.Licenses.
const OwnLicense = "Apache-2.0"

// Program is an image of one static program and nothing else. It runs as an
// ordinary user unless root is set.
func Program(name, binary string, root bool) (Spec, error) {
	base := filepath.Base(binary)
	spec := Spec{
		Names: []string{name}, Tree: Tree{}, Entrypoint: []string{"/" + base}, User: "65532:65532",
		Licenses: OwnLicense,
	}
	if root {
		spec.User = ""
	}
	return spec, errors.Join(spec.Tree.File(base, binary, 0o755), spec.Tree.Dir("tmp", 0o777|os.ModeSticky))
}

// Write writes the image as an archive for `docker load` and `ctr images import`.
func Write(w io.Writer, spec Spec) error {
	layer, err := os.CreateTemp("", "layer-*.tar.gz") // The layer's digest is needed before its content.
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(layer.Name()) }()
	if err := errors.Join(writeLayer(layer, spec.Tree), layer.Close()); err != nil {
		return err
	}
	img, err := buildImage(layer.Name(), spec)
	if err != nil {
		return err
	}
	tags := map[name.Reference]v1.Image{}
	for _, n := range spec.Names {
		tag, err := name.NewTag(n)
		if err != nil {
			return err
		}
		tags[tag] = img
	}
	return tarball.MultiRefWrite(tags, w)
}

// WriteFileWithNotices is WriteFile with what AddNotices adds from the root of a clone, the working directory.
func WriteFileWithNotices(ctx context.Context, file string, spec Spec) error {
	if err := spec.Tree.AddNotices(ctx, "."); err != nil {
		return fmt.Errorf("image %s: %w", strings.Join(spec.Names, ", "), err)
	}
	return WriteFile(file, spec)
}

// WriteFile writes the image to a file, all or nothing.
func WriteFile(file string, spec Spec) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(file), ".image-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(tmp.Name()) }()
	buffered := bufio.NewWriterSize(tmp, 1<<20)
	if err := errors.Join(Write(buffered, spec), buffered.Flush(), tmp.Chmod(0o644), tmp.Close()); err != nil {
		return fmt.Errorf("image %s: %w", strings.Join(spec.Names, ", "), err)
	}
	return atomicfile.Rename(tmp.Name(), file)
}

// ID is an archive's image ID, as `docker image inspect` and `crictl images`
// show it.
func ID(file string) (string, error) {
	manifest, err := tarball.LoadManifest(func() (io.ReadCloser, error) { return os.Open(file) })
	if err != nil {
		return "", fmt.Errorf("%s: %w", file, err)
	}
	if len(manifest) != 1 {
		return "", fmt.Errorf("%s holds %d images, not one", file, len(manifest))
	}
	return manifest[0].Config, nil
}

// writeLayer writes the tree as a compressed layer. It compresses quickly rather than well,
// because layers are unpacked on the machine on which they are made.
func writeLayer(w io.Writer, tree Tree) error {
	buffered := bufio.NewWriterSize(w, 1<<20)
	zip, err := gzip.NewWriterLevel(buffered, gzip.BestSpeed)
	if err != nil {
		return err
	}
	return errors.Join(tree.write(zip), zip.Close(), buffered.Flush())
}

// buildImage makes an image of the layer in a file.
func buildImage(layerFile string, spec Spec) (v1.Image, error) {
	layer, err := tarball.LayerFromFile(layerFile)
	if err != nil {
		return nil, err
	}
	labels := map[string]string{}
	if spec.Licenses != "" {
		labels["org.opencontainers.image.licenses"] = spec.Licenses
	}
	img, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{
		Architecture: runtime.GOARCH,
		OS:           "linux",
		RootFS:       v1.RootFS{Type: "layers"},
		Config: v1.Config{
			Entrypoint: spec.Entrypoint,
			Cmd:        spec.Cmd,
			Env: append(
				[]string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, spec.Env...,
			),
			User:       spec.User,
			StopSignal: spec.StopSignal,
			Labels:     labels,
		},
	})
	if err != nil {
		return nil, err
	}
	return mutate.Append(img, mutate.Addendum{Layer: layer})
}
