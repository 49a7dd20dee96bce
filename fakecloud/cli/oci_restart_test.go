package cli_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/oracle/oci-go-sdk/v65/common"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/identity"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
)

// ociCaller makes calls of Oracle's load balancers that it signs.
type ociCaller struct {
	t    *testing.T
	base common.BaseClient
}

func newOCICaller(t *testing.T, address, keyFile, fingerprint string) *ociCaller {
	t.Helper()
	key := string(must.Do(os.ReadFile(keyFile))(t))
	base := must.Do(common.NewClientWithConfig(common.NewRawConfigurationProvider(
		"ocid1.tenancy.fc1..default", "ocid1.user.fc1..operator", "us-phoenix-1", fingerprint, key, nil,
	)))(t)
	base.Host, base.Configuration.CircuitBreaker = "http://"+address, nil
	base.Configuration.RetryPolicy = new(common.NoRetryPolicy())
	return &ociCaller{t: t, base: base}
}

// call makes a call whose answer has the status, and returns its body, or without one the work request's OCID.
func (c *ociCaller) call(status int, method, path, body string, header ...string) string {
	c.t.Helper()
	request := must.Do(http.NewRequestWithContext(c.t.Context(), method, path, strings.NewReader(body)))(c.t)
	request.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(header); i += 2 {
		request.Header.Set(header[i], header[i+1])
	}
	answer, err := c.base.Call(c.t.Context(), request)
	require.NotNil(c.t, answer, "%s: %v", path, err)
	require.Equal(c.t, status, answer.StatusCode, "%s: %v", path, err)
	if status >= http.StatusBadRequest {
		return ""
	}
	defer func() { _ = answer.Body.Close() }()
	text := string(must.Do(io.ReadAll(answer.Body))(c.t))
	if text == "" {
		return answer.Header.Get("Opc-Work-Request-Id")
	}
	return text
}

// workRequest requires the state of a work request, and returns the OCID of its balancer.
func (c *ociCaller) workRequest(state, id string) (balancer string) {
	c.t.Helper()
	var w struct{ LifecycleState, LoadBalancerID string }
	text := c.call(http.StatusOK, http.MethodGet, "/20170115/loadBalancerWorkRequests/"+id, "")
	require.NoError(c.t, json.Unmarshal([]byte(text), &w))
	require.Equal(c.t, state, w.LifecycleState)
	return "/20170115/loadBalancers/" + w.LoadBalancerID
}

// What clients of the dialect oci were told stays true when the cloud is killed while it makes and deletes a load
// balancer, and a snapshot brings back what there was, but for keys: those stay as they are, as tokens do.
func TestOCISurvivesKillsAndARestore(t *testing.T) {
	dir := t.TempDir()
	free := must.Do(net.Listen("tcp4", "127.0.0.1:0"))(t)
	address := free.Addr().String()
	require.NoError(t, free.Close())
	flags := []string{"--clock", "virtual", "--load-balancer-mode", "none", "--dialect", "oci=" + address}
	p := startServe(t, dir, flags...)
	ok, _ := p.commandRunners(t)
	restart := func(between ...string) {
		p.kill()
		if len(between) > 0 {
			ok(between...)
		}
		p = startServe(t, dir, flags...)
		ok, _ = p.commandRunners(t)
	}
	newKey := func(name string) *ociCaller {
		private, public := filepath.Join(dir, name), filepath.Join(dir, name+".pub")
		writeKeyPair(t, private, public)
		added := ok("tokens", "keys", "add", "operator", "--file", public)
		return newOCICaller(t, address, private, regexp.MustCompile(`(\w\w:){15}\w\w`).FindString(added))
	}
	// Without listeners nothing is checked, which does not go with a virtual clock.
	code := identity.Code(must.Do(p.client.ListNetworks(t.Context(), client.NetworkFilter{}))(t)[0].Serial)
	asked := fmt.Sprintf(`{"compartmentId": "ocid1.tenancy.fc1..default", "displayName": "uid-1", "shapeName": "100Mbps",
		"subnetIds": [%q], "freeformTags": {"a": "b"},
		"backendSets": {"TCP-80": {"policy": "IP_HASH", "healthChecker": {"protocol": "TCP", "port": 10256}}}}`,
		"ocid1.subnet.fc1.neb."+code)
	list := "/20160918/securityLists/ocid1.securitylist.fc1.neb." + code

	first := newKey("first")
	create := func() string {
		return first.call(http.StatusNoContent, http.MethodPost, "/20170115/loadBalancers", asked, "opc-retry-token", "uid-1")
	}
	creation := create()
	first.workRequest("IN_PROGRESS", creation)
	restart()
	first.workRequest("IN_PROGRESS", creation)
	assert.Equal(t, creation, create(), "the retry token is known")
	ok("clock", "advance", "1h")
	balancer := first.workRequest("SUCCEEDED", creation)
	first.call(http.StatusOK, http.MethodPut, list, `{"ingressSecurityRules": []}`, "if-match", "0")
	made := first.call(http.StatusOK, http.MethodGet, balancer, "")
	rules := first.call(http.StatusOK, http.MethodGet, list, "")
	assert.Contains(t, made, `"IP_HASH"`)
	ok("snapshots", "save", "made")
	ok("snapshots", "export", "made", filepath.Join(dir, "made.db"))

	second := newKey("second")
	deletion := second.call(http.StatusNoContent, http.MethodDelete, balancer, "")
	first.call(http.StatusOK, http.MethodPut, list, `{"egressSecurityRules": []}`)
	restart()
	second.workRequest("IN_PROGRESS", deletion)
	ok("clock", "advance", "1h")
	second.workRequest("SUCCEEDED", deletion)
	second.call(http.StatusNotFound, http.MethodGet, balancer, "")

	restart("restore", filepath.Join(dir, "made.db"), "--data", filepath.Join(dir, "cloud.db"))
	assert.JSONEq(t, made, first.call(http.StatusOK, http.MethodGet, balancer, ""))
	assert.JSONEq(t, rules, second.call(http.StatusOK, http.MethodGet, list, ""))
	first.workRequest("SUCCEEDED", creation)
	assert.Equal(t, creation, create())
	second.call(http.StatusNotFound, http.MethodGet, "/20170115/loadBalancerWorkRequests/"+deletion, "")
	assert.Len(t, must.Do(p.client.ListLoadBalancers(t.Context(), client.LoadBalancerFilter{}))(t), 1)
}
