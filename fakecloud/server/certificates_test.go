package server_test

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
	"github.com/ccmlab/ccmlab/fakecloud/internal/testcerts"
)

func certificateFor(t *testing.T, name string) api.CertificateCreate {
	t.Helper()
	cert, key := testcerts.For(t, name+".example.com")
	return api.CertificateCreate{Name: name, Certificate: cert, PrivateKey: key}
}

// Nothing that can be read has the private key of a certificate.
func TestCertificates(t *testing.T) {
	r, ctx := newRig(t), t.Context()
	spec, other := certificateFor(t, "shop"), certificateFor(t, "blog")
	body := func(c api.CertificateCreate) string { return string(must.Do(json.Marshal(c))(t)) }
	made := must.Do(r.CreateCertificate(ctx, spec))(t)
	answer, _ := r.call(t, "GET", "/v1/certificates/"+made.ID, "")
	assert.NotContains(t, answer.Body, "PRIVATE")
	assert.Equal(t, made, must.Do(r.GetCertificate(ctx, made.ID))(t))
	for _, e := range must.Do(r.ListAudit(ctx, client.AuditFilter{}, 100))(t) {
		assert.NotContains(t, fmt.Sprint(e), "PRIVATE")
	}
	r.refused(t, "POST", "/v1/certificates", body(spec), api.NameTaken, "name", "choose another")
	second := must.Do(r.CreateCertificate(ctx, other))(t)
	r.refused(t, "PATCH", "/v1/certificates/"+second.ID, `{"name":"shop"}`, api.NameTaken, "name", "choose another")
	spec.PrivateKey = other.PrivateKey
	r.refused(t, "POST", "/v1/certificates", body(spec), api.InvalidRequest, "privateKey", "want the private key")
	renamed := must.Do(r.UpdateCertificate(ctx, second.ID, api.ResourceUpdate{Name: new("news")}))(t)
	assert.Equal(t, other.Certificate, renamed.Certificate)
	require.NoError(t, r.DeleteCertificate(ctx, second.ID))
	listen := []api.Listener{{Protocol: api.ProtocolHTTPS, Port: freePort(t), TargetPort: 80, CertificateIDs: []string{"none"}}}
	requireCode(t, api.UnknownCertificate)(r.CreateLoadBalancer(ctx, api.LoadBalancerCreate{Name: "web", Listeners: listen}))
	listen[0].CertificateIDs[0] = made.ID
	lb := r.createBalancer(t, api.LoadBalancerCreate{Name: "web", Listeners: listen})
	requireCode(t, api.InUse)(nil, r.DeleteCertificate(ctx, made.ID))
	listen[0].CertificateIDs[0] = "none"
	requireCode(t, api.UnknownCertificate)(r.UpdateLoadBalancer(ctx, lb.ID, api.LoadBalancerUpdate{Listeners: &listen}))
	for n := range 500 {
		other.Name = fmt.Sprint("more-", n)
		_, err := r.CreateCertificate(ctx, other)
		if n == 499 {
			assert.True(t, client.HasCode(err, api.QuotaExceeded), "%v", err)
			continue
		}
		require.NoError(t, err)
	}
}
