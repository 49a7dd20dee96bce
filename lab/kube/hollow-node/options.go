package main

import (
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/cert"
	"k8s.io/klog/v2"

	"github.com/ccmlab/ccmlab/lab/kube/internal/hollowkubelet"
)

// nodeOptions are the flags, and what parseAndValidate makes of them.
type nodeOptions struct {
	name                  string
	kubeconfig            string
	proxyKubeconfig       string
	addressText           string
	port                  int
	tlsCertFile           string
	tlsPrivateKeyFile     string
	clientCAFile          string
	cloudProvider         string
	rootDirectory         string
	statusUpdateFrequency time.Duration
	leaseDurationSeconds  int32
	cpus                  int
	memoryText            string

	// parseAndValidate sets these.
	address netip.Addr
	memory  resource.Quantity
}

func (o *nodeOptions) addFlags(flags *pflag.FlagSet) {
	flags.SortFlags = false
	flags.StringVar(&o.name, "name", "", "name of the node; the kubelet's credential must be system:node:<name>")
	flags.StringVar(
		&o.kubeconfig, "kubeconfig", "",
		"kubeconfig `file` of the kubelet (user system:node:<name>, group system:nodes)",
	)
	flags.StringVar(
		&o.proxyKubeconfig, "proxy-kubeconfig", "", "kubeconfig `file` of the service proxy (user system:kube-proxy)",
	)
	flags.StringVar(
		&o.addressText, "address", "",
		"IPv4 `address` of the machine: the kubelet, node ports and host ports listen here and nowhere else",
	)
	flags.IntVar(&o.port, "port", 10250, "port of the kubelet")
	flags.StringVar(&o.tlsCertFile, "tls-cert-file", "", "serving certificate `file` of the kubelet, for --address")
	flags.StringVar(&o.tlsPrivateKeyFile, "tls-private-key-file", "", "private key `file` of --tls-cert-file")
	flags.StringVar(
		&o.clientCAFile, "client-ca-file", "",
		"CA `file` of the client certificates that the kubelet accepts (the API server's above all)",
	)
	flags.StringVar(
		&o.cloudProvider, "cloud-provider", hollowkubelet.CloudProviderExternal,
		"external, or empty for a node that no cloud controller manager is going to finish: it sets its own address and has no taint",
	)
	flags.StringVar(
		&o.rootDirectory, "root-dir", "", "`directory` for everything that the node writes; made if missing",
	)
	flags.DurationVar(
		&o.statusUpdateFrequency, "node-status-update-frequency", 2*time.Second,
		"how often the kubelet computes the node's status",
	)
	flags.Int32Var(
		&o.leaseDurationSeconds, "node-lease-duration-seconds", 4,
		"duration of the node's lease; it is renewed four times as often",
	)
	flags.IntVar(&o.cpus, "cpus", 2, "CPUs that the node reports")
	flags.StringVar(&o.memoryText, "memory", "4Gi", "memory that the node reports, as a `quantity`")

	klogFlags := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(klogFlags)
	verbosity := klogFlags.Lookup("v")
	verbosity.Usage = "verbosity of the log on stderr"
	flags.AddFlag(pflag.PFlagFromGoFlag(verbosity))
}

// parseAndValidate parses the flags that are text, and reports all mistakes in one error.
func (o *nodeOptions) parseAndValidate() error {
	var mistakes []error
	check := func(flagName string, err error) {
		if err != nil {
			mistakes = append(mistakes, fmt.Errorf("--%s: %w", flagName, err))
		}
	}
	check("name", checkNodeName(o.name))
	check("kubeconfig", checkKubeconfig(o.kubeconfig))
	check("proxy-kubeconfig", checkKubeconfig(o.proxyKubeconfig))
	var err error
	o.address, err = parseMachineAddress(o.addressText)
	check("address", err)
	check("port", checkRange(o.port, 1, 65535))
	check("tls-cert-file", checkReadable(o.tlsCertFile))
	check("tls-private-key-file", checkReadable(o.tlsPrivateKeyFile))
	if checkReadable(o.tlsCertFile) == nil && checkReadable(o.tlsPrivateKeyFile) == nil {
		_, err = tls.LoadX509KeyPair(o.tlsCertFile, o.tlsPrivateKeyFile)
		check("tls-cert-file", err)
	}
	check("client-ca-file", checkCAFile(o.clientCAFile))
	if o.cloudProvider != "" && o.cloudProvider != hollowkubelet.CloudProviderExternal {
		check(
			"cloud-provider", fmt.Errorf("%q is neither external nor empty; a kubelet knows no other", o.cloudProvider),
		)
	}
	o.rootDirectory, err = makeDirectory(o.rootDirectory)
	check("root-dir", err)
	if o.statusUpdateFrequency <= 0 {
		check("node-status-update-frequency", fmt.Errorf("%s is not more than 0", o.statusUpdateFrequency))
	}
	check("node-lease-duration-seconds", checkRange(int(o.leaseDurationSeconds), 1, 3600))
	check("cpus", checkRange(o.cpus, 1, 1024))
	o.memory, err = resource.ParseQuantity(o.memoryText)
	if err == nil && o.memory.Sign() <= 0 {
		err = fmt.Errorf("%q is not more than 0", o.memoryText)
	}
	check("memory", err)
	return errors.Join(mistakes...)
}

var errMissing = errors.New("is required")

func checkNodeName(name string) error {
	if name == "" {
		return errMissing
	}
	if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
		return fmt.Errorf("%q is no name for a node: %s", name, strings.Join(problems, "; "))
	}
	return nil
}

func checkReadable(path string) error {
	if path == "" {
		return errMissing
	}
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	return file.Close()
}

func checkKubeconfig(path string) error {
	if err := checkReadable(path); err != nil {
		return err
	}
	_, err := clientcmd.BuildConfigFromFlags("", path)
	return err
}

func checkCAFile(path string) error {
	if err := checkReadable(path); err != nil {
		return err
	}
	_, err := cert.NewPool(path)
	return err
}

// parseMachineAddress requires an address that this machine has: an ordinary user cannot add one.
func parseMachineAddress(text string) (netip.Addr, error) {
	if text == "" {
		return netip.Addr{}, errMissing
	}
	address, err := netip.ParseAddr(text)
	if err != nil {
		return netip.Addr{}, err
	}
	if !address.Is4() || address.IsUnspecified() {
		return netip.Addr{}, fmt.Errorf("%s is not the IPv4 address of one machine", address)
	}
	listener, err := net.Listen("tcp4", netip.AddrPortFrom(address, 0).String())
	if err != nil {
		return netip.Addr{}, err
	}
	return address, listener.Close()
}

func makeDirectory(path string) (string, error) {
	if path == "" {
		return "", errMissing
	}
	absolute, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	return absolute, os.MkdirAll(absolute, 0o750)
}

func checkRange(value, low, high int) error {
	if value < low || value > high {
		return fmt.Errorf("%d is not between %d and %d", value, low, high)
	}
	return nil
}
