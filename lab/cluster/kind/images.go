package kind

// Images: the nodes' comes from `make node-image`, from a bundle or from a
// registry; the project's own were built beside its programs and need no
// registry.

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/ccmlab/ccmlab/lab/image"
)

// The project's images. Their names without a registry are what containerd and
// the engines complete in the same way.
const (
	cloudImage = "ccmlab/fakecloud:dev"
	ccmImage   = "ccmlab/ccm:dev"
	demoImage  = "ccmlab/hello:dev"
)

// nodeImageFile is the archive that `make node-image` puts beside the programs.
const nodeImageFile = "node-image.tar"

// imageFile is the archive of one of the project's images.
func (c *Cluster) imageFile(tag string) string {
	name, _, _ := strings.Cut(strings.TrimPrefix(tag, "ccmlab/"), ":")
	return filepath.Join(c.bin.Dir, "images", name+".tar")
}

func (e engine) hasImage(ctx context.Context, image string) bool {
	_, err := e.run(ctx, "image", "inspect", "--format", "{{.Id}}", image)
	return err == nil
}

// loadImage loads an image into the engine from its archive, unless the engine already
// has an image with the same ID.
func (e engine) loadImage(ctx context.Context, name, archive string, note func(string)) error {
	want, err := image.ID(archive)
	if err != nil {
		return err
	}
	have, err := e.run(ctx, "image", "inspect", "--format", "{{.Id}}", name)
	if err == nil && plainID(have) == plainID(want) {
		return nil
	}
	note("loading " + archive)
	_, err = e.run(ctx, "load", "--input", archive)
	return err
}

// plainID is an ID without the algorithm, which Podman leaves out.
func plainID(id string) string { return strings.TrimPrefix(id, "sha256:") }

// Prepare loads or pulls the images that the engine itself needs.
func (c *Cluster) Prepare(ctx context.Context, note func(string)) (string, error) {
	if err := c.engine.loadImage(ctx, cloudImage, c.imageFile(cloudImage), note); err != nil {
		return "", err
	}
	image := c.lab.Kind.Image
	if err := c.fetchNodeImage(ctx, image, note); err != nil {
		return "", err
	}
	if c.engine.name == "podman" && image == BuiltImage {
		// What is loaded without a registry's name gets "localhost" from Podman,
		// but "docker.io" from kind.
		if _, err := c.engine.run(ctx, "tag", image, "docker.io/"+image); err != nil {
			return "", err
		}
	}
	if c.usesCloudRoutes() {
		return image, nil
	}
	manifest, err := c.engine.run(
		ctx, "run", "--rm", "--network", "none", "--entrypoint", "cat", image, "/kind/manifests/default-cni.yaml",
	)
	if err == nil && !strings.Contains(manifest, "kindnet") {
		err = fmt.Errorf(
			"image %s has no kindnet; use --pod-network %s, or a stock image: --node-image %s", image, Routes,
			StockImage,
		)
	}
	return image + ", with kindnet", err
}

func (c *Cluster) fetchNodeImage(ctx context.Context, image string, note func(string)) error {
	file := filepath.Join(c.bin.Dir, nodeImageFile)
	if _, err := os.Stat(file); err == nil && image == BuiltImage {
		return c.engine.loadImage(ctx, image, file, note)
	}
	if c.engine.hasImage(ctx, image) {
		return nil
	}
	note("pulling " + image)
	if _, err := c.engine.run(ctx, "pull", image); err != nil {
		return fmt.Errorf(
			"%w\nThe node image %s is neither here nor to be had from a registry. `make node-image` builds one without any registry (about a quarter of an hour); a bundle has it (lab up --bundle FILE); --node-image names another",
			err, image,
		)
	}
	return nil
}
