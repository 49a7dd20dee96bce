// build makes everything that a lab runs: the project's programs in bin/, container images of
// them in bin/images/, and upstream's programs in bin/kube/. What is up to date is not made
// again. `make build` calls it, from the root of a clone.
//
// LAB_KUBE_BIN names a folder that already has upstream's programs; then only the project's own
// are made. An argument says what else to make:
//
//   - "images" (`make images`) makes no upstream programs, and lists the images;
//   - "lab-image" (`make lab-image`) also makes the image of a whole lab;
//   - "seat-image" (`make seat-image`) also makes the image of a classroom's seat.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/ccmlab/ccmlab/lab/build"
	"github.com/ccmlab/ccmlab/lab/image"
	"github.com/ccmlab/ccmlab/lab/ui"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "build:", err)
		os.Exit(1)
	}
}

func run() error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	steps := ui.New(os.Stderr, false)
	if err := buildModule(ctx, steps, "build", build.Own("."), "bin"); err != nil {
		return err
	}
	if err := steps.Do(
		"images", func(note func(string)) (string, error) { return buildImages(ctx, "bin", note) },
	); err != nil {
		return err
	}
	target := ""
	if len(os.Args) > 1 {
		target = os.Args[1]
	}
	if target == "images" {
		return listImages(os.Stdout, filepath.Join("bin", "images"))
	}
	kube := os.Getenv("LAB_KUBE_BIN")
	if kube == "" {
		kube = filepath.Join("bin", "kube")
		upstream, err := build.Kubernetes(".")
		if err != nil {
			return err
		}
		if err := buildModule(ctx, steps, "build upstream", upstream, kube); err != nil {
			return err
		}
	}
	switch target {
	case "lab-image":
		return buildLabImage(ctx, steps, "bin", kube, os.Stdout)
	case "seat-image":
		return buildSeatImage(ctx, steps, "bin", kube)
	}
	return nil
}

// buildModule builds the programs of a module into the folder out, as a step.
func buildModule(ctx context.Context, steps *ui.Steps, title string, m build.Module, out string) error {
	return steps.Do(title, func(note func(string)) (string, error) { return m.BuildStep(ctx, out, note) })
}

// clusterPrograms are the programs that can run in a cluster, each in an image of its own.
var clusterPrograms = []string{"fakecloud", "ccm", "hello"}

func imageName(program string) string { return "ccmlab/" + program + ":dev" }

// buildImages makes an image of each program that can run in a cluster, unless the image is newer
// than the program.
func buildImages(ctx context.Context, bin string, note func(string)) (string, error) {
	out := filepath.Join(bin, "images")
	made := 0
	for _, program := range clusterPrograms {
		binary, archive := filepath.Join(bin, program), filepath.Join(out, program+".tar")
		if stale, err := build.IsOlder(archive, []string{binary}); err != nil {
			return "", err
		} else if !stale {
			continue
		}
		note(program)
		// The cloud adds addresses to its interface and listens on any port.
		spec, err := image.Program(imageName(program), binary, program == "fakecloud")
		if err == nil {
			err = image.WriteFileWithNotices(ctx, archive, spec)
		}
		if err != nil {
			return "", err
		}
		made++
	}
	if made == 0 {
		return out + " is up to date", nil
	}
	return fmt.Sprintf("%d images in %s", made, out), nil
}

// listImages prints the names of the images, where they are, and how to load them into
// an engine or push them to a registry.
func listImages(w io.Writer, dir string) error {
	_, _ = fmt.Fprintf(w, "\n%-22s %-28s %8s  %s\n", "image", "archive", "MB", "ID")
	for _, program := range clusterPrograms {
		archive := filepath.Join(dir, program+".tar")
		info, err := os.Stat(archive)
		if err != nil {
			return err
		}
		id, err := image.ID(archive)
		if err != nil {
			return err
		}
		_, _ = fmt.Fprintf(w, "%-22s %-28s %8.1f  %.19s\n", imageName(program), archive, float64(info.Size())/1e6, id)
	}
	_, err := fmt.Fprintf(w, `
    docker load --input %[1]s/ccm.tar                # or: podman load, ctr --namespace k8s.io images import
    docker tag ccmlab/ccm:dev registry.example.com/ccmlab/ccm:v0.0.0 && docker push registry.example.com/ccmlab/ccm:v0.0.0
`, dir)
	return err
}
