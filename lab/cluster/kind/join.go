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
discovery:
  bootstrapToken:
    apiServerEndpoint: "{{.ControlPlane}}:6443"
    token: "{{.Token}}"
    caCertHashes: ["sha256:{{.CAHash}}"]
skipPhases: [preflight]
`))

// joinNode makes a new container a node of the cluster.
func (c *Cluster) joinNode(ctx context.Context, name string, m cluster.Machine) error {
	var config bytes.Buffer
	var work errgroup.Group
	work.Go(func() error { return c.writeJoinConfig(ctx, m, &config) })
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
func (c *Cluster) writeJoinConfig(ctx context.Context, m cluster.Machine, to *bytes.Buffer) error {
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
		"Machine": m, "ControlPlane": c.controlPlaneContainer(), "Token": token, "CAHash": hex.EncodeToString(hash[:]),
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
			return err
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
