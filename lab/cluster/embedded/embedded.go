// Package embedded runs a Kubernetes cluster as plain processes on loopback:
// genuine upstream etcd, kube-apiserver, kube-controller-manager and
// kube-scheduler, and a hollow node per instance. No Docker, no root.
package embedded

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/ccmlab/ccmlab/lab/process"
	"github.com/ccmlab/ccmlab/lab/state"
)

// Users of the API server, one credential each. All but the operator are
// bound to what they need by manifests/ or by upstream's own roles.
const (
	userOperator  = "operator"  // kubectl; the only one in system:masters
	userObserver  = "observer"  // the lab's own eyes: reads only
	userCCM       = "ccm"       // manifests/ccm/rbac.yaml
	userKCM       = "kcm"       // upstream's role
	userScheduler = "scheduler" // upstream's role
	userProxy     = "kube-proxy"
	userKubelets  = "kube-apiserver-kubelet-client"
)

var identities = map[string]identity{
	userOperator:  {name: "ccmlab:operator", groups: []string{"system:masters"}},
	userObserver:  {name: "ccmlab:observer"},
	userCCM:       {name: "cloud-controller-manager"},
	userKCM:       {name: "system:kube-controller-manager"},
	userScheduler: {name: "system:kube-scheduler"},
	userProxy:     {name: "system:kube-proxy"},
	userKubelets:  {name: "kube-apiserver-kubelet-client"},
}

const frontProxyCA = "front-proxy-ca"

// Cluster is the cluster of one lab.
type Cluster struct {
	lab  *state.Lab
	bin  Binaries
	host process.Host
}

// New describes the cluster; nothing is started.
func New(lab *state.Lab, bin Binaries) *Cluster {
	return &Cluster{lab: lab, bin: bin, host: process.Host{Lab: lab.Path()}}
}

// Binaries are the programs a lab runs.
type Binaries struct {
	// Dir holds lab, ccm and fakecloud; Kube holds upstream's and hollow-node.
	Dir, Kube string
}

// FindBinaries looks beside the running program. Upstream's are in
// LAB_KUBE_BIN, if that is set, else in kube, if that is not empty.
func FindBinaries(kube string) (Binaries, error) {
	self, err := os.Executable()
	if err != nil {
		return Binaries{}, err
	}
	b := Binaries{Dir: filepath.Dir(self), Kube: filepath.Join(filepath.Dir(self), "kube")}
	if dir := cmp.Or(os.Getenv("LAB_KUBE_BIN"), kube); dir != "" {
		if b.Kube, err = filepath.Abs(dir); err != nil {
			return b, err
		}
	}
	return b, nil
}

// KubeBinaries are the names looked for in Binaries.Kube.
var KubeBinaries = []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "hollow-node"}

// Missing lists the programs that are not there.
func (b Binaries) Missing() []string {
	var missing []string
	check := func(dir, name string) {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode()&0o111 == 0 {
			missing = append(missing, filepath.Join(dir, name))
		}
	}
	for _, name := range []string{"fakecloud", "ccm"} {
		check(b.Dir, name)
	}
	for _, name := range KubeBinaries {
		check(b.Kube, name)
	}
	return missing
}

// Program is the full path of a program.
func (b Binaries) Program(name string) string {
	dir := b.Kube
	if name == "fakecloud" || name == "ccm" || name == "lab" {
		dir = b.Dir
	}
	return filepath.Join(dir, name)
}

// Addresses of the lab's slot.
func (c *Cluster) host0() string            { return address(c.lab.Slot) }
func (c *Cluster) endpoint(p string) string { return net.JoinHostPort(c.host0(), c.port(p)) }
func (c *Cluster) port(p string) string     { return strconv.Itoa(c.lab.Ports[p]) }

// PodCIDR is the range that nodes get their pod ranges from.
func (c *Cluster) PodCIDR() string { return fmt.Sprintf("10.%d.128.0/17", c.lab.Slot) }

// InstanceCIDR is the range of the cloud's instances.
func (c *Cluster) InstanceCIDR() string { return fmt.Sprintf("127.%d.16.0/20", c.lab.Slot) }

// LoadBalancerCIDR is the range of the cloud's balancers.
func (c *Cluster) LoadBalancerCIDR() string { return fmt.Sprintf("127.%d.64.0/18", c.lab.Slot) }

// CloudAddress is where the lab's cloud listens.
func (c *Cluster) CloudAddress() string { return c.endpoint(portCloud) }

// CCMAddress is where the lab's CCM serves health and metrics.
func (c *Cluster) CCMAddress() string { return c.endpoint(portCCM) }

// CloudURL is the cloud's base URL.
func (c *Cluster) CloudURL() string { return "http://" + c.CloudAddress() }

// Kubeconfig is the file that lets a user, as named above, into the cluster.
func (c *Cluster) Kubeconfig(user string) string { return c.lab.Path("kubeconfig", user+".yaml") }

// OperatorKubeconfig is the person's own.
func (c *Cluster) OperatorKubeconfig() string { return c.Kubeconfig(userOperator) }

// Operator is a client with all rights, for applying manifests and showing
// what is there.
func (c *Cluster) Operator() (*kubernetes.Clientset, error) { return c.client(userOperator) }

// Observer is a client that may only read.
func (c *Cluster) Observer() (*kubernetes.Clientset, error) { return c.client(userObserver) }

func (c *Cluster) client(user string) (*kubernetes.Clientset, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig(user))
	if err != nil {
		return nil, err
	}
	cfg.UserAgent = "ccmlab/" + user
	cfg.QPS, cfg.Burst = 100, 200
	return kubernetes.NewForConfig(cfg)
}

func (c *Cluster) pki(elem ...string) string {
	return c.lab.Path(append([]string{"pki"}, elem...)...)
}

// PrepareCredentials writes what is missing of certificates and kubeconfigs.
func (c *Cluster) PrepareCredentials() error {
	ca, err := loadOrCreateAuthority(c.pki(), "ca")
	if err != nil {
		return err
	}
	etcdCA, err := loadOrCreateAuthority(c.pki(), "etcd-ca")
	if err != nil {
		return err
	}
	// Nobody speaks through a front proxy here, but every server with delegated
	// authentication asks for its CA and complains without.
	if _, err := loadOrCreateAuthority(c.pki(), frontProxyCA); err != nil {
		return err
	}
	serve := func(name string) identity {
		return identity{name: name, addresses: []string{c.host0()}, dnsNames: []string{"localhost", "kubernetes.default.svc"}}
	}
	var errs []error
	keep := func(_ pair, err error) { errs = append(errs, err) }
	keep(etcdCA.ensure(c.pki(), "etcd", serve("etcd")))
	keep(etcdCA.ensure(c.pki(), "etcd-client", identity{name: "kube-apiserver"}))
	for _, component := range []string{portAPIServer, portKCM, portScheduler, portCCM} {
		keep(ca.ensure(c.pki(), component, serve(component)))
	}
	keep(ca.ensure(c.pki(), "service-account", identity{name: "service-account"}))
	for user, who := range identities {
		cert, err := ca.ensure(c.pki("users"), user, who)
		errs = append(errs, err, c.writeKubeconfig(user, cert))
	}
	return errors.Join(errs...)
}

func (c *Cluster) writeKubeconfig(user string, cert pair) error {
	file := c.Kubeconfig(user)
	if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var files [3][]byte
	for i, name := range []string{c.pki("ca.crt"), cert.Cert, cert.Key} {
		data, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		files[i] = data
	}
	cfg := clientcmdapi.NewConfig()
	cfg.Clusters[c.lab.Name] = &clientcmdapi.Cluster{Server: "https://" + c.endpoint(portAPIServer), CertificateAuthorityData: files[0]}
	cfg.AuthInfos[user] = &clientcmdapi.AuthInfo{ClientCertificateData: files[1], ClientKeyData: files[2]}
	cfg.Contexts[c.lab.Name] = &clientcmdapi.Context{Cluster: c.lab.Name, AuthInfo: user}
	cfg.CurrentContext = c.lab.Name
	data, err := clientcmd.Write(*cfg)
	if err != nil {
		return err
	}
	return state.WriteFile(file, data)
}

// StartAPIServer brings up etcd and the API server and returns when it is
// ready to serve.
func (c *Cluster) StartAPIServer(ctx context.Context) error {
	if _, err := c.ensure(c.etcd()); err != nil {
		return err
	}
	if err := state.WriteFile(c.lab.Path("audit-policy.yaml"), []byte(auditPolicy)); err != nil {
		return err
	}
	apiserver, err := c.ensure(c.apiserver())
	if err != nil {
		return err
	}
	client, err := c.Operator()
	if err != nil {
		return err
	}
	return apiserver.Await(ctx, "kube-apiserver to be ready on "+c.endpoint(portAPIServer), func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		return client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	})
}

// StartControllers starts kube-controller-manager and kube-scheduler; they
// need a ready API server and are up when their work shows.
func (c *Cluster) StartControllers() error {
	_, err := c.ensure(c.controllerManager())
	_, err2 := c.ensure(c.scheduler())
	return errors.Join(err, err2)
}

// StartCCM starts the cloud controller manager.
func (c *Cluster) StartCCM(cloudConfig string) (*process.Process, error) {
	return c.ensure(c.ccm(cloudConfig))
}

// ensure starts a component unless it runs.
func (c *Cluster) ensure(s process.Spec) (*process.Process, error) {
	running, err := c.host.Running()
	if err != nil {
		return nil, err
	}
	if p := running[s.Component]; p != nil {
		return p, nil
	}
	return c.host.Start(s)
}

// LogFile is where a component's output goes.
func (c *Cluster) LogFile(component string) string {
	component, _, _ = strings.Cut(component, "@")
	return c.lab.Path("logs", strings.ReplaceAll(component, "/", "-")+".log")
}
