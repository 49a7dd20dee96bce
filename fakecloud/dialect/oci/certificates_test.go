package oci_test

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"slices"
	"testing"

	"github.com/oracle/oci-go-sdk/v65/loadbalancer"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/cloudtest"
	dialect "github.com/ccmlab/ccmlab/fakecloud/dialect/oci"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
	"github.com/ccmlab/ccmlab/fakecloud/internal/testcerts"
)

// certificateDetails are as the CCM sends them of a Secret.
func certificateDetails(t *testing.T, name string) loadbalancer.CertificateDetails {
	t.Helper()
	public, key := testcerts.For(t, name+".example")
	return loadbalancer.CertificateDetails{
		CertificateName: &name, PublicCertificate: &public, PrivateKey: &key, CaCertificate: new(""), Passphrase: new(""),
	}
}

func tlsListener(set, protocol string, port int, certificate string) loadbalancer.ListenerDetails {
	return loadbalancer.ListenerDetails{
		DefaultBackendSetName: &set, Port: &port, Protocol: &protocol,
		SslConfiguration: &loadbalancer.SslConfigurationDetails{
			CertificateName: &certificate, VerifyDepth: new(0), VerifyPeerCertificate: new(false),
			CipherSuiteName: new("oci-modern-ssl-cipher-suite-v1"), Protocols: []string{"TLSv1.2"},
		},
	}
}

// tlsDetails are a balancer with a listener of TLS on port 8443.
func tlsDetails(t *testing.T, s *sdk, n node) loadbalancer.CreateLoadBalancerDetails {
	t.Helper()
	details := lbDetails(s, "uid-1", n)
	set := details.BackendSets["TCP-80"]
	set.HealthChecker = &loadbalancer.HealthCheckerDetails{Protocol: new("TCP"), Port: new(30080)}
	details.BackendSets["TCP-80"] = set
	details.Listeners = map[string]loadbalancer.ListenerDetails{"TCP-8443": tlsListener("TCP-80", "TCP", 8443, "shop")}
	details.Certificates = map[string]loadbalancer.CertificateDetails{"shop": certificateDetails(t, "shop")}
	return details
}

func TestTLSEndsAtListeners(t *testing.T) {
	c := cloudtest.Start(t, cloudtest.Dialect(dialect.Dialect))
	s := newUser(t, c, "ccm", api.RoleEditor, makeKeys()[0])
	n := createNode(t, c, s, "node-1")
	serveName(t, n, "one")
	details := tlsDetails(t, s, n)
	id := s.await(createLB(s, details, "uid-1")).LoadBalancerId
	lb := s.getLB(id)
	connect := func(certificate loadbalancer.CertificateDetails, port string) *tls.Conn {
		roots := x509.NewCertPool()
		require.True(t, roots.AppendCertsFromPEM([]byte(*certificate.PublicCertificate)))
		return must.Do(tls.Dial("tcp", net.JoinHostPort(*lb.IpAddresses[0].IpAddress, port), &tls.Config{
			RootCAs: roots, ServerName: *certificate.CertificateName + ".example",
		}))(t)
	}
	shop, blog := details.Certificates["shop"], certificateDetails(t, "blog")
	carries := connect(shop, "8443")
	assert.Equal(t, "one", string(must.Do(io.ReadAll(carries))(t)))
	require.NoError(t, carries.Close())
	assert.Equal(t, *shop.PublicCertificate, *lb.Certificates["shop"].PublicCertificate)
	told, ssl := details.Listeners["TCP-8443"].SslConfiguration, lb.Listeners["TCP-8443"].SslConfiguration
	assert.Equal(t, told.CertificateName, ssl.CertificateName)
	assert.Equal(t, told.Protocols, ssl.Protocols)

	added, err := s.lb.CreateCertificate(t.Context(), loadbalancer.CreateCertificateRequest{
		LoadBalancerId: id, CreateCertificateDetails: loadbalancer.CreateCertificateDetails(blog),
	})
	s.await(added.OpcWorkRequestId, err)
	https := tlsListener("TCP-80", "HTTP", 8444, "blog")
	listening, err := s.lb.CreateListener(t.Context(), loadbalancer.CreateListenerRequest{
		LoadBalancerId: id, CreateListenerDetails: loadbalancer.CreateListenerDetails{
			Name: new("HTTP-8444"), DefaultBackendSetName: https.DefaultBackendSetName, Port: https.Port,
			Protocol: https.Protocol, SslConfiguration: https.SslConfiguration,
		},
	})
	s.await(listening.OpcWorkRequestId, err)
	requests := connect(blog, "8444")
	must.Do(io.WriteString(requests, "no request\r\n\r\n"))(t)
	assert.Contains(t, string(must.Do(io.ReadAll(requests))(t)), "400 Bad Request")
	require.NoError(t, requests.Close())
}

func TestCertificates(t *testing.T) {
	c, s := startCloud(t)
	ctx, details := t.Context(), tlsDetails(t, s, createNode(t, c, s, "node-1"))
	id := s.await(createLB(s, details, "uid-1")).LoadBalancerId
	must.Do(createLB(s, details, "uid-1"))(t)
	natives := func() []api.Certificate {
		return must.Do(c.ListCertificates(ctx, client.CertificateFilter{}))(t)
	}
	require.Len(t, natives(), 1, "one for the same creation")
	create := func(details loadbalancer.CertificateDetails) (*string, error) {
		made, err := s.lb.CreateCertificate(ctx, loadbalancer.CreateCertificateRequest{
			LoadBalancerId: id, CreateCertificateDetails: loadbalancer.CreateCertificateDetails(details),
		})
		return made.OpcWorkRequestId, err
	}
	remove := func(name string) (*string, error) {
		gone, err := s.lb.DeleteCertificate(ctx, loadbalancer.DeleteCertificateRequest{
			LoadBalancerId: id, CertificateName: &name,
		})
		return gone.OpcWorkRequestId, err
	}
	blog := certificateDetails(t, "blog")
	s.await(create(blog))
	listed := must.Do(s.lb.ListCertificates(ctx, loadbalancer.ListCertificatesRequest{LoadBalancerId: id}))(t)
	requireMandatory(t, listed.Items)
	require.Len(t, listed.Items, 2)
	otherKey, encrypted := blog, blog
	otherKey.CertificateName, otherKey.PrivateKey = new("x"), details.Certificates["shop"].PrivateKey
	encrypted.CertificateName, encrypted.Passphrase = new("x"), new("secret")
	for _, wrong := range []loadbalancer.CertificateDetails{blog, otherKey, encrypted} {
		_, err := create(wrong)
		requireRefusal(t, 400, "InvalidParameter", err)
	}
	_, err := remove("shop")
	requireRefusal(t, 400, "InvalidParameter", err)
	require.Len(t, natives(), 2)
	s.await(remove("blog"))
	require.Len(t, natives(), 1)
	_, err = remove("blog")
	requireRefusal(t, 404, "NotAuthorizedOrNotFound", err)

	plain, err := s.lb.UpdateListener(ctx, loadbalancer.UpdateListenerRequest{
		LoadBalancerId: id, ListenerName: new("TCP-8443"), UpdateListenerDetails: loadbalancer.UpdateListenerDetails{
			DefaultBackendSetName: new("TCP-80"), Port: new(8443), Protocol: new("TCP"),
		},
	})
	s.await(plain.OpcWorkRequestId, err)
	assert.Nil(t, s.getLB(id).Listeners["TCP-8443"].SslConfiguration)
	deleted, err := s.lb.DeleteLoadBalancer(ctx, loadbalancer.DeleteLoadBalancerRequest{LoadBalancerId: id})
	s.await(deleted.OpcWorkRequestId, err)
	assert.Empty(t, natives())
}

// A certificate that a listener was given natively is shown by its native ID, and stays when others change.
func TestCertificatesGivenNatively(t *testing.T) {
	c, s := startCloud(t)
	id := s.await(createLB(s, tlsDetails(t, s, createNode(t, c, s, "node-1")), "uid-1")).LoadBalancerId
	chain, key := testcerts.For(t, "other.example")
	create := api.CertificateCreate{Name: "other", Certificate: chain, PrivateKey: key}
	other := must.Do(c.CreateCertificate(t.Context(), create))(t)
	lb := must.Do(c.ListLoadBalancers(t.Context(), client.LoadBalancerFilter{}))(t)[0]
	lb.Listeners[0].CertificateIDs = []string{other.ID}
	added := lb.Listeners[0]
	added.Protocol, added.Port = api.ProtocolHTTPS, 9443
	listeners := append(slices.Clone(lb.Listeners), added)
	must.Do(c.UpdateLoadBalancer(t.Context(), lb.ID, api.LoadBalancerUpdate{Listeners: &listeners}))(t)
	shaped, err := s.lb.UpdateLoadBalancerShape(t.Context(), loadbalancer.UpdateLoadBalancerShapeRequest{
		LoadBalancerId:                 id,
		UpdateLoadBalancerShapeDetails: loadbalancer.UpdateLoadBalancerShapeDetails{ShapeName: new("400Mbps")},
	})
	s.await(shaped.OpcWorkRequestId, err)
	shown := s.getLB(id).Listeners
	require.Len(t, shown, 2)
	assert.Equal(t, []string{other.ID}, shown["TCP-8443"].SslConfiguration.CertificateIds)
	assert.Equal(t, "HTTP", *shown["HTTPS-9443"].Protocol)
	assert.Equal(t, []string{other.ID}, shown["HTTPS-9443"].SslConfiguration.CertificateIds)
	deleted, err := s.lb.DeleteLoadBalancer(t.Context(), loadbalancer.DeleteLoadBalancerRequest{LoadBalancerId: id})
	s.await(deleted.OpcWorkRequestId, err)
	left := must.Do(c.ListCertificates(t.Context(), client.CertificateFilter{}))(t)
	require.Len(t, left, 1)
	assert.Equal(t, other.ID, left[0].ID)
}

func TestRefusalsOfTLS(t *testing.T) {
	c, s := startCloud(t)
	n := createNode(t, c, s, "node-1")
	for name, change := range map[string]func(*loadbalancer.CreateLoadBalancerDetails){
		"a certificate that is not there": func(d *loadbalancer.CreateLoadBalancerDetails) {
			d.Listeners["TCP-8443"] = tlsListener("TCP-80", "TCP", 8443, "none")
		},
		"clients' certificates": func(d *loadbalancer.CreateLoadBalancerDetails) {
			d.Listeners["TCP-8443"].SslConfiguration.VerifyPeerCertificate = new(true)
		},
		"no certificate": func(d *loadbalancer.CreateLoadBalancerDetails) {
			d.Listeners["TCP-8443"].SslConfiguration.CertificateName = nil
		},
		"TLS to backends": func(d *loadbalancer.CreateLoadBalancerDetails) {
			set := d.BackendSets["TCP-80"]
			set.SslConfiguration = d.Listeners["TCP-8443"].SslConfiguration
			d.BackendSets["TCP-80"] = set
		},
	} {
		t.Run(name, func(t *testing.T) {
			details := tlsDetails(t, s, n)
			change(&details)
			_, err := createLB(s, details, name)
			requireRefusal(t, 400, "InvalidParameter", err)
			assert.Empty(t, must.Do(c.ListCertificates(t.Context(), client.CertificateFilter{}))(t))
		})
	}
}
