package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/ccmlab/ccmlab/lab/build"
	"github.com/ccmlab/ccmlab/lab/image"
	"github.com/ccmlab/ccmlab/lab/image/debian"
	"github.com/ccmlab/ccmlab/lab/ui"
)

const (
	imageDir     = "bin/agnhost"
	imageRoot    = imageDir + "/rootfs.tar"
	imageArchive = imageDir + "/image.tar"
	// imageRepository is the name that tests have for the image, without the tag.
	imageRepository = "registry.k8s.io/e2e-test-images/agnhost"
)

// imagePackages are what upstream's Dockerfile of agnhost installs beside it: what tests run in its
// pods. Debian's nc is the same program as Alpine's. iperf is left out.
var imagePackages = strings.Fields("bash wget curl netcat-openbsd iproute2 bind9-dnsutils util-linux ca-certificates")

// buildImage makes the image of agnhost, unless it is newer than what it is made of.
func buildImage(ctx context.Context, steps *ui.Steps) error {
	if err := steps.Do("root file system", func(note func(string)) (string, error) {
		built, err := debian.RootFS(ctx, imageRoot, imagePackages, note)
		if err == nil && !built {
			return imageRoot + " is up to date", nil
		}
		return imageRoot, err
	}); err != nil {
		return err
	}
	return steps.Do("agnhost image", func(func(string)) (string, error) {
		program := filepath.Join(testsDir, "agnhost")
		stale, err := build.IsOlder(imageArchive, []string{program, imageRoot})
		if err != nil {
			return "", err
		}
		if !stale {
			return imageArchive + " is up to date", nil
		}
		names, err := imageNames(ctx)
		if err != nil {
			return "", err
		}
		return strings.Join(names, ", "), writeImage(ctx, names, program)
	})
}

// imageNames are the names that the tests have for the image.
func imageNames(ctx context.Context) (names []string, err error) {
	out, err := exec.CommandContext(ctx, filepath.Join(testsDir, "e2e.test"), "--list-images").Output()
	if err != nil {
		return nil, fmt.Errorf("e2e.test --list-images: %w", err)
	}
	for name := range strings.FieldsSeq(string(out)) {
		if strings.HasPrefix(name, imageRepository+":") {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return nil, errors.New("the tests use no image " + imageRepository)
	}
	return names, nil
}

// writeImage does what upstream's Dockerfile of agnhost does.
func writeImage(ctx context.Context, names []string, program string) error {
	root, err := os.Open(imageRoot)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	tree, err := image.ReadTree(root)
	if err != nil {
		return err
	}
	sources, err := moduleFolder(ctx)
	if err != nil {
		return err
	}
	porter := filepath.Join(sources, "test", "images", "agnhost", "porter")
	if err := errors.Join(
		debian.Prune(tree), tree.Dir("uploads", 0o777|fs.ModeSticky),
		tree.File("localhost.crt", filepath.Join(porter, "localhost.crt"), 0o644),
		tree.File("localhost.key", filepath.Join(porter, "localhost.key"), 0o644),
		tree.File("agnhost", program, 0o755), tree.Link("agnhost-2", "agnhost"),
		// BusyBox's wget, which upstream's image has, tries once. GNU's tries 20 times what the tests
		// want to fail. (Debian's BusyBox in this image crashed in wget.)
		tree.Text("etc/wgetrc", "tries = 1\n", 0o644),
	); err != nil {
		return err
	}
	return image.WriteFileWithNotices(ctx, imageArchive, image.Spec{
		Names: names, Tree: tree, Entrypoint: []string{"/agnhost"}, Cmd: []string{"pause"},
	})
}

// moduleFolder is the folder with the sources of the Kubernetes whose tests are run.
func moduleFolder(ctx context.Context) (string, error) {
	e2e := filepath.Join("lab", "kube", "e2e")
	out, err := build.RunGo(ctx, e2e, "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes")
	return strings.TrimSpace(out), err
}

// loadImage loads the image into containerd in each node's container, unless it is there.
func loadImage(ctx context.Context, steps *ui.Steps, nodes []string) error {
	return steps.Do("load image", func(note func(string)) (string, error) {
		id, err := image.ID(imageArchive)
		if err != nil {
			return "", err
		}
		for _, node := range nodes {
			note(node)
			if err := importImage(ctx, node, id); err != nil {
				return "", fmt.Errorf("load %s into %s: %w", imageArchive, node, err)
			}
		}
		return fmt.Sprintf("into %d nodes", len(nodes)), nil
	})
}

// importImage loads the image into containerd in a node's container, unless it has an image with
// that ID.
func importImage(ctx context.Context, container, id string) error {
	if exec.CommandContext(ctx, "docker", "exec", container, "crictl", "inspecti", "--quiet", id).Run() == nil {
		return nil
	}
	archive, err := os.Open(imageArchive)
	if err != nil {
		return err
	}
	defer func() { _ = archive.Close() }()
	cmd := exec.CommandContext(
		ctx, "docker", "exec", "--interactive", container,
		"ctr", "--namespace=k8s.io", "images", "import", "--all-platforms", "-",
	)
	cmd.Stdin = archive
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	return nil
}
