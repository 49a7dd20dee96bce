package integration

import (
	"cmp"
	"crypto/x509"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hetznercloud/hcloud-go/v2/hcloud"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/ccmlab/ccmlab/fakecloud/certs"
	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/testbed"
)

// hcloudCCM names a released hcloud-cloud-controller-manager. Without it its annotations are not tried.
const hcloudCCM = "LAB_HCLOUD_CCM"

// balancerSeen is what the cloud and the Service say.
type balancerSeen struct {
	*hcloud.LoadBalancer
	ingress []string
}

func (b balancerSeen) service() hcloud.LoadBalancerService {
	if len(b.Services) == 0 {
		return hcloud.LoadBalancerService{}
	}
	return b.Services[0]
}

// annotationCase is a Service of the CCM with annotations, and what must come of it.
type annotationCase struct {
	annotations map[string]string // without annotationPrefix
	has         func(balancerSeen) bool
	refused     string // text of an Event; "" if it is done
}

const annotationPrefix = "load-balancer.hetzner.cloud/"

// annotationCases are by the annotation, or the value of it, that they are about.
var annotationCases = map[string]annotationCase{
	"none": {has: func(b balancerSeen) bool {
		return b.PublicNet.Enabled && len(b.ingress) == 2 && b.ingress[0] == b.PublicNet.IPv4.IP.String() &&
			b.ingress[1] == b.PublicNet.IPv6.IP.String() && b.LoadBalancerType.Name == "lb11" && len(b.Targets) == 2
	}},
	"ipv6-disabled": {map[string]string{"ipv6-disabled": "true"}, func(b balancerSeen) bool {
		return slices.Equal(b.ingress, []string{b.PublicNet.IPv4.IP.String()})
	}, ""},
	"name": {map[string]string{"name": "My balancer_1"}, func(b balancerSeen) bool {
		return b.Name == "My balancer_1"
	}, ""},
	"ipv4-rdns": {map[string]string{"ipv4-rdns": "four.example.com"}, func(b balancerSeen) bool {
		return b.PublicNet.IPv4.DNSPtr == "four.example.com"
	}, ""},
	"ipv6-rdns": {map[string]string{"ipv6-rdns": "six.example.com"}, func(b balancerSeen) bool {
		return b.PublicNet.IPv6.DNSPtr == "six.example.com"
	}, ""},
	"disable-public-network": {
		map[string]string{
			"disable-public-network": "true", "use-private-ip": "true", "disable-private-ingress": "false",
		}, func(b balancerSeen) bool {
			return !b.PublicNet.Enabled && len(b.PrivateNet) == 1 && len(b.Targets) == 2 &&
				slices.Equal(b.ingress, []string{b.PrivateNet[0].IP.String()})
		}, "",
	},
	"disable-public-network with public targets": {
		map[string]string{"disable-public-network": "true"}, nil, "load_balancer_public_interface_disabled",
	},
	"disable-private-ingress": {map[string]string{"disable-private-ingress": "false"}, func(b balancerSeen) bool {
		return len(b.PrivateNet) == 1 && slices.Contains(b.ingress, b.PrivateNet[0].IP.String())
	}, ""},
	"use-private-ip": {map[string]string{"use-private-ip": "true"}, func(b balancerSeen) bool {
		return len(b.Targets) == 2 && b.Targets[0].UsePrivateIP && b.Targets[1].UsePrivateIP
	}, ""},
	"private-ipv4": {
		map[string]string{"private-ipv4": "{{host 200}}", "use-private-ip": "true"}, func(b balancerSeen) bool {
			return len(b.PrivateNet) == 1 && strings.HasSuffix(b.PrivateNet[0].IP.String(), ".200") && len(b.Targets) == 2
		}, "",
	},
	"private-subnet-ip-range": {map[string]string{"private-subnet-ip-range": "{{subnet}}"}, func(b balancerSeen) bool {
		return len(b.PrivateNet) == 1
	}, ""},
	"private-subnet-ip-range that is none": {
		map[string]string{"private-subnet-ip-range": "10.99.0.0/24"}, nil, "10.99.0.0/24",
	},
	"hostname": {map[string]string{"hostname": "lb.example.com"}, func(b balancerSeen) bool {
		return slices.Equal(b.ingress, []string{"lb.example.com"})
	}, ""},
	"protocol http": {map[string]string{"protocol": "http"}, func(b balancerSeen) bool {
		return b.service().Protocol == hcloud.LoadBalancerServiceProtocolHTTP
	}, ""},
	"protocol https": {
		map[string]string{"protocol": "https", "http-certificates": "shop"}, func(b balancerSeen) bool {
			return b.service().Protocol == hcloud.LoadBalancerServiceProtocolHTTPS &&
				len(b.service().HTTP.Certificates) == 1
		}, "",
	},
	"protocol https without a certificate": {map[string]string{"protocol": "https"}, nil, "certificate"},
	"http-certificates that is none": {
		map[string]string{"protocol": "https", "http-certificates": "nobody"}, nil, "not found",
	},
	"protocol udp": {map[string]string{"protocol": "udp"}, nil, "udp"},
	"algorithm-type": {map[string]string{"algorithm-type": "least_connections"}, func(b balancerSeen) bool {
		return b.Algorithm.Type == hcloud.LoadBalancerAlgorithmTypeLeastConnections
	}, ""},
	"algorithm-type unknown": {map[string]string{"algorithm-type": "random"}, nil, "random"},
	"type": {map[string]string{"type": "lb31"}, func(b balancerSeen) bool {
		return b.LoadBalancerType.Name == "lb31"
	}, ""},
	"type unknown": {map[string]string{"type": "lb99"}, nil, "lb99"},
	"location": {map[string]string{"location": "nbg1"}, func(b balancerSeen) bool {
		return b.Location.Name == "nbg1"
	}, ""},
	"location unknown": {map[string]string{"location": "nowhere1"}, nil, "location"},
	"network-zone": {map[string]string{"network-zone": "eu-central"}, func(b balancerSeen) bool {
		return b.Location.NetworkZone == hcloud.NetworkZoneEUCentral
	}, ""},
	"node-selector": {map[string]string{"node-selector": "kubernetes.io/hostname=node-2"}, func(b balancerSeen) bool {
		return len(b.Targets) == 1
	}, ""},
	"uses-proxyprotocol": {map[string]string{"uses-proxyprotocol": "true"}, func(b balancerSeen) bool {
		return b.service().Proxyprotocol
	}, ""},
	"http-cookie-name, http-cookie-lifetime, http-sticky-sessions": {
		map[string]string{
			"protocol": "http", "http-sticky-sessions": "true", "http-cookie-name": "SHOP", "http-cookie-lifetime": "90s",
		},
		func(b balancerSeen) bool {
			return b.service().HTTP.StickySessions && b.service().HTTP.CookieName == "SHOP" &&
				b.service().HTTP.CookieLifetime == 90*time.Second
		}, "",
	},
	"http-timeout-idle": {
		map[string]string{"protocol": "http", "http-timeout-idle": "45s"}, func(b balancerSeen) bool {
			return b.service().HTTP.TimeoutIdle == 45*time.Second
		}, "",
	},
	"http-timeout-idle out of bounds": {
		map[string]string{"protocol": "http", "http-timeout-idle": "10s"}, nil, "invalid input in field",
	},
	"certificate-type managed": {
		map[string]string{
			"protocol": "https", "certificate-type": "managed", "http-managed-certificate-name": "ours",
			"http-managed-certificate-domains": "a.example.com,b.example.com",
		},
		func(b balancerSeen) bool { return len(b.service().HTTP.Certificates) == 1 }, "",
	},
	"http-redirect-http": {
		map[string]string{"protocol": "https", "http-certificates": "shop", "http-redirect-http": "true"},
		func(b balancerSeen) bool { return b.service().HTTP.RedirectHTTP }, "",
	},
	"health-check-protocol http, with a domain, a path and status codes": {
		map[string]string{
			"health-check-protocol": "http", "health-check-http-domain": "shop.example.com",
			"health-check-http-path": "/healthz", "http-status-codes": "200,202",
		},
		func(b balancerSeen) bool {
			h := b.service().HealthCheck
			return h.HTTP != nil && h.Protocol == hcloud.LoadBalancerServiceProtocolHTTP && h.HTTP.Domain == "shop.example.com" &&
				h.HTTP.Path == "/healthz" && slices.Equal(h.HTTP.StatusCodes, []string{"200", "202"})
		}, "",
	},
	"health-check-protocol https": { // The CCM's page lists it, and the API does not.
		map[string]string{"health-check-protocol": "https"}, nil, "invalid input in field 'health_check.protocol'",
	},
	"health-check-http-validate-certificate": {
		map[string]string{"health-check-protocol": "http", "health-check-http-validate-certificate": "true"},
		func(b balancerSeen) bool {
			return b.service().HealthCheck.HTTP != nil && b.service().HealthCheck.HTTP.TLS
		}, "",
	},
	"health-check-port, -interval, -timeout, -retries": {
		map[string]string{
			"health-check-port": "10256", "health-check-interval": "20s", "health-check-timeout": "5s",
			"health-check-retries": "2",
		},
		func(b balancerSeen) bool {
			h := b.service().HealthCheck
			return h.Port == 10256 && h.Interval == 20*time.Second && h.Timeout == 5*time.Second && h.Retries == 2
		}, "",
	},
	"health-check-interval out of bounds": {
		map[string]string{"health-check-interval": "1s"}, nil, "invalid input in field",
	},
}

// hcloudWorld is a bed whose CCM is Hetzner's.
type hcloudWorld struct {
	*world
	cloud  *hcloud.Client
	subnet string
}

func newHcloudWorld(t *testing.T, env ...string) *hcloudWorld {
	t.Helper()
	path := os.Getenv(hcloudCCM)
	if path == "" {
		t.Skipf("%s names no hcloud-cloud-controller-manager", hcloudCCM)
	}
	w := &hcloudWorld{world: newWorld(t, testbed.Options{
		CloudFlags: []string{"--region=eu-central", "--zones=fsn1,nbg1,hel1"},
	})}
	cloud := w.Bed.Cluster().Cloud()
	secret, err := os.ReadFile(cloud.TokenFile(cluster.CallerOperator))
	require.NoError(t, err)
	trusted, err := rest.HTTPClientFor(&rest.Config{TLSClientConfig: rest.TLSClientConfig{CAFile: cloud.CAFile}})
	require.NoError(t, err)
	w.cloud = hcloud.NewClient(
		hcloud.WithEndpoint(cloud.Dialects["hcloud"]+"/v1"), hcloud.WithToken(strings.TrimSpace(string(secret))),
		hcloud.WithHTTPClient(trusted),
	)
	metadata, err := url.Parse(cloud.Dialects["hcloud"])
	require.NoError(t, err)
	metadata.User = url.UserPassword("node-1", strings.TrimSpace(string(secret)))
	networks, err := w.cloud.Network.All(t.Context())
	require.NoError(t, err)
	w.subnet = networks[0].Subnets[0].IPRange.String()
	w.addServers(networks[0], "node-1", "node-2")
	w.addCertificate("shop")
	w.startCCM(testbed.CCMOptions{
		Path: path, Flags: []string{
			"--cloud-provider=hcloud", "--allow-untagged-cloud", "--leader-elect=false", "--webhook-secure-port=0",
			"--concurrent-service-syncs=4",
		},
		Env: append([]string{
			"HCLOUD_ENDPOINT=" + cloud.Dialects["hcloud"] + "/v1", "HCLOUD_TOKEN_FILE=" + w.CCMToken,
			"HCLOUD_NETWORK=" + networks[0].Name, "HTTP_PROXY=" + metadata.String(), "GODEBUG=http2client=0", // As if it ran on node-1. Go speaks no HTTP/2 to proxies.
			"SSL_CERT_FILE=" + cloud.CAFile, "HCLOUD_NETWORK_ROUTES_ENABLED=false", "HCLOUD_METRICS_ENABLED=false",
		}, env...),
	})
	for _, name := range []string{"node-1", "node-2"} {
		w.awaitInitialized(name)
	}
	return w
}

// addServers makes servers with addresses, public and in the network, and their Nodes.
func (w *hcloudWorld) addServers(n *hcloud.Network, names ...string) {
	w.t.Helper()
	for _, name := range names {
		made, _, err := w.cloud.Server.Create(w.ctx, hcloud.ServerCreateOpts{
			Name: name, ServerType: &hcloud.ServerType{Name: "cx23"}, Image: &hcloud.Image{Name: "debian-12"},
			Networks: []*hcloud.Network{n},
		})
		require.NoError(w.t, err)
		require.NoError(w.t, w.cloud.Action.WaitFor(w.ctx, append(made.NextActions, made.Action)...))
	}
	require.NoError(w.t, w.RegisterNodes(w.ctx, nil, names...))
}

func (w *hcloudWorld) addCertificate(name string) {
	w.t.Helper()
	now := time.Now()
	wanted := &x509.Certificate{DNSNames: []string{name + ".example.com"}, NotAfter: now.AddDate(1, 0, 0)}
	pair, err := certs.Issue(wanted, nil, now)
	require.NoError(w.t, err)
	certificate, key, err := pair.Encode()
	require.NoError(w.t, err)
	_, _, err = w.cloud.Certificate.Create(w.ctx, hcloud.CertificateCreateOpts{
		Name: name, Certificate: string(certificate), PrivateKey: string(key),
	})
	require.NoError(w.t, err)
}

// fill puts the network's values into an annotation's.
func (w *hcloudWorld) fill(value string) string {
	prefix := w.subnet[:strings.LastIndex(w.subnet, ".")]
	return strings.NewReplacer("{{subnet}}", w.subnet, "{{host 200}}", prefix+".200").Replace(value)
}

// balancers are those of a Service.
func (w *hcloudWorld) balancers(svc *corev1.Service) ([]*hcloud.LoadBalancer, error) {
	return w.cloud.LoadBalancer.AllWithOpts(w.ctx, hcloud.LoadBalancerListOpts{
		ListOpts: hcloud.ListOpts{LabelSelector: "hcloud-ccm/service-uid=" + string(svc.UID)},
	})
}

func (w *hcloudWorld) see(svc *corev1.Service) (seen balancerSeen, err error) {
	all, err := w.balancers(svc)
	if err != nil || len(all) != 1 {
		return seen, cmp.Or(err, fmt.Errorf("%d balancers", len(all)))
	}
	now, err := w.Admin().CoreV1().Services(svc.Namespace).Get(w.ctx, svc.Name, metav1.GetOptions{})
	if err != nil {
		return seen, err
	}
	seen.LoadBalancer = all[0]
	for _, in := range now.Status.LoadBalancer.Ingress {
		seen.ingress = append(seen.ingress, cmp.Or(in.IP, in.Hostname))
	}
	return seen, nil
}

// warnings are the messages of a Service's Events.
func (w *hcloudWorld) warnings(svc *corev1.Service) string {
	w.t.Helper()
	list, err := w.Admin().CoreV1().Events(svc.Namespace).List(w.ctx, metav1.ListOptions{
		FieldSelector: "type=Warning,involvedObject.uid=" + string(svc.UID),
	})
	require.NoError(w.t, err)
	var said []string
	for _, e := range list.Items {
		said = append(said, e.Message)
	}
	return strings.Join(said, "\n")
}

// check tells what is missing of what must come of a Service.
func (w *hcloudWorld) check(svc *corev1.Service, test annotationCase) error {
	warnings := w.warnings(svc)
	if test.refused != "" {
		if !strings.Contains(warnings, test.refused) {
			return fmt.Errorf("no Event has %s; there are %q", test.refused, warnings)
		}
		return nil
	}
	seen, err := w.see(svc)
	if err == nil && !test.has(seen) {
		err = fmt.Errorf("the balancer is %+v, its service %+v, the ingress %q", seen.LoadBalancer, seen.service(), seen.ingress)
	}
	if err != nil {
		err = fmt.Errorf("%q: %w", warnings, err)
	}
	return err
}

// try makes a Service, waits for what must come of it, and deletes it.
func (w *hcloudWorld) try(port int32, test annotationCase) {
	svc := service(fmt.Sprintf("port-%d", port), port)
	svc.Annotations = map[string]string{}
	for key, value := range test.annotations {
		svc.Annotations[annotationPrefix+key] = w.fill(value)
	}
	svc = w.create(svc)
	w.await("what the annotations ask for", func() error { return w.check(svc, test) })
	require.NoError(w.t, w.Admin().CoreV1().Services(svc.Namespace).Delete(w.ctx, svc.Name, metav1.DeleteOptions{}))
	w.await("the balancer to be gone", func() error {
		all, err := w.balancers(svc)
		if err == nil && len(all) > 0 {
			err = fmt.Errorf("%s is there", all[0].Name)
		}
		return err
	})
}

// Each annotation of the released CCM does what its page says, or is refused as Hetzner's cloud refuses it.
func TestHcloudAnnotations(t *testing.T) {
	w := newHcloudWorld(
		t, "HCLOUD_LOAD_BALANCERS_DISABLE_PRIVATE_INGRESS=true", "HCLOUD_LOAD_BALANCERS_LOCATION=fsn1",
	)
	port := int32(8100)
	for name, test := range annotationCases {
		port++ // Where balancers have no addresses of their own, ports tell them apart.
		own := port
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			here := *w
			here.world = w.in(t)
			here.try(own, test)
		})
	}
}

// What the CCM's environment says holds for Services without annotations.
func TestHcloudSettings(t *testing.T) {
	for name, test := range map[string]struct {
		env []string
		has func(balancerSeen) bool
	}{
		"public": {[]string{
			"LOCATION=hel1", "ALGORITHM_TYPE=least_connections", "TYPE=lb21", "HEALTH_CHECK_INTERVAL=20s",
			"HEALTH_CHECK_TIMEOUT=5s", "HEALTH_CHECK_RETRIES=2", "USES_PROXYPROTOCOL=true", "DISABLE_IPV6=true",
			"DISABLE_PRIVATE_INGRESS=true",
		}, func(b balancerSeen) bool {
			h := b.service().HealthCheck
			return b.Location.Name == "hel1" && b.LoadBalancerType.Name == "lb21" && h.Interval == 20*time.Second &&
				b.Algorithm.Type == hcloud.LoadBalancerAlgorithmTypeLeastConnections && h.Timeout == 5*time.Second &&
				h.Retries == 2 && b.service().Proxyprotocol && slices.Equal(b.ingress, []string{b.PublicNet.IPv4.IP.String()})
		}},
		"private": {[]string{
			"NETWORK_ZONE=eu-central", "DISABLE_PUBLIC_NETWORK=true", "USE_PRIVATE_IP=true",
		}, func(b balancerSeen) bool {
			return !b.PublicNet.Enabled && len(b.PrivateNet) == 1 && len(b.Targets) == 2 && b.Targets[0].UsePrivateIP &&
				slices.Equal(b.ingress, []string{b.PrivateNet[0].IP.String()})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			var env []string
			for _, setting := range test.env {
				env = append(env, "HCLOUD_LOAD_BALANCERS_"+setting)
			}
			newHcloudWorld(t, env...).try(8100, annotationCase{has: test.has})
		})
	}
}
