// Package publish makes a Service reachable from other machines. Its load balancer listens on
// loopback only. A published port, for example one that a container publishes, forwards
// connections to it.
//
// It knows the Service only through the API server. Begin with Parse, Listen and Serve.
package publish

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"

	"github.com/inetaf/tcpproxy"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"

	"github.com/ccmlab/ccmlab/lab/kubediff"
)

// Port says where one TCP port of a Service is published.
type Port struct {
	// Listen is ADDRESS:PORT on this machine.
	Listen string
	// Namespace and Service name the Service.
	Namespace, Service string
	// Port is the Service's port; 0 means its first TCP port.
	Port int32
}

// Default is the Service that is published when none is named. It is the demo's.
const Default = "web"

// Parse reads [ADDRESS:]PORT[=[NAMESPACE/]SERVICE[:PORT]]. Without an address the Service
// is published to this machine only.
func Parse(text string) (Port, error) {
	listen, service, named := strings.Cut(text, "=")
	p := Port{Namespace: corev1.NamespaceDefault, Service: Default}
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		host, port = "127.0.0.1", listen
	}
	if _, err := parsePort(port); err != nil || host != "" && net.ParseIP(host) == nil {
		return Port{}, fmt.Errorf(
			"%q: want [ADDRESS:]PORT[=[NAMESPACE/]SERVICE[:PORT]], such as 8080 or 0.0.0.0:9090=shop/cart", text,
		)
	}
	p.Listen = net.JoinHostPort(host, port)
	if !named {
		return p, nil
	}
	name, target, withPort := strings.Cut(service, ":")
	if withPort {
		if p.Port, err = parsePort(target); err != nil {
			return Port{}, fmt.Errorf("%q: the Service's port: %w", text, err)
		}
	}
	if namespace, rest, ok := strings.Cut(name, "/"); ok {
		p.Namespace, name = namespace, rest
	}
	if p.Service = name; name == "" || p.Namespace == "" {
		return Port{}, fmt.Errorf("%q: no Service is named after the =", text)
	}
	return p, nil
}

func parsePort(text string) (int32, error) {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("%q: want a number from 1 to 65535", text)
	}
	return int32(n), nil
}

func (p Port) String() string {
	return fmt.Sprintf("%s for service %s/%s", p.Listen, p.Namespace, p.Service)
}

// Listeners are ports that are listened on. Connections wait until Serve.
type Listeners struct {
	ports     []Port
	byAddress map[string]net.Listener
}

// Listen listens on all of the ports, or on none.
func Listen(ctx context.Context, ports []Port) (*Listeners, error) {
	l := &Listeners{ports: ports, byAddress: map[string]net.Listener{}}
	var errs []error
	for _, p := range ports {
		listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", p.Listen)
		if err != nil {
			errs = append(errs, fmt.Errorf("publishing service %s/%s: %w", p.Namespace, p.Service, err))
			continue
		}
		l.byAddress[p.Listen] = listener
	}
	if len(errs) > 0 {
		return nil, errors.Join(append(errs, l.Close())...)
	}
	return l, nil
}

// Close stops listening on the ports.
func (l *Listeners) Close() error {
	var errs []error
	for _, listener := range l.byAddress {
		if err := listener.Close(); !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Serve forwards each connection to the address that the Service's balancer has at that time,
// until ctx ends. While a Service has no address, connections are reset, and the log says why.
func (l *Listeners) Serve(ctx context.Context, kube kubernetes.Interface, log *slog.Logger) error {
	var proxy tcpproxy.Proxy
	proxy.ListenFunc = func(_, address string) (net.Listener, error) { return l.byAddress[address], nil }
	for _, p := range l.ports {
		proxy.AddRoute(p.Listen, p.newTarget(ctx, kube, log))
	}
	if err := proxy.Start(); err != nil {
		return err
	}
	<-ctx.Done()
	return proxy.Close()
}

// newTarget makes a target that watches the Service, so that a connection needs no API call.
func (p Port) newTarget(ctx context.Context, kube kubernetes.Interface, log *slog.Logger) tcpproxy.Target {
	factory := informers.NewSharedInformerFactoryWithOptions(kube, 0, informers.WithNamespace(p.Namespace),
		informers.WithTweakListOptions(func(options *metav1.ListOptions) {
			options.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, p.Service).String()
		}))
	known := factory.Core().V1().Services().Informer().GetStore()
	factory.StartWithContext(ctx)
	return &tcpproxy.DialProxy{
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			service, _, err := known.GetByKey(p.Namespace + "/" + p.Service)
			if err != nil {
				return nil, err
			}
			address, err := p.balancerAddress(service)
			if err != nil {
				return nil, err
			}
			return (&net.Dialer{}).DialContext(ctx, network, address)
		},
		OnDialError: func(client net.Conn, err error) {
			log.Warn("connection reset", "published", p.String(), "client", client.RemoteAddr().String(), "error", err)
			if tcp, ok := tcpproxy.UnderlyingConn(client).(*net.TCPConn); ok {
				_ = tcp.SetLinger(0)
			}
			_ = client.Close()
		},
	}
}

// balancerAddress is the address and port on which the Service's load balancer listens.
func (p Port) balancerAddress(object any) (string, error) {
	service, ok := object.(*corev1.Service)
	if !ok {
		return "", errors.New("there is no such Service")
	}
	if kubediff.IngressAddress(service) == "" {
		return "", errors.New("the Service has no load balancer's address yet")
	}
	for _, port := range service.Spec.Ports {
		if port.Protocol == corev1.ProtocolTCP && (p.Port == 0 || p.Port == port.Port) {
			// A host name in place of the address must lead there from this machine, too.
			return net.JoinHostPort(kubediff.IngressAddress(service), strconv.Itoa(int(port.Port))), nil
		}
	}
	return "", fmt.Errorf("the Service has no TCP port %d", p.Port)
}
