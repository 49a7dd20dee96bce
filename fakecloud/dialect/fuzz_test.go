package dialect_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/cloudtest"
	"github.com/ccmlab/ccmlab/fakecloud/dialect/brightbox"
	"github.com/ccmlab/ccmlab/fakecloud/dialect/hcloud"
	"github.com/ccmlab/ccmlab/fakecloud/dialect/oci"
	"github.com/ccmlab/ccmlab/fakecloud/dialect/oxide"
)

// FuzzRequests sends each dialect what no SDK sends. It answers in its own way: never with 500.
func FuzzRequests(f *testing.F) {
	for _, seed := range [][4]string{
		{"hcloud", "GET", "/v1/servers?label_selector=a%3Db,!c,d+in+(e,f)&per_page=2&page=1", ""},
		{"hcloud", "POST", "/v1/load_balancers", `{"name":"a","load_balancer_type":"lb11","location":"nebula-1a"}`},
		{"hcloud", "POST", "/v1/load_balancers/1/actions/add_service", `{"protocol":"tcp","listen_port":1,"destination_port":2}`},
		{"oxide", "GET", "/v1/instances/node-1?project=default", ""},
		{"oxide", "POST", "/v1/floating-ips?project=default", `{"name":"a","description":"","address_allocator":{"type":"auto"}}`},
		{"brightbox", "POST", "/token", `{"grant_type":"client_credentials"}`},
		{"brightbox", "POST", "/1.0/load_balancers", `{"name":"a","listeners":[{"protocol":"tcp","in":1,"out":2,"timeout":1}]}`},
		{"brightbox", "GET", "/1.0/servers/srv-00000", ""},
		{"oci", "GET", "/20170115/loadBalancerWorkRequests/ocid1.loadbalancerworkrequest.fc1.neb.00001.00000", ""},
		{"oci", "POST", "/20170115/loadBalancers", `{"compartmentId":"ocid1.tenancy.fc1..default","displayName":"a",
			"shapeName":"100Mbps","subnetIds":["ocid1.subnet.fc1.neb.00001"],"backendSets":{"a":{"policy":"ROUND_ROBIN",
			"healthChecker":{"protocol":"TCP","port":0},"backends":[]}},
			"listeners":{"a":{"defaultBackendSetName":"a","port":1,"protocol":"TCP"}}}`},
		{"oci", "PUT", "/20160918/securityLists/ocid1.securitylist.fc1.neb.00001", `{"ingressSecurityRules":[{"protocol":"6",
			"source":"0.0.0.0/0","tcpOptions":{"destinationPortRange":{"min":1,"max":2}}}]}`},
		{"oci", "POST", "/20200501/networkLoadBalancers", `{"compartmentId":"ocid1.tenancy.fc1..default","displayName":"a/b",
			"subnetId":"ocid1.subnet.fc1.neb.00001","listeners":{},"backendSets":{}}`},
	} {
		f.Add(seed[0], seed[1], seed[2], seed[3])
	}
	c := cloudtest.Start(
		f, cloudtest.WithoutTraffic(), cloudtest.Dialect(hcloud.Dialect), cloudtest.Dialect(oxide.Dialect),
		cloudtest.Dialect(brightbox.Dialect), cloudtest.Dialect(oci.Dialect),
	)
	token, err := os.ReadFile(c.TokenFile)
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, name, method, target, body string) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		at := c.DialectURL(name)
		req, err := http.NewRequestWithContext(ctx, method, at+target, strings.NewReader(body))
		if at == "" || err != nil || req.URL.Scheme+"://"+req.URL.Host != at {
			t.Skip("no request to a dialect")
		}
		req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
		req.Header.Set("Content-Type", "application/json")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Skip("nothing that Go's client sends")
		}
		answer, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		assert.NotEqual(t, http.StatusInternalServerError, resp.StatusCode, "%s", answer)
		if strings.Contains(resp.Header.Get("Content-Type"), "json") && len(answer) > 0 {
			assert.True(t, json.Valid(answer), "%s", answer)
		}
	})
}
