package hcloud_test

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/hetznercloud/hcloud-go/v2/hcloud"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/cloudtest"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
	"github.com/ccmlab/ccmlab/fakecloud/internal/testcerts"
)

func httpsService(port, to int, certificate *hcloud.Certificate) hcloud.LoadBalancerAddServiceOpts {
	service := tcpService(port, to)
	service.Protocol = hcloud.LoadBalancerServiceProtocolHTTPS
	service.HTTP = &hcloud.LoadBalancerAddServiceOptsHTTP{Certificates: []*hcloud.Certificate{certificate}}
	return service
}

func TestCertificates(t *testing.T) {
	c, sdk := startCloud(t, cloudtest.WithoutTraffic())
	chain, key := testcerts.For(t, "shop.example.com", "www.example.com")
	upload := hcloud.CertificateCreateOpts{
		Name: "shop", Type: hcloud.CertificateTypeUploaded, Certificate: chain, PrivateKey: key,
		Labels: map[string]string{"k": "v"},
	}
	uploaded := must.First(sdk.Certificate.Create(t.Context(), upload))(t)
	assert.Equal(t, chain, uploaded.Certificate)
	assert.Equal(t, hcloud.CertificateTypeUploaded, uploaded.Type)
	assert.Nil(t, uploaded.Status)
	assert.Empty(t, uploaded.UsedBy)
	assert.Regexp(t, "^[0-9A-F]{2}(:[0-9A-F]{2}){31}$", uploaded.Fingerprint)
	requireRetryRefused := func(of *hcloud.Certificate) {
		t.Helper()
		_, _, err := sdk.Certificate.RetryIssuance(t.Context(), of)
		assert.Regexp(t, `^certificate not retryable \(unsupported_error, [0-9a-f]{32}\)$`, err)
	}
	requireRetryRefused(uploaded)
	requireError(t, hcloud.ErrorCodeUniquenessError)(sdk.Certificate.Create(t.Context(), upload))
	_, other := testcerts.For(t, "other.example.com")
	upload.PrivateKey, upload.Name = other, "other"
	requireError(t, hcloud.ErrorCodeInvalidInput)(sdk.Certificate.Create(t.Context(), upload))

	issued := must.First(sdk.Certificate.CreateCertificate(t.Context(), hcloud.CertificateCreateOpts{
		Name: "managed", Type: hcloud.CertificateTypeManaged, DomainNames: []string{"blog.example.com", "*.example.org"},
	}))(t)
	require.NoError(t, sdk.Action.WaitFor(t.Context(), issued.Action))
	assert.Equal(t, "create_certificate", issued.Action.Command)
	managed := must.First(sdk.Certificate.GetByName(t.Context(), "managed"))(t)
	assert.Equal(t, []string{"blog.example.com", "*.example.org"}, managed.DomainNames)
	assert.Equal(t, hcloud.CertificateStatusTypeCompleted, managed.Status.Issuance)
	assert.WithinDuration(t, time.Now().AddDate(0, 0, 90), managed.NotValidAfter, time.Hour)
	requireRetryRefused(managed)
	_, _, err := sdk.Certificate.CreateCertificate(t.Context(), hcloud.CertificateCreateOpts{
		Name: "bad", Type: hcloud.CertificateTypeManaged, DomainNames: []string{"no name"},
	})
	requireError(t, hcloud.ErrorCodeInvalidInput)(err)

	lb := createBalancer(t, c, sdk)
	await(t, sdk)(sdk.LoadBalancer.AddService(t.Context(), lb, httpsService(443, 30080, managed)))
	managed = must.First(sdk.Certificate.GetByID(t.Context(), managed.ID))(t)
	assert.Equal(t, []hcloud.CertificateUsedByRef{{ID: lb.ID, Type: hcloud.CertificateUsedByRefTypeLoadBalancer}}, managed.UsedBy)
	requireError(t, hcloud.ErrorCodeResourceInUse)(sdk.Certificate.Delete(t.Context(), managed))

	renamed := must.First(sdk.Certificate.Update(t.Context(), uploaded, hcloud.CertificateUpdateOpts{Name: "store"}))(t)
	assert.Equal(t, "store", renamed.Name)
	for want, query := range map[string]hcloud.CertificateListOpts{
		"managed": {Name: "managed"}, "store": {ListOpts: hcloud.ListOpts{LabelSelector: "k=v"}},
	} {
		found := must.Do(sdk.Certificate.AllWithOpts(t.Context(), query))(t)
		require.Len(t, found, 1)
		assert.Equal(t, want, found[0].Name)
	}
	status, _, answer := send(t, sdk, http.MethodGet, "/certificates?type=managed&type=none", "")
	assert.Equal(t, http.StatusUnprocessableEntity, status)
	assert.Contains(t, answer["error"].(map[string]any)["message"], "invalid input in field 'type'")
	must.Do(sdk.Certificate.Delete(t.Context(), renamed))(t)
	assert.Nil(t, must.First(sdk.Certificate.GetByID(t.Context(), renamed.ID))(t))
}

// The keys of certificates, uploaded and managed, are in nothing that can be read of the cloud.
func TestPrivateKeysStayInTheCloud(t *testing.T) {
	c, sdk := startCloud(t, cloudtest.WithoutTraffic())
	chain, key := testcerts.For(t, "shop.example.com")
	uploaded := must.First(sdk.Certificate.Create(t.Context(), hcloud.CertificateCreateOpts{
		Name: "shop", Certificate: chain, PrivateKey: key,
	}))(t)
	issued := must.First(sdk.Certificate.CreateCertificate(t.Context(), hcloud.CertificateCreateOpts{
		Name: "managed", Type: hcloud.CertificateTypeManaged, DomainNames: []string{"blog.example.com"},
	}))(t)
	must.First(sdk.Certificate.Update(t.Context(), uploaded, hcloud.CertificateUpdateOpts{Name: "store"}))(t)
	must.Do(c.CreateSnapshot(t.Context(), "now"))(t)
	body := strings.Split(key, "\n")[1]
	token := strings.TrimSpace(string(must.Do(os.ReadFile(c.TokenFile))(t)))
	read := func(url, want string) {
		t.Helper()
		req := must.Do(http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil))(t)
		req.Header.Set("Authorization", "Bearer "+token)
		resp := must.Do(http.DefaultClient.Do(req))(t)
		text := string(must.Do(io.ReadAll(resp.Body))(t))
		require.NoError(t, resp.Body.Close())
		require.Equal(t, http.StatusOK, resp.StatusCode, url)
		for part, has := range map[string]bool{want: true, body: false, "PRIVATE KEY": false} {
			assert.Equal(t, has, strings.Contains(text, part), "%s in %s", part, url)
		}
	}
	for url, want := range map[string]string{
		c.URL + "/v1/certificates":                                                       "shop.example.com",
		c.URL + "/v1/audit":                                                              "createCertificate",
		c.URL + "/v1/events?after=0&follow=false":                                        "shop.example.com",
		c.URL + "/v1/operations":                                                         "items",
		c.URL + "/v1/snapshots/now/content":                                              "shop.example.com",
		c.DialectURL("hcloud") + "/v1/certificates":                                      "shop.example.com",
		c.DialectURL("hcloud") + "/v1/actions?id=" + fmt.Sprint(issued.Action.ID):        "create_certificate",
		c.DialectURL("hcloud") + "/v1/certificates/" + fmt.Sprint(issued.Certificate.ID): "blog.example.com",
	} {
		read(url, want)
	}
}

// What clients get of a service of https is what the dialect was told.
func TestServicesOfHTTPSEndTLS(t *testing.T) {
	c, sdk := startCloud(t)
	in := c.AwaitInstance(createInstance(t, c, "node-1").ID, api.InstanceRunning)
	listener, err := net.Listen("tcp", net.JoinHostPort(in.Addresses[0].IP, "0"))
	require.NoError(t, err)
	target := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.Header.Get("X-Forwarded-Proto")+" "+r.Host)
	}))
	require.NoError(t, target.Listener.Close())
	target.Listener = listener
	target.Start()
	t.Cleanup(target.Close)
	certificate := must.First(sdk.Certificate.CreateCertificate(t.Context(), hcloud.CertificateCreateOpts{
		Name: "shop", Type: hcloud.CertificateTypeManaged, DomainNames: []string{"shop.example.com"},
	}))(t).Certificate
	lb := createBalancer(t, c, sdk)
	service := httpsService(8443, listener.Addr().(*net.TCPAddr).Port, certificate)
	service.HTTP.StickySessions = hcloud.Ptr(true)
	await(t, sdk)(sdk.LoadBalancer.AddService(t.Context(), lb, service))
	await(t, sdk)(sdk.LoadBalancer.AddServerTarget(t.Context(), lb, hcloud.LoadBalancerAddServerTargetOpts{
		Server: &hcloud.Server{ID: in.Serial}, UsePrivateIP: hcloud.Ptr(true),
	}))
	roots := x509.NewCertPool()
	require.True(t, roots.AppendCertsFromPEM([]byte(certificate.Certificate)))
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: "shop.example.com"}}
	t.Cleanup(transport.CloseIdleConnections)
	answer := must.Do((&http.Client{Transport: transport}).Get("https://" + net.JoinHostPort(lb.PublicNet.IPv4.IP.String(), "8443")))(t)
	defer func() { _ = answer.Body.Close() }()
	body := must.Do(io.ReadAll(answer.Body))(t)
	assert.Equal(t, "https "+net.JoinHostPort(lb.PublicNet.IPv4.IP.String(), "8443"), string(body))
	require.Len(t, answer.Cookies(), 1)
	assert.Equal(t, "HCLBSTICKY", answer.Cookies()[0].Name)
	assert.Equal(t, 300, answer.Cookies()[0].MaxAge)
}

func TestServicesOfHTTPBecomeListeners(t *testing.T) {
	c, sdk := startCloud(t, cloudtest.WithoutTraffic())
	lb := createBalancer(t, c, sdk)
	add := func(service hcloud.LoadBalancerAddServiceOpts) error {
		_, _, err := sdk.LoadBalancer.AddService(t.Context(), lb, service)
		return err
	}
	certificate := must.First(sdk.Certificate.CreateCertificate(t.Context(), hcloud.CertificateCreateOpts{
		Name: "shop", Type: hcloud.CertificateTypeManaged, DomainNames: []string{"shop.example.com"},
	}))(t).Certificate
	requireError(t, hcloud.ErrorCodeNotFound)(add(httpsService(443, 30080, &hcloud.Certificate{ID: 12345})))
	without := httpsService(443, 30080, certificate)
	without.HTTP.Certificates = nil
	requireError(t, hcloud.ErrorCodeInvalidInput)(add(without))
	redirect := httpsService(80, 30080, certificate)
	redirect.Protocol, redirect.HTTP.RedirectHTTP = hcloud.LoadBalancerServiceProtocolHTTP, hcloud.Ptr(true)
	requireError(t, hcloud.ErrorCodeInvalidInput)(add(redirect))

	service := httpsService(443, 30080, certificate)
	service.HTTP.RedirectHTTP = hcloud.Ptr(true)
	service.HTTP.TimeoutIdle = hcloud.Ptr(time.Minute)
	service.HealthCheck.Protocol = hcloud.LoadBalancerServiceProtocolHTTP
	service.HealthCheck.HTTP = &hcloud.LoadBalancerAddServiceOptsHealthCheckHTTP{
		Domain: hcloud.Ptr("shop.example.com"), Response: hcloud.Ptr("ok"), TLS: hcloud.Ptr(true), StatusCodes: []string{"2*", "404"},
	}
	await(t, sdk)(sdk.LoadBalancer.AddService(t.Context(), lb, service))
	requireError(t, hcloud.ErrorCodeSourcePortAlreadyUsed)(add(tcpService(80, 30080)))
	listeners := must.Do(c.ListLoadBalancers(t.Context(), client.LoadBalancerFilter{}))(t)[0].Listeners
	require.Len(t, listeners, 2)
	assert.Equal(t, api.Listener{Protocol: api.ProtocolHTTP, Port: 80, TargetPort: 30080, RedirectPort: 443}, listeners[1])
	secure := listeners[0]
	assert.Equal(t, api.ProtocolHTTPS, secure.Protocol)
	assert.EqualValues(t, 60, secure.IdleTimeoutSeconds)
	check := secure.HealthCheck
	assert.Equal(t, []any{api.HealthCheckHTTPS, "shop.example.com", "ok", "200-299,404"},
		[]any{check.Protocol, check.Host, check.Response, check.ExpectedCodes})

	lb = must.First(sdk.LoadBalancer.GetByID(t.Context(), lb.ID))(t)
	require.Len(t, lb.Services, 1, "a redirect is no service")
	assert.Equal(t, certificate.ID, lb.Services[0].HTTP.Certificates[0].ID)
	await(t, sdk)(sdk.LoadBalancer.UpdateService(t.Context(), lb, 443, hcloud.LoadBalancerUpdateServiceOpts{
		HTTP: &hcloud.LoadBalancerUpdateServiceOptsHTTP{RedirectHTTP: hcloud.Ptr(false)},
	}))
	assert.Len(t, must.Do(c.ListLoadBalancers(t.Context(), client.LoadBalancerFilter{}))(t)[0].Listeners, 1)
}
