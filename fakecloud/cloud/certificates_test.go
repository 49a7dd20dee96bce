package cloud

import (
	"context"
	"crypto/tls"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
	"github.com/ccmlab/ccmlab/fakecloud/internal/testcerts"
	"github.com/ccmlab/ccmlab/fakecloud/store"
	"github.com/ccmlab/ccmlab/fakecloud/store/db"
)

func certificateFor(t *testing.T, host string) api.CertificateCreate {
	t.Helper()
	name, _, _ := strings.Cut(host, ".")
	cert, key := testcerts.For(t, host)
	return api.CertificateCreate{Name: name, Certificate: cert, PrivateKey: key}
}

func TestCertificates(t *testing.T) {
	c, p := newCloud(t, nil)
	spec, other := certificateFor(t, "shop.example.com"), certificateFor(t, "blog.example.com")
	made := must.First(c.Certificates.Create(t.Context(), p, spec))(t)
	assert.Equal(t, []string{"shop.example.com"}, made.DomainNames)
	assert.Equal(t, 366*24*time.Hour, made.NotAfter.Sub(made.NotBefore).Round(24*time.Hour))
	assert.Len(t, made.Fingerprint, 64)
	for field, wrong := range map[string]api.CertificateCreate{
		"certificate": {Name: "a", Certificate: "no PEM", PrivateKey: spec.PrivateKey},
		"privateKey":  {Name: "a", Certificate: spec.Certificate, PrivateKey: other.PrivateKey},
	} {
		requireRefusedAt(t, InvalidRequest, field)(c.Certificates.Create(t.Context(), p, wrong))
	}
	forNobody := api.CertificateCreate{Name: "nobody"}
	forNobody.Certificate, forNobody.PrivateKey = testcerts.For(t)
	nameless := must.First(c.Certificates.Create(t.Context(), p, forNobody))(t)
	assert.Equal(t, []string{}, nameless.DomainNames, "the API has a list, also of none")
	spec.Name = "twin"
	twin := must.First(c.Certificates.Create(t.Context(), p, spec))(t)
	require.NoError(t, c.Certificates.Delete(t.Context(), p, made.ID))
	assertHasKey(t, c, p, twin)
}

// assertHasKey tells that the cloud has the private key of a certificate.
func assertHasKey(t *testing.T, c *Cloud, p Project, of Certificate) {
	t.Helper()
	must.Do(readOne(t.Context(), c, func(tx *store.Tx) (tls.Certificate, error) {
		return keyPair(t.Context(), tx, p.ID, of.ID)
	}))(t)
}

// A snapshot may go to other machines. One that comes back finds the keys that this one has.
func TestPrivateKeysAreInNoSnapshot(t *testing.T) {
	dir := t.TempDir()
	data := filepath.Join(dir, "cloud.db")
	s := must.Do(store.Open(t.Context(), data))(t)
	c, p := newCloud(t, func(cfg *Config) { cfg.Store, cfg.SnapshotDir = s, dir })
	spec := certificateFor(t, "shop.example.com")
	made := must.First(c.Certificates.Create(t.Context(), p, spec))(t)
	inKey := spec.PrivateKey[100:140]
	events, err := s.EventsAfter(t.Context(), p.ID, -1, 100)
	require.NoError(t, err)
	for _, e := range events.Events {
		assert.NotContains(t, e.Body, inKey)
	}
	requireOK(t)(c.SaveSnapshot(t.Context(), "before"))
	snapshot := filepath.Join(dir, "before.db")
	content := must.Do(os.ReadFile(snapshot))(t)
	assert.NotContains(t, string(content), inKey)
	assert.Contains(t, string(content), made.Fingerprint)
	require.NoError(t, s.Close())

	require.NoError(t, store.Restore(t.Context(), data, snapshot))
	s = must.Do(store.Open(t.Context(), data))(t)
	defer func() { assert.NoError(t, s.Close()) }()
	restored, _ := newCloud(t, func(cfg *Config) { cfg.Store = s })
	assertHasKey(t, restored, p, made)
}

func TestListenersWithCertificates(t *testing.T) {
	c, p, plane := newCloudWithPlane(t)
	made := must.First(c.Certificates.Create(t.Context(), p, certificateFor(t, "shop.example.com")))(t)
	create := func(protocol Protocol, ids ...string) error {
		_, _, err := c.CreateLoadBalancer(t.Context(), p, api.LoadBalancerCreate{Name: "web", Listeners: []Listener{
			{Protocol: protocol, Port: 443, TargetPort: 80, CertificateIDs: ids},
		}})
		return err
	}
	requireRefusedAt(t, InvalidRequest, "listeners.0.certificateIds")(create(api.ProtocolHTTPS))
	requireRefusedAt(t, InvalidRequest, "listeners.0.certificateIds")(create(api.ProtocolTLS))
	requireRefusedAt(t, InvalidRequest, "listeners.0.certificateIds")(create(api.ProtocolHTTP, made.ID))
	requireRefusedAt(t, UnknownCertificate, "listeners.0.certificateIds.1")(create(api.ProtocolHTTPS, made.ID, "cert-none"))
	require.NoError(t, create(api.ProtocolHTTPS, made.ID))
	advance(t, c, time.Minute)
	lb := must.First(c.ListLoadBalancers(t.Context(), p, Filter{Limit: NoLimit}))(t)[0]
	assert.Equal(t, "shop.example.com", plane.applied[lb.ID].Certificates[made.ID].Leaf.DNSNames[0])
	requireRefused(t, InUse)(c.Certificates.Delete(t.Context(), p, made.ID))

	require.NoError(t, c.change(t.Context(), func(ctx context.Context, tx *changeTx) error {
		return tx.DeleteCertificateKey(ctx, db.DeleteCertificateKeyParams{
			ProjectID: p.ID, Fingerprint: made.Fingerprint, Certificate: made.ID,
		})
	}))
	updateBalancer(t, c, p, lb.ID, api.LoadBalancerUpdate{Name: new("other")})
	advance(t, c, time.Minute)
	lb = must.Do(c.GetLoadBalancer(t.Context(), p, lb.ID))(t)
	assert.Equal(t, api.LoadBalancerError, lb.State)
	assert.Contains(t, lb.StateReason, "create the certificate anew")

	plain := Listener{Protocol: api.ProtocolTCP, Port: 80, TargetPort: 80, CertificateIDs: []string{}}
	lb = updateBalancer(t, c, p, lb.ID, api.LoadBalancerUpdate{Listeners: &[]Listener{plain}})
	same := updateBalancer(t, c, p, lb.ID, api.LoadBalancerUpdate{Listeners: &[]Listener{plain}})
	assert.Equal(t, lb.Version, same.Version, "a change of nothing")
	require.NoError(t, c.Certificates.Delete(t.Context(), p, made.ID))

	made = must.First(c.Certificates.Create(t.Context(), p, certificateFor(t, "shop.example.com")))(t)
	ends := Listener{Protocol: api.ProtocolTLS, Port: 443, TargetPort: 80, CertificateIDs: []string{made.ID}}
	updateBalancer(t, c, p, lb.ID, api.LoadBalancerUpdate{Listeners: &[]Listener{ends}})
	requireRefused(t, InUse)(c.Certificates.Delete(t.Context(), p, made.ID))
	_, _, err := c.DeleteLoadBalancer(t.Context(), p, lb.ID)
	require.NoError(t, err)
	require.NoError(t, c.Certificates.Delete(t.Context(), p, made.ID), "the balancer forwards no more")
}
