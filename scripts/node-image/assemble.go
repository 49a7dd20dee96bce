package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path"
	"path/filepath"
	"strings"

	"github.com/ccmlab/ccmlab/lab/image"
	"github.com/ccmlab/ccmlab/lab/image/debian"
)

// assembleImage puts the node image together from Debian (tree), kind's own files, the programs,
// and the images that a node starts with (store). It does what kind's images/base/Dockerfile and
// `kind build node-image` do.
func assembleImage(ctx context.Context, tree image.Tree, version, name, store string) error {
	for _, step := range []func() error{
		func() error { return removeBootUnits(tree) },
		func() error { return addKind(ctx, tree, version) },
		func() error { return addPrograms(tree) },
		func() error { return addRuntimeSpec(ctx, tree) },
		func() error { return tree.Folder("var/lib/containerd", store, func(string) bool { return false }) },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return image.WriteFileWithNotices(ctx, archive, image.Spec{
		// By that systemd knows that it is in a container.
		Names: []string{name}, Tree: tree, Env: []string{"container=docker"},
		Entrypoint: []string{"/usr/local/bin/entrypoint", "/sbin/init"}, StopSignal: "SIGRTMIN+3",
	})
}

// removeBootUnits removes what is needed only by a machine that boots or installs packages.
func removeBootUnits(tree image.Tree) error {
	if err := debian.Prune(tree); err != nil {
		return err
	}
	units := "usr/lib/systemd/system/"
	return tree.Remove("etc/systemd/system/*.wants/*",
		units+"sysinit.target.wants/systemd-tmpfiles-setup.service", units+"multi-user.target.wants/*",
		units+"local-fs.target.wants/*", units+"basic.target.wants/*",
		units+"sockets.target.wants/*udev*", units+"sockets.target.wants/*initctl*")
}

const storageClass = `# A name to ask for, and nothing behind it: this image has no provisioner.
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata:
  name: standard
  annotations:
    storageclass.kubernetes.io/is-default-class: "true"
provisioner: kubernetes.io/no-provisioner
volumeBindingMode: WaitForFirstConsumer
`

// addKind adds what kind's base image has beside packages, and what kind expects of a node.
func addKind(ctx context.Context, tree image.Tree, version string) error {
	files, err := kindFiles(ctx)
	if err != nil {
		return err
	}
	executable := func(name string) bool {
		dir := path.Dir(name)
		return dir == "kind/bin" || dir == "usr/local/bin"
	}
	for _, dir := range []string{"kind", "etc", "usr/local/bin", "LICENSES"} {
		// The module cache does not keep the modes of files.
		if err := tree.Folder(dir, filepath.Join(files, dir), executable); err != nil {
			return err
		}
	}
	// Beside the copyright of Debian's packages.
	license := filepath.Join(files, "..", "..", "..", "LICENSE")
	if err := tree.File("usr/share/doc/kind/LICENSE", license, 0o644); err != nil {
		return err
	}
	journald, err := tree.Read("etc/systemd/journald.conf")
	if err != nil {
		return err
	}
	err = errors.Join(
		tree.Text("etc/systemd/journald.conf", string(journald)+"ReadKMsg=no\n", 0o644),
		tree.Link("usr/sbin/init", "/usr/lib/systemd/systemd"),
		tree.Link("etc/systemd/system/systemd-binfmt.service", "/dev/null"), // It would change the host's kernel.
		tree.Dir("etc/kubernetes/manifests", 0o755),
		tree.Text("kind/version", version, 0o644),
		tree.Text("kind/manifests/default-storage.yaml", storageClass, 0o644),
		tree.Text("kind/manifests/default-cni.yaml", "# None: create the cluster with disableDefaultCNI.\n", 0o644))
	for _, unit := range []string{"kubelet", "containerd", "undo-mount-hacks"} {
		err = errors.Join(err, tree.Link(
			"etc/systemd/system/multi-user.target.wants/"+unit+".service", "/etc/systemd/system/"+unit+".service",
		))
	}
	return err
}

// kindFiles is the folder in kind's module that has the files which its base image has beside
// packages.
func kindFiles(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "mod", "download", "-json", "sigs.k8s.io/kind").Output()
	var module struct{ Dir, Error string }
	if jsonErr := json.Unmarshal(out, &module); jsonErr == nil && module.Error != "" {
		return "", errors.New(module.Error)
	}
	if err != nil || module.Dir == "" {
		return "", fmt.Errorf("go mod download sigs.k8s.io/kind: %w", err)
	}
	return filepath.Join(module.Dir, "images", "base", "files"), nil
}

func addPrograms(tree image.Tree) error {
	for dir, programs := range map[string]string{
		"usr/bin":       "bin/kube/kubectl bin/node/kube/kubeadm bin/node/kube/kubelet",
		"usr/local/bin": "bin/node/containerd/containerd bin/node/containerd/ctr bin/node/containerd/containerd-shim-runc-v2 bin/node/crictl/crictl",
		"opt/cni/bin":   "bin/node/cni/host-local bin/node/cni/loopback bin/node/cni/portmap bin/node/cni/ptp",
	} {
		for program := range strings.FieldsSeq(programs) {
			if err := tree.File(path.Join(dir, path.Base(program)), program, 0o755); err != nil {
				return err
			}
		}
	}
	return nil
}

// addRuntimeSpec adds the specification that all containers start from. It is containerd's own,
// with kind's hook that hides the machine's identity, and with the node's resource limits.
func addRuntimeSpec(ctx context.Context, tree image.Tree) error {
	out, err := exec.CommandContext(ctx, workDir+"/containerd/ctr", "oci", "spec").Output()
	if err != nil {
		return fmt.Errorf("ctr oci spec: %w", err)
	}
	var spec map[string]any
	if err := json.Unmarshal(out, &spec); err != nil {
		return fmt.Errorf("ctr oci spec: %w", err)
	}
	process, ok := spec["process"].(map[string]any)
	if !ok {
		return errors.New("ctr oci spec: no process in it")
	}
	delete(process, "rlimits")
	spec["hooks"] = map[string]any{"createContainer": []any{map[string]any{"path": "/kind/bin/mount-product-files.sh"}}}
	text, err := json.MarshalIndent(spec, "", "  ")
	if err != nil {
		return err
	}
	return tree.Text("etc/containerd/cri-base.json", string(text)+"\n", 0o644)
}
