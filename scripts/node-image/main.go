// node-image builds the image of a kind node, ccmlab/node, from Go modules and
// Debian packages. It uses no image registry and no container engine.
// `make node-image` calls it, from the root of a clone. What is up to date is
// not made again. The image is not reproducible, because Debian updates its packages, and
// because containerd's index of images has times in it; everything else is the same in each build.
package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/ccmlab/ccmlab/lab/build"
	"github.com/ccmlab/ccmlab/lab/image"
	"github.com/ccmlab/ccmlab/lab/image/debian"
	"github.com/ccmlab/ccmlab/lab/ui"
)

const (
	workDir     = "bin/node"
	kubeBin     = "bin/kube"
	rootArchive = workDir + "/rootfs.tar"
	archive     = "bin/node-image.tar"
)

// packages are those of kind's base image, runc, and what people expect in an image: hostname,
// find and ping.
var packages = strings.Fields(`systemd conntrack iptables nftables iproute2 ethtool util-linux mount kmod
	libseccomp2 pigz e2fsprogs bash ca-certificates curl jq procps runc hostname findutils iputils-ping`)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "node-image:", err)
		os.Exit(1)
	}
}

func run() error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	steps := ui.New(os.Stderr, false)
	version, err := build.Required("lab/kube", "k8s.io/kubernetes")
	if err != nil {
		return err
	}
	outs, err := buildPrograms(ctx, steps)
	if err != nil {
		return err
	}
	if err := steps.Do("root file system", func(note func(string)) (string, error) {
		built, err := debian.RootFS(ctx, rootArchive, packages, note)
		return describeOutput(rootArchive, built), err
	}); err != nil {
		return err
	}
	name := "ccmlab/node:" + version
	want, err := hashInputs(append(outs, workDir)) // The root file system's stamp is in workDir.
	if err != nil {
		return err
	}
	stampFile := archive + ".stamp"
	if have, err := os.ReadFile(stampFile); err == nil && string(have) == want {
		if _, err := os.Stat(archive); err == nil {
			return steps.Do("node image", func(func(string)) (string, error) {
				return name + ": " + describeOutput(archive, false), nil
			})
		}
	}
	root, err := os.Open(rootArchive)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	base, err := image.ReadTree(root)
	if err != nil {
		return err
	}
	store := filepath.Join(workDir, "store")
	defer func() { _ = os.RemoveAll(store) }()
	if err := steps.Do("component images", func(note func(string)) (string, error) {
		return buildComponentImages(ctx, base, version, store, note)
	}); err != nil {
		return err
	}
	return steps.Do("node image", func(func(string)) (string, error) {
		if err := assembleImage(ctx, base, version, name, store); err != nil {
			return "", err
		}
		return name + ": " + describeOutput(archive, true), os.WriteFile(stampFile, []byte(want), 0o644)
	})
}

// buildPrograms builds all programs, and returns the folders in which they are.
func buildPrograms(ctx context.Context, steps *ui.Steps) (outs []string, err error) {
	kube, err := build.Kubernetes(".")
	if err != nil {
		return nil, err
	}
	modules, err := build.Node(".")
	if err != nil {
		return nil, err
	}
	todo := map[string]build.Module{kubeBin: kube}
	for name, module := range modules {
		todo[filepath.Join(workDir, name)] = module
	}
	for _, out := range slices.Sorted(maps.Keys(todo)) {
		outs = append(outs, out)
		if err := steps.Do("build "+strings.TrimPrefix(out, "bin/"), func(note func(string)) (string, error) {
			built, err := todo[out].Build(ctx, out, note)
			var files []string
			for _, program := range slices.Sorted(maps.Values(todo[out].Mains)) {
				files = append(files, filepath.Join(out, program))
			}
			return describeOutput(out, built, files...), err
		}); err != nil {
			return nil, err
		}
	}
	return outs, nil
}

// hashInputs is a hash of what the image is made from: this program, which contains the
// recipe, and the stamps of the parts.
func hashInputs(parts []string) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	h := sha256.New()
	files := []string{self}
	for _, part := range parts {
		files = append(files, filepath.Join(part, ".stamp"))
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return "", err
		}
		_, _ = fmt.Fprintf(h, "%d\n", len(data))
		_, _ = h.Write(data)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// describeOutput says where a part of the image is, how large it is, and whether it is up to date.
func describeOutput(out string, built bool, files ...string) string {
	if len(files) == 0 {
		files = []string{out}
	}
	var size int64
	for _, file := range files {
		if info, err := os.Stat(file); err == nil {
			size += info.Size()
		}
	}
	text := []string{out, fmt.Sprintf("%d MB", size>>20)}
	if !built {
		text = append(text, "up to date")
	}
	return strings.Join(text, ", ")
}
