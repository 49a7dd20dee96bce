package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"path/filepath"
	"slices"

	"github.com/ccmlab/ccmlab/lab/build"
	"github.com/ccmlab/ccmlab/lab/cluster/embedded"
	"github.com/ccmlab/ccmlab/lab/image"
	"github.com/ccmlab/ccmlab/lab/ui"
)

const (
	programsDir = "usr/local/bin"
	// labHome is where the lab keeps its state; a volume or a tmpfs may be there.
	labHome = "/home/lab"
	// labPort is the port to publish. It is not the demo's own port, on which the demo's
	// balancer listens.
	labPort = "8000"
)

// buildLabImage makes bin/lab-image.tar, unless it is newer than all programs in it.
func buildLabImage(ctx context.Context, steps *ui.Steps, bin, kube string, out io.Writer) error {
	archive := filepath.Join(bin, "lab-image.tar")
	err := steps.Do("lab image", func(func(string)) (string, error) {
		programs := labPrograms(bin, kube)
		stale, err := build.IsOlder(archive, programFiles(programs))
		if err != nil {
			return "", err
		}
		if !stale {
			return archive + " is up to date", nil
		}
		spec, err := labSpec(programs)
		if err == nil {
			err = image.WriteFileWithNotices(ctx, archive, spec)
		}
		return archive, err
	})
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, `
    docker load --input %[1]s
    docker run --init --rm --name ccmlab --publish 127.0.0.1:8080:%[2]s %[3]s
    curl http://127.0.0.1:8080/                # in another terminal
    docker exec ccmlab kubectl get nodes
`, archive, labPort, imageName("lab"))
	return err
}

// labPrograms maps paths in the image to files on this machine.
func labPrograms(bin, kube string) map[string]string {
	files := map[string]string{}
	for _, name := range append([]string{"lab"}, embedded.OwnPrograms...) {
		files[path.Join(programsDir, name)] = filepath.Join(bin, name)
	}
	for _, name := range embedded.KubePrograms {
		files[path.Join(programsDir, "kube", name)] = filepath.Join(kube, name)
	}
	return files
}

func programFiles(programs map[string]string) []string { return slices.Collect(maps.Values(programs)) }

// labSpec is the image of a lab that runs as an ordinary user. In a container of its own a lab
// always has the first slot and its usual ports, so that the image can set the addresses that
// kubectl and fakecloud use.
func labSpec(programs map[string]string) (image.Spec, error) {
	spec := image.Spec{
		Names: []string{imageName("lab")}, Tree: image.Tree{}, Licenses: image.OwnLicense,
		Entrypoint: []string{"/" + path.Join(programsDir, "lab")},
		Cmd:        []string{"up", "--foreground", "--publish", "0.0.0.0:" + labPort},
		Env: []string{
			"KUBECONFIG=" + labHome + "/lab/kubeconfig/operator.yaml", "FAKECLOUD_URL=https://127.30.0.1:8470",
			"FAKECLOUD_TOKEN_FILE=" + labHome + "/lab/cloud/operator.token",
			"FAKECLOUD_CA_FILE=" + labHome + "/lab/cloud/ca.crt",
		},
	}
	return spec, addProgramsAndUser(&spec, programs, "/")
}

// addProgramsAndUser adds the programs to an image, and the user who runs them there.
func addProgramsAndUser(spec *image.Spec, programs map[string]string, shell string) error {
	const anybodys = 0o777 | fs.ModeSticky
	tree := spec.Tree
	errs := []error{
		tree.Link(path.Join(programsDir, "kubectl"), "kube/kubectl"),
		tree.Dir("tmp", anybodys), tree.Dir(labHome[1:], anybodys),
		// The kubelet looks up a user with its own name, and fails where there is no such file.
		appendLine(tree, "etc/passwd", "lab:x:65532:65532::"+labHome+":"+shell+"\n"),
		appendLine(tree, "etc/group", "lab:x:65532:\n"),
	}
	for name, source := range programs {
		errs = append(errs, tree.File(name, source, 0o755))
	}
	// A volume of a pod is anybody's to write, and in the container there is nobody else.
	spec.User = "65532:65532"
	spec.Env = append(spec.Env, "HOME="+labHome, "CCMLAB_HOME="+labHome, "CCMLAB_STRICT_MODES=no")
	return errors.Join(errs...)
}

// appendLine adds a line to a file, which it makes where there is none.
func appendLine(tree image.Tree, name, line string) error {
	have, err := tree.Read(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return tree.Text(name, string(have)+line, 0o644)
}
