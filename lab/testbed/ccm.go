package testbed

// A CCM of a bed: a process with a kubeconfig, a cloud config and a port of its
// own, so that any number can run at once.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"syscall"
	"time"

	"k8s.io/client-go/rest"

	"github.com/ccmlab/ccmlab/lab/atomicfile"
	"github.com/ccmlab/ccmlab/lab/cluster/local"
	"github.com/ccmlab/ccmlab/lab/process"
)

// CCMOptions change how a CCM is run. The zero value is our own CCM as the user
// cloud-controller-manager, for the bed's cluster and cloud, without cloud routes, with
// the flags of Brisk.
type CCMOptions struct {
	// Path of the program; "" is ccm beside the other programs.
	Path string
	// Flags are appended: of a flag that is given twice the last value counts.
	Flags []string
	// Env is added, as NAME=value. Variables of the test's own environment that could
	// configure a CCM are left out.
	Env []string
	// ConfigYAML is the file of --cloud-config; "" is one for the bed's cloud and project.
	ConfigYAML string
	// Kubeconfig is the CCM's identity in the cluster; "" is the user
	// cloud-controller-manager of manifests/ccm.
	Kubeconfig string
	// Defaults leaves the flags of Brisk out.
	Defaults bool
}

// Brisk are flags with which a test waits less: the lifecycle controller looks at the
// Nodes every second. The lease is no shorter than by default, though the next CCM
// waits for its end (the framework never releases it): on a busy machine a shorter
// lease is lost, and nothing restarts a CCM that ended for that.
var Brisk = []string{
	"--leader-elect-lease-duration=15s", "--leader-elect-renew-deadline=13s", "--leader-elect-retry-period=1s",
	"--node-monitor-period=1s",
}

// CCM is a CCM process that was started. Alive tells whether it runs: a CCM exits when it
// loses its lease. With SIGSTOP and SIGCONT from Signal a CCM loses its lease without
// noticing.
type CCM struct {
	*process.Process
	// Name is unique in the bed: ccm-1, ccm-2, ….
	Name string

	http *http.Client
	base string
}

// StartCCM starts a CCM and returns when it serves /healthz, which is before it leads.
// One that ends instead is an error with the end of its log. All CCMs of a bed compete
// for the one lease that RBAC allows; after a Kill or Stop the next one waits until
// that lease expires.
func (b *Bed) StartCCM(ctx context.Context, o CCMOptions) (*CCM, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, startBound, fmt.Errorf("gave up after %s", startBound))
	defer cancel()
	spec, address, err := b.newCCM(o)
	if err != nil {
		return nil, err
	}
	c := &CCM{Name: spec.Component, base: "https://" + address}
	if c.http, err = rest.HTTPClientFor(b.config); err != nil {
		return nil, err
	}
	if c.Process, err = b.site.Host.Start(spec); err != nil {
		return nil, err
	}
	err = local.Await(ctx, c.Process, c.Name+" to serve on "+address, func(ctx context.Context) error {
		_, err := c.Get(ctx, "/healthz")
		return err
	})
	if err != nil {
		return nil, errors.Join(err, c.Kill())
	}
	return c, nil
}

// newCCM chooses a CCM's name, port and cloud config.
func (b *Bed) newCCM(o CCMOptions) (spec process.Spec, address string, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.started++
	name := fmt.Sprintf("ccm-%d", b.started)
	config, cloud := b.site.Lab.Path(name+".yaml"), b.site.Cloud()
	text := cmp.Or(o.ConfigYAML, local.CCMConfig(cloud.URL, b.CCMToken, cloud.CAFile, b.Name))
	if err := atomicfile.Write(config, []byte(text)); err != nil {
		return spec, "", err
	}
	// The port is free until it is taken: nobody else is in this slot, and the
	// bed's own CCMs count on from the last one's.
	port := local.FreePort(b.site.Address(), b.site.Lab.Ports[local.PortCCM]+100*b.started)
	address = b.site.Address() + ":" + strconv.Itoa(port)
	spec = b.site.Spec(name, "ccm", append(b.site.CCMIdentity(),
		"--cloud-config="+config,
		"--cluster-name="+b.Name,
		"--bind-address="+b.site.Address(), "--secure-port="+strconv.Itoa(port),
		"--configure-cloud-routes=false",
	)...)
	if !o.Defaults {
		spec.Args = append(spec.Args, Brisk...)
	}
	if o.Kubeconfig != "" {
		spec.Args = append(spec.Args, local.KubeconfigFlags(o.Kubeconfig)...)
	}
	spec.Args, spec.Path = append(spec.Args, o.Flags...), cmp.Or(o.Path, spec.Path)
	spec.Env = slices.Concat(local.MassDeletionEnv, o.Env) // The last of a name counts.
	return spec, address, nil
}

// killBound is how long the kernel may take to end a process.
const killBound = 10 * time.Second

// Kill ends the process as a crash does, with SIGKILL, and returns when it has ended.
// It does nothing to a process that has ended.
func (c *CCM) Kill() error {
	if err := c.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), killBound)
	defer cancel()
	return c.Wait(ctx)
}

// URL is the base URL of the CCM's server. Its certificate is signed by the cluster's
// CA.
func (c *CCM) URL() string { return c.base }

// Get requests a path of the CCM's server as the admin: /healthz, /configz and the
// like. A status other than 200 is an error.
func (c *CCM) Get(ctx context.Context, path string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+path, nil)
	if err != nil {
		return "", err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s of %s answers %s: %.200s", path, c.Name, resp.Status, body)
	}
	return string(body), err
}
