package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/ccmlab/ccmlab/lab/image"
	"github.com/ccmlab/ccmlab/lab/image/debian"
)

// buildComponentImages makes the images of the control plane and of each node's own pods. It puts
// them into store, which becomes the node's /var/lib/containerd.
func buildComponentImages(
	ctx context.Context,
	base image.Tree,
	version, store string,
	note func(string),
) (string, error) {
	names, err := imageNames(ctx, version)
	if err != nil {
		return "", err
	}
	binaries := map[string]string{
		"kube-apiserver": kubeBin, "kube-controller-manager": kubeBin, "kube-scheduler": kubeBin, "etcd": kubeBin,
		"kube-proxy": workDir + "/kube", "coredns": workDir + "/coredns", "pause": workDir + "/pause",
	}
	dir := filepath.Join(workDir, "images")
	defer func() { _ = os.RemoveAll(dir) }()
	if err := os.RemoveAll(store); err != nil {
		return "", err
	}
	args := []string{store}
	for _, program := range slices.Sorted(maps.Keys(binaries)) {
		note(program)
		if names[program] == nil {
			return "", fmt.Errorf("kubeadm asks for no image of %s", program)
		}
		spec := image.Spec{Names: names[program], Tree: image.Tree{}, Entrypoint: []string{"/usr/local/bin/" + program}}
		if program == "kube-proxy" {
			if err := addPacketFilter(spec.Tree, base); err != nil {
				return "", err
			}
		}
		if err := errors.Join(spec.Tree.File(
			"usr/local/bin/"+program, filepath.Join(binaries[program], program), 0o755,
		),
			spec.Tree.Dir("tmp", 0o777|os.ModeSticky)); err != nil {
			return "", err
		}
		file := filepath.Join(dir, program+".tar")
		if err := image.WriteFileWithNotices(ctx, file, spec); err != nil {
			return "", err
		}
		args = append(args, file)
	}
	note("writing containerd's store")
	if out, err := exec.CommandContext(ctx, workDir+"/containerd/preload", args...).CombinedOutput(); err != nil {
		return "", fmt.Errorf("preload: %w\n%s", err, out)
	}
	return fmt.Sprintf("%d images", len(binaries)), nil
}

var sandboxImage = regexp.MustCompile(`(?m)^\s*sandbox_image = "(.+)"`)

// imageNames are the names by which a node refers to images, by program: kubeadm's names, and for
// pause also the one in kind's configuration of containerd.
func imageNames(ctx context.Context, version string) (map[string][]string, error) {
	out, err := exec.CommandContext(
		ctx, workDir+"/kube/kubeadm", "config", "images", "list", "--kubernetes-version", version,
	).Output()
	if err != nil {
		return nil, fmt.Errorf("kubeadm config images list: %w", err)
	}
	names := map[string][]string{}
	add := func(name string) {
		program, _, _ := strings.Cut(path.Base(name), ":")
		if !slices.Contains(names[program], name) {
			names[program] = append(names[program], name)
		}
	}
	for name := range strings.FieldsSeq(string(out)) {
		add(name)
	}
	files, err := kindFiles(ctx)
	if err != nil {
		return nil, err
	}
	config, err := os.ReadFile(filepath.Join(files, "etc/containerd/config.toml"))
	if err != nil {
		return nil, err
	}
	sandbox := sandboxImage.FindSubmatch(config)
	if sandbox == nil {
		return nil, errors.New("kind's configuration of containerd names no sandbox image")
	}
	add(string(sandbox[1]))
	return names, nil
}

// addPacketFilter adds the programs that kube-proxy runs. The plug-ins of iptables are named
// explicitly, because iptables opens them at run time. Without a plug-in, or a library that it
// needs, iptables would fail only for the rules that use it.
func addPacketFilter(tree, base image.Tree) error {
	var names []string
	for name := range base {
		if ok, err := path.Match("usr/lib/*/xtables/*.so", name); ok && err == nil {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return errors.New("the root file system has no plug-ins of iptables")
	}
	for _, dir := range []string{"bin", "sbin", "lib", "lib64"} {
		if err := tree.Link(dir, "usr/"+dir); err != nil {
			return err
		}
	}
	if err := tree.CopyPrograms(
		base, append(names, "usr/sbin/xtables-nft-multi", "usr/sbin/nft", "usr/sbin/conntrack", "usr/bin/kmod")...,
	); err != nil {
		return err
	}
	if err := debian.CopyCopyrights(tree, base); err != nil {
		return err
	}
	for _, family := range []string{"iptables", "ip6tables"} {
		for _, what := range []string{"", "-save", "-restore"} {
			if err := tree.Link("usr/sbin/"+family+what, "xtables-nft-multi"); err != nil {
				return err
			}
		}
	}
	return errors.Join(tree.Link("usr/sbin/modprobe", "../bin/kmod"), tree.Dir("etc", 0o755), tree.Dir("run", 0o755))
}
