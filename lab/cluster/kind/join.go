package kind

// How a machine becomes a node. A worker's container copies the settings of the control
// plane's container, so that it is like one that kind creates. It joins with kubeadm.

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/template"

	"golang.org/x/sync/errgroup"

	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/image"
)

// createContainer runs a worker's container: what the engine was told of the control
// plane's, with another name and address.
func (c *Cluster) createContainer(ctx context.Context, name string, m cluster.Machine) error {
	found, err := c.engine.inspectContainers(ctx, c.controlPlaneContainer())
	if err != nil {
		return err
	}
	if len(found) == 0 {
		return c.diagnoseExit()
	}
	_, err = c.engine.run(ctx, c.workerArgs(found[0], name, m)...)
	return err
}

func (c *Cluster) workerArgs(like container, name string, m cluster.Machine) []string {
	args := []string{
		"run", "--detach", "--tty", "--init=false", "--restart=on-failure:1", "--cgroupns=private",
		"--name", name, "--hostname", m.Name, "--network", c.name(), "--ip", m.Address,
		"--label", c.labelOfLab(), "--label", labelInstance + "=" + m.ID, "--label", labelName + "=" + m.Name,
		"--label", labelAddress + "=" + m.Address,
		"--label", kindCluster + "=" + c.name(), "--label", labelRole + "=worker",
	}
	host := like.HostConfig
	if host.Privileged {
		args = append(args, "--privileged")
	}
	if host.UsernsMode != "" {
		args = append(args, "--userns="+host.UsernsMode)
	}
	for _, opt := range host.SecurityOpt {
		args = append(args, "--security-opt", opt)
	}
	for path, options := range host.Tmpfs {
		args = append(args, "--tmpfs", strings.TrimSuffix(path+":"+options, ":"))
	}
	for _, mount := range like.Mounts {
		volume := mount.Destination // One of its own.
		if mount.Type == "bind" {
			volume = mount.Source + ":" + mount.Destination
			if !mount.RW {
				volume += ":ro"
			}
		}
		args = append(args, "--volume", volume)
	}
	for _, device := range host.Devices {
		args = append(args, "--device", device.PathOnHost+":"+device.PathInContainer)
	}
	for _, env := range like.Config.Env {
		// Not its own name, nor the administrator's file, which only it has.
		if !strings.HasPrefix(env, "HOSTNAME=") && !strings.HasPrefix(env, "KUBECONFIG=") {
			args = append(args, "--env", env)
		}
	}
	return append(args, like.Config.Image)
}

// joinConfig is kubeadm's configuration. The node has the name of its instance, so that
// the CCM finds the instance by the node's name.
var joinConfig = template.Must(template.New("join").Parse(`apiVersion: kubeadm.k8s.io/v1beta4
kind: JoinConfiguration
nodeRegistration:
  name: "{{.Machine.Name}}"
  criSocket: unix:///run/containerd/containerd.sock
  kubeletExtraArgs:
  - {name: node-ip, value: "{{.Machine.Address}}"}
  - {name: cloud-provider, value: external}
{{- with .ProviderID}}
  - {name: provider-id, value: "{{.}}"}
{{- end}}
discovery:
  bootstrapToken:
    apiServerEndpoint: "{{.ControlPlane}}:6443"
    token: "{{.Token}}"
    caCertHashes: ["sha256:{{.CAHash}}"]
skipPhases: [preflight]
`))

// joinNode makes a new container a node of the cluster.
func (c *Cluster) joinNode(ctx context.Context, name string, m cluster.Machine, providerID string) error {
	var config bytes.Buffer
	var work errgroup.Group
	work.Go(func() error { return c.writeJoinConfig(ctx, m, providerID, &config) })
	work.Go(func() error { return c.prepareContainerd(ctx, name) })
	if err := work.Wait(); err != nil {
		return err
	}
	if _, err := c.engine.execIn(ctx, name, &config, "cp", "/dev/stdin", "/kind/kubeadm.conf"); err != nil {
		return err
	}
	var both errgroup.Group
	both.Go(func() error { return c.loadImages(ctx, name) })
	both.Go(func() error {
		_, err := c.engine.execIn(ctx, name, nil, "kubeadm", "join", "--config", "/kind/kubeadm.conf")
		return err
	})
	if err := both.Wait(); err != nil {
		return err
	}
	_, err := c.engine.execIn(ctx, name, nil, "touch", joinedMark)
	return err
}

// writeJoinConfig creates a bootstrap token, valid for ten minutes, on the control
// plane, and writes kubeadm's configuration.
func (c *Cluster) writeJoinConfig(
	ctx context.Context,
	m cluster.Machine,
	providerID string,
	to *bytes.Buffer,
) error {
	ca, err := c.engine.execIn(ctx, c.controlPlaneContainer(), nil, "cat", "/etc/kubernetes/pki/ca.crt")
	if err != nil {
		return err
	}
	block, _ := pem.Decode([]byte(ca))
	if block == nil {
		return errors.New("the cluster's CA certificate is no PEM file")
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return fmt.Errorf("the cluster's CA certificate: %w", err)
	}
	token, err := c.engine.execIn(ctx, c.controlPlaneContainer(), nil, "kubeadm", "token", "create", "--ttl", "10m")
	if err != nil {
		return err
	}
	hash := sha256.Sum256(cert.RawSubjectPublicKeyInfo)
	return joinConfig.Execute(to, map[string]any{
		"Machine": m, "ProviderID": providerID, "ControlPlane": c.controlPlaneContainer(), "Token": token,
		"CAHash": hex.EncodeToString(hash[:]),
	})
}

// prepareContainerd copies the control plane's containerd configuration to a new
// machine, and waits until containerd runs with it.
func (c *Cluster) prepareContainerd(ctx context.Context, name string) error {
	const file = "/etc/containerd/config.toml"
	config, err := c.engine.execIn(ctx, c.controlPlaneContainer(), nil, "cat", file)
	if err != nil {
		return err
	}
	if err := c.awaitContainerd(ctx, name); err != nil {
		return err
	}
	if _, err := c.engine.execIn(ctx, name, strings.NewReader(config+"\n"), "cp", "/dev/stdin", file); err != nil {
		return err
	}
	if _, err := c.engine.execIn(ctx, name, nil, "systemctl", "restart", "containerd"); err != nil {
		return err
	}
	return c.awaitContainerd(ctx, name)
}

func (c *Cluster) awaitContainerd(ctx context.Context, name string) error {
	return cluster.Poll(ctx, "containerd to run in "+name, func(ctx context.Context) error {
		_, err := c.engine.execIn(ctx, name, nil, "ctr", "version")
		return err
	})
}

// loadImages loads the project's images that pods need into a machine, unless it
// already has images with the same ID.
func (c *Cluster) loadImages(ctx context.Context, name string) error {
	for _, tag := range []string{ccmImage, demoImage} {
		want, err := image.ID(c.imageFile(tag))
		if err != nil {
			return cluster.Permanent(err)
		}
		have, err := c.engine.execIn(
			ctx, name, nil, "crictl", "inspecti", "--output", "go-template", "--template", "{{.status.id}}",
			"docker.io/"+tag,
		)
		if err == nil && have == want {
			continue
		}
		f, err := os.Open(c.imageFile(tag))
		if err != nil {
			return err
		}
		_, err = c.engine.execIn(
			ctx, name, f, "ctr", "--namespace=k8s.io", "images", "import", "--all-platforms", "--digests", "-",
		)
		if err = errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
	return nil
}

// The project's images, which were built beside its programs and need no registry. Their
// names without a registry are what containerd and the engines complete in the same way.
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
