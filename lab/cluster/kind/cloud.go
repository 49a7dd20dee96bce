package kind

// The cloud as a container on the lab's network. A volume holds its state, tokens and
// certificate. The addresses of balancers are added to its network interface, so that
// they answer this machine and pods.

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"

	"github.com/ccmlab/ccmlab/fakecloud/identity"
	"github.com/ccmlab/ccmlab/lab/atomicfile"
	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/cluster/local"
	"github.com/ccmlab/ccmlab/lab/pki"
)

const (
	cloudPort = "8470"
	// dataDir is where the volume is in the container.
	dataDir = "/data"
	// cloudCertificate is the name of the cloud's certificate in the lab's folder.
	cloudCertificate = "cloud"
	// cloudInterface is what engines call a container's first interface.
	cloudInterface = "eth0"
)

// Cloud says how to reach the lab's cloud.
func (c *Cluster) Cloud() cluster.Cloud {
	cloud := cluster.Cloud{
		CAFile: c.lab.Path("pki", "ca.crt"), Dir: c.lab.Path("cloud"), Network: c.lab.Kind.Subnet,
		Dialects: map[string]string{},
	}
	if subnet, err := c.parseSubnet(); err == nil {
		cloud.BalancerRange = balancerRange(subnet)
		address := cloudAddress(subnet).String()
		cloud.URL = "https://" + net.JoinHostPort(address, cloudPort)
		for _, dialect := range identity.Dialects() {
			cloud.Dialects[dialect] = "https://" + net.JoinHostPort(address, strconv.Itoa(local.PreferredPorts()[dialect]))
		}
	}
	return cloud
}

// StartCloud starts the cloud and returns when it is ready.
func (c *Cluster) StartCloud(ctx context.Context, tag string, note func(string)) error {
	subnet, err := c.parseSubnet()
	if err != nil {
		return err
	}
	found, err := c.engine.inspectContainers(ctx, c.cloudContainer())
	if err != nil {
		return err
	}
	if len(found) == 0 {
		note("creating its container")
		if err := c.createCloud(ctx, subnet, tag); err != nil {
			return err
		}
	}
	if len(found) == 0 || !found[0].State.Running {
		// Also of one that there was: a crash may have come between its creation
		// and this.
		if err := c.fillCloud(ctx, subnet); err != nil {
			return err
		}
		if _, err := c.engine.run(ctx, "start", c.cloudContainer()); err != nil {
			return err
		}
	}
	note("waiting for it to be ready")
	if err := cluster.Poll(ctx, "fakecloud to be ready on "+c.Cloud().URL, c.Cloud().Ready); err != nil {
		log, _ := c.engine.command(context.WithoutCancel(ctx), "logs", "--tail", "8", c.cloudContainer()).
			CombinedOutput()
		return fmt.Errorf("%w\nlast lines of its log:\n%s", err, log)
	}
	return nil
}

// fillCloud puts on the volume what the cloud must know.
func (c *Cluster) fillCloud(ctx context.Context, subnet netip.Prefix) error {
	files, err := c.cloudFiles(cloudAddress(subnet), loopbackOf(subnet))
	if err == nil {
		_, err = c.engine.runWithInput(ctx, files, "cp", "-", c.cloudContainer()+":"+dataDir)
	}
	return err
}

// createCloud creates the container. Its capabilities let it add addresses to its
// interface, announce them to neighbours, and listen, and no more.
func (c *Cluster) createCloud(ctx context.Context, subnet netip.Prefix, tag string) error {
	address := cloudAddress(subnet)
	if _, err := c.engine.run(ctx, "volume", "create", "--label", c.labelOfLab(), c.cloudVolume()); err != nil {
		return err
	}
	args := []string{
		"create", "--name", c.cloudContainer(), "--label", c.labelOfLab(), "--hostname", "fakecloud",
		"--network", c.name(), "--ip", address.String(),
		"--restart", "unless-stopped",
		"--cap-drop", "ALL", "--cap-add", "NET_ADMIN", "--cap-add", "NET_BIND_SERVICE", "--cap-add", "NET_RAW",
		"--security-opt", "no-new-privileges",
		"--sysctl", "net.ipv4.ip_forward=1", // For addresses that are attached to instances.
		"--volume", c.cloudVolume() + ":" + dataDir,
		cloudImage, "serve",
		"--listen=" + net.JoinHostPort(address.String(), cloudPort),
		"--dns=" + net.JoinHostPort(address.String(), "53"),
		"--tls-cert=" + dataDir + "/tls.crt", "--tls-key=" + dataDir + "/tls.key",
		"--data=" + dataDir + "/cloud.db",
		"--project=" + c.lab.Name, "--profile=" + c.lab.Profile, "--default-tag=" + tag,
		"--instance-cidr=" + instanceRange(subnet).String(),
		"--target-range=" + engineRange(subnet).String(), // For the control plane's container.
		"--load-balancer-cidr=" + balancerRange(subnet).String(), "--load-balancer-interface=" + cloudInterface,
	}
	args = append(args, c.Cloud().DialectFlags()...)
	args = append(args, cluster.QuotaFlags(c.lab)...)
	args = append(args, cluster.RegionFlags(c.lab)...)
	for _, caller := range cluster.Callers {
		args = append(args, cluster.TokenFlag(caller, dataDir+"/"+caller+".token"))
	}
	_, err := c.engine.run(ctx, args...)
	return err
}

// cloudFiles makes the tokens and the certificate, unless they are there, and
// packs them for the volume, as its own user's. The certificate is for all ways to
// the cloud: one may be through a forwarder on this machine.
func (c *Cluster) cloudFiles(addresses ...netip.Addr) (*bytes.Buffer, error) {
	ca, err := pki.LoadOrCreate(c.lab.Path("pki"), "ca")
	if err != nil {
		return nil, err
	}
	who := pki.Identity{Name: "fakecloud", DNSNames: []string{"fakecloud"}}
	for _, a := range addresses {
		who.Addresses = append(who.Addresses, a.String())
	}
	tls, err := ca.Ensure(c.lab.Path("pki"), cloudCertificate, who)
	if err != nil {
		return nil, err
	}
	files := map[string]string{"tls.crt": tls.Cert, "tls.key": tls.Key}
	for _, caller := range cluster.Callers {
		file := c.Cloud().TokenFile(caller)
		if err := ensureToken(file); err != nil {
			return nil, err
		}
		files[caller+".token"] = file
	}
	var packed bytes.Buffer
	w := tar.NewWriter(&packed)
	for name, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		if err := w.WriteHeader(
			&tar.Header{Name: filepath.Base(name), Mode: 0o600, Size: int64(len(data))},
		); err != nil {
			return nil, err
		}
		if _, err := w.Write(data); err != nil {
			return nil, err
		}
	}
	return &packed, w.Close()
}

func ensureToken(file string) error {
	if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	secret := make([]byte, 32)
	if _, err := rand.Read(secret); err != nil {
		return err
	}
	return atomicfile.Write(file, []byte(base64.RawURLEncoding.EncodeToString(secret)+"\n"))
}
