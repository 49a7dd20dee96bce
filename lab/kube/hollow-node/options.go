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

// nodeOptions are the flags, and what parseAndValidate makes of them: the kubelet's options, of which
// parseAndValidate sets Address and Memory, and the rest of the node's.
type nodeOptions struct {
	hollowkubelet.Options
	kubeconfig      string
	proxyKubeconfig string
	addressText     string
	// attachedFile has further addresses.
	attachedFile string
	memoryText   string
}

func (n *nodeOptions) addFlags(flags *pflag.FlagSet) {
	flags.SortFlags = false
	flags.StringVar(&n.Name, "name", "", "name of the node; the kubelet's credential must be system:node:<name>")
	flags.StringVar(
		&n.kubeconfig, "kubeconfig", "",
		"kubeconfig `file` of the kubelet (user system:node:<name>, group system:nodes)",
	)
	flags.StringVar(
		&n.proxyKubeconfig, "proxy-kubeconfig", "", "kubeconfig `file` of the service proxy (user system:kube-proxy)",
	)
	flags.StringVar(
		&n.addressText, "address", "",
		"IPv4 `address` of the machine: the kubelet, node ports and host ports listen here and nowhere else",
	)
	flags.StringVar(
		&n.attachedFile, "attached-addresses", "",
		"`file` of further IPv4 addresses, one a line, on which ports of Services are served as on --address; "+
			"it may change, or not be there",
	)
	flags.IntVar(&n.Port, "port", 10250, "port of the kubelet")
	flags.StringVar(&n.TLSCertFile, "tls-cert-file", "", "serving certificate `file` of the kubelet, for --address")
	flags.StringVar(&n.TLSPrivateKeyFile, "tls-private-key-file", "", "private key `file` of --tls-cert-file")
	flags.StringVar(
		&n.ClientCAFile, "client-ca-file", "",
		"CA `file` of the client certificates that the kubelet accepts (the API server's above all)",
	)
	flags.StringVar(
		&n.CloudProvider, "cloud-provider", hollowkubelet.CloudProviderExternal,
		"external, or empty for a node that no cloud controller manager is going to finish: it sets its own address and has no taint",
	)
	flags.StringVar(
		&n.ProviderID, "provider-id", "",
		"provider `ID` with which the kubelet registers the node; none unless given, as a cloud controller manager sets it",
	)
	flags.StringVar(
		&n.RootDirectory, "root-dir", "", "`directory` for everything that the node writes; made if missing",
	)
	flags.DurationVar(
		&n.StatusUpdateFrequency, "node-status-update-frequency", 2*time.Second,
		"how often the kubelet computes the node's status",
	)
	flags.Int32Var(
		&n.LeaseDurationSeconds, "node-lease-duration-seconds", 4,
		"duration of the node's lease; it is renewed four times as often",
	)
	flags.IntVar(&n.CPUs, "cpus", 2, "CPUs that the node reports")
	flags.StringVar(&n.memoryText, "memory", "4Gi", "memory that the node reports, as a `quantity`")

	klogFlags := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(klogFlags)
	verbosity := klogFlags.Lookup("v")
	verbosity.Usage = "verbosity of the log on stderr"
	flags.AddFlag(pflag.PFlagFromGoFlag(verbosity))
}

// parseAndValidate parses the flags that are text, and reports all mistakes in one error.
func (n *nodeOptions) parseAndValidate() error {
	var mistakes []error
	check := func(flagName string, err error) {
		if err != nil {
			mistakes = append(mistakes, fmt.Errorf("--%s: %w", flagName, err))
		}
	}
	check("name", checkNodeName(n.Name))
	check("kubeconfig", checkKubeconfig(n.kubeconfig))
	check("proxy-kubeconfig", checkKubeconfig(n.proxyKubeconfig))
	var err error
	n.Address, err = parseMachineAddress(n.addressText)
	check("address", err)
	check("port", checkRange(n.Port, 1, 65535))
	check("tls-cert-file", checkReadable(n.TLSCertFile))
	check("tls-private-key-file", checkReadable(n.TLSPrivateKeyFile))
	if checkReadable(n.TLSCertFile) == nil && checkReadable(n.TLSPrivateKeyFile) == nil {
		_, err = tls.LoadX509KeyPair(n.TLSCertFile, n.TLSPrivateKeyFile)
		check("tls-cert-file", err)
	}
	check("client-ca-file", checkCAFile(n.ClientCAFile))
	if n.CloudProvider != "" && n.CloudProvider != hollowkubelet.CloudProviderExternal {
		check(
			"cloud-provider", fmt.Errorf("%q is neither external nor empty; a kubelet knows no other", n.CloudProvider),
		)
	}
	n.RootDirectory, err = makeDirectory(n.RootDirectory)
	check("root-dir", err)
	if n.StatusUpdateFrequency <= 0 {
		check("node-status-update-frequency", fmt.Errorf("%s is not more than 0", n.StatusUpdateFrequency))
	}
	check("node-lease-duration-seconds", checkRange(int(n.LeaseDurationSeconds), 1, 3600))
	check("cpus", checkRange(n.CPUs, 1, 1024))
	n.Memory, err = resource.ParseQuantity(n.memoryText)
	if err == nil && n.Memory.Sign() <= 0 {
		err = fmt.Errorf("%q is not more than 0", n.memoryText)
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
