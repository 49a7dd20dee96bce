package oci_test

import (
	"bytes"
	"crypto/md5" //nolint:gosec // A key's fingerprint is one.
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/oracle/oci-go-sdk/v65/common"
	"github.com/oracle/oci-go-sdk/v65/identity"
	"github.com/oracle/oci-go-sdk/v65/loadbalancer"
	"github.com/oracle/oci-go-sdk/v65/networkloadbalancer"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/cloudtest"
	dialect "github.com/ccmlab/ccmlab/fakecloud/dialect/oci"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
)

// sdk is the official SDK as one user of the cloud has it. Its package for instances and networks compiles for
// minutes: those calls are made with the client that all its packages are made of.
type sdk struct {
	t            *testing.T
	identity     identity.IdentityClient
	lb           loadbalancer.LoadBalancerClient
	nlb          networkloadbalancer.NetworkLoadBalancerClient
	core         common.BaseClient
	compartment  *string
	lastResponse *http.Response // of core
}

func startCloud(t *testing.T, options ...cloudtest.Option) (*cloudtest.Cloud, *sdk) {
	t.Helper()
	options = append(options, cloudtest.WithoutTraffic(), cloudtest.Dialect(dialect.Dialect))
	c := cloudtest.Start(t, options...)
	return c, newUser(t, c, "ccm", api.RoleEditor, makeKeys()[0])
}

// makeKeys makes two keys once, as that takes a while.
var makeKeys = sync.OnceValue(func() (keys [2]*rsa.PrivateKey) {
	for i := range keys {
		var err error
		if keys[i], err = rsa.GenerateKey(rand.Reader, 2048); err != nil {
			panic(err)
		}
	}
	return keys
})

// newUser makes a token with the public key, and the SDK's clients that sign with the private one.
func newUser(t *testing.T, c *cloudtest.Cloud, name string, role api.Role, key *rsa.PrivateKey) *sdk {
	t.Helper()
	must.Do(c.CreateToken(t.Context(), c.Project, api.TokenCreate{Name: name, Role: role}))(t)
	der := must.Do(x509.MarshalPKIXPublicKey(&key.PublicKey))(t)
	public := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
	must.Do(c.AddTokenKey(t.Context(), c.Project, name, api.TokenKeyCreate{PublicKey: string(public)}))(t)
	return connect(t, c, name, fingerprint(t, key), key)
}

// fingerprint is a key's, as Oracle's console shows it.
func fingerprint(t *testing.T, key *rsa.PrivateKey) string {
	t.Helper()
	sum := md5.Sum(must.Do(x509.MarshalPKIXPublicKey(&key.PublicKey))(t)) //nolint:gosec // As above.
	return strings.ReplaceAll(fmt.Sprintf("% x", sum), " ", ":")
}

func connect(t *testing.T, c *cloudtest.Cloud, user, fingerprint string, key *rsa.PrivateKey) *sdk {
	t.Helper()
	private := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})
	p := must.Do(c.Client.Project(t.Context()))(t)
	config := common.NewRawConfigurationProvider(
		"ocid1.tenancy.fc1.."+p.Name, "ocid1.user.fc1.."+user, "us-phoenix-1", fingerprint, string(private), nil,
	)
	s := &sdk{t: t, compartment: new("ocid1.tenancy.fc1.." + p.Name)}
	s.identity = must.Do(identity.NewIdentityClientWithConfigurationProvider(config))(t)
	s.lb = must.Do(loadbalancer.NewLoadBalancerClientWithConfigurationProvider(config))(t)
	s.nlb = must.Do(networkloadbalancer.NewNetworkLoadBalancerClientWithConfigurationProvider(config))(t)
	s.core = must.Do(common.NewClientWithConfig(config))(t)
	s.core.BasePath = "20160918"
	for _, base := range []*common.BaseClient{
		&s.identity.BaseClient, &s.lb.BaseClient, &s.nlb.BaseClient, &s.core,
	} {
		base.Host = c.DialectURL("oci")
		base.UserAgent = "sdk-test/1"
		// Refusals are asked for here, and not to be waited out.
		base.Configuration.CircuitBreaker, base.Configuration.RetryPolicy = nil, new(common.NoRetryPolicy())
	}
	return s
}

// call makes a call of the service for instances and networks. header are names and values.
func (s *sdk) call(method, path string, body, answer any, header ...string) error {
	s.t.Helper()
	var sent io.Reader = http.NoBody
	if body != nil {
		text := must.Do(json.Marshal(body))(s.t)
		sent = bytes.NewReader(text)
	}
	request := must.Do(http.NewRequestWithContext(s.t.Context(), method, path, sent))(s.t)
	request.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(header); i += 2 {
		request.Header.Set(header[i], header[i+1])
	}
	response, err := s.core.Call(s.t.Context(), request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	s.lastResponse = response
	if answer == nil {
		return nil
	}
	require.NoError(s.t, json.NewDecoder(response.Body).Decode(answer))
	requireMandatory(s.t, answer)
	return nil
}

// get reads something of the service for instances and networks.
func get[T any](s *sdk, path string, query ...string) T {
	s.t.Helper()
	var answer T
	require.NoError(s.t, s.call(http.MethodGet, withQuery(path, query), nil, &answer))
	return answer
}

func withQuery(path string, query []string) string {
	values := url.Values{}
	for i := 0; i < len(query); i += 2 {
		values.Set(query[i], query[i+1])
	}
	return path + "?" + values.Encode()
}

// requireMandatory requires the fields of an answer that Oracle's API always has, by the SDK's own tags.
func requireMandatory(t *testing.T, answer any) {
	t.Helper()
	require.Empty(t, findMissing(fmt.Sprintf("%T", answer), reflect.ValueOf(answer)), "these fields are mandatory")
}

func findMissing(path string, v reflect.Value) (missing []string) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() && v.Type() != reflect.TypeFor[*common.SDKTime]() {
			return findMissing(path, v.Elem())
		}
	case reflect.Slice, reflect.Map:
		for at, item := range v.Seq2() {
			missing = append(missing, findMissing(fmt.Sprintf("%s[%v]", path, at), item)...)
		}
	case reflect.Struct:
		for field, value := range v.Fields() {
			if field.Tag.Get("mandatory") == "true" && value.IsZero() {
				missing = append(missing, path+"."+field.Name)
			}
			missing = append(missing, findMissing(path+"."+field.Name, value)...)
		}
	}
	return missing
}

// requireRefusal requires an error to be the service's refusal.
func requireRefusal(t *testing.T, status int, code string, err error) {
	t.Helper()
	refused, ok := common.IsServiceError(err)
	require.True(t, ok, "%v", err)
	assert.Equal(t, status, refused.GetHTTPStatusCode(), refused.GetMessage())
	assert.Equal(t, code, refused.GetCode(), refused.GetMessage())
	assert.NotEmpty(t, refused.GetMessage())
	assert.NotEmpty(t, refused.GetOpcRequestID())
}

// What the SDK says of instances and networks, as far as the CCM reads it.
type (
	resource struct {
		ID             *string         `json:"id" mandatory:"true"`
		CompartmentID  *string         `json:"compartmentId" mandatory:"true"`
		LifecycleState string          `json:"lifecycleState" mandatory:"true"`
		TimeCreated    *common.SDKTime `json:"timeCreated" mandatory:"true"`
	}
	instance struct {
		resource
		AvailabilityDomain *string `json:"availabilityDomain" mandatory:"true"`
		FaultDomain        *string `json:"faultDomain" mandatory:"true"` // The CCM needs it.
		Region             *string `json:"region" mandatory:"true"`
		Shape              *string `json:"shape" mandatory:"true"`
		DisplayName        *string `json:"displayName"`
	}
	vnicAttachment struct {
		resource
		AvailabilityDomain *string `json:"availabilityDomain" mandatory:"true"`
		InstanceID         *string `json:"instanceId" mandatory:"true"`
		VnicID             *string `json:"vnicId"`
	}
	vnic struct {
		resource
		AvailabilityDomain *string `json:"availabilityDomain" mandatory:"true"`
		IsPrimary          *bool   `json:"isPrimary"`
		PrivateIP          *string `json:"privateIp"`
		SubnetID           *string `json:"subnetId"`
	}
	subnet struct {
		ID                 *string  `json:"id" mandatory:"true"`
		CompartmentID      *string  `json:"compartmentId" mandatory:"true"`
		VcnID              *string  `json:"vcnId" mandatory:"true"`
		CidrBlock          *string  `json:"cidrBlock" mandatory:"true"`
		LifecycleState     string   `json:"lifecycleState" mandatory:"true"`
		RouteTableID       *string  `json:"routeTableId" mandatory:"true"`
		VirtualRouterIP    *string  `json:"virtualRouterIp" mandatory:"true"`
		VirtualRouterMac   *string  `json:"virtualRouterMac" mandatory:"true"`
		AvailabilityDomain *string  `json:"availabilityDomain"`
		SecurityListIDs    []string `json:"securityListIds"`
	}
	securityList struct {
		resource
		DisplayName *string          `json:"displayName" mandatory:"true"`
		VcnID       *string          `json:"vcnId" mandatory:"true"`
		Ingress     []map[string]any `json:"ingressSecurityRules" mandatory:"true"`
		Egress      []map[string]any `json:"egressSecurityRules" mandatory:"true"`
	}
	publicIP struct {
		ID             *string `json:"id" mandatory:"true"`
		IPAddress      *string `json:"ipAddress" mandatory:"true"`
		LifecycleState string  `json:"lifecycleState" mandatory:"true"`
	}
	networkSecurityGroup struct {
		resource
		VcnID        *string           `json:"vcnId" mandatory:"true"`
		DisplayName  *string           `json:"displayName"`
		FreeformTags map[string]string `json:"freeformTags"`
	}
)

// node is an instance with what it has in Oracle's cloud.
type node struct {
	instance
	vnic   vnic
	native api.Instance
}

func createNode(t *testing.T, c *cloudtest.Cloud, s *sdk, name string) node {
	t.Helper()
	native := c.RunInstance(name)
	id := native.Identities["oci"]
	require.Regexp(t, `^ocid1\.instance\.`, id, "the provider ID is the bare OCID")
	in := get[instance](s, "/instances/"+id)
	attached := get[[]vnicAttachment](s, "/vnicAttachments", "compartmentId", *s.compartment, "instanceId", id)
	require.Len(t, attached, 1)
	assert.Equal(t, "ATTACHED", attached[0].LifecycleState)
	return node{in, get[vnic](s, "/vnics/"+*attached[0].VnicID), *native}
}

func TestNodes(t *testing.T) {
	c, s := startCloud(t)
	n := createNode(t, c, s, "node-1")
	createNode(t, c, s, "node-2")
	assert.Equal(t, "node-1", *n.DisplayName)
	assert.Equal(t, "RUNNING", n.LifecycleState)
	_, zone, _ := strings.Cut(*n.AvailabilityDomain, ":")
	assert.Equal(t, n.native.Zone, zone, "the CCM takes what follows the colon")
	assert.Equal(t, string(n.native.Type), *n.Shape)
	assert.True(t, *n.vnic.IsPrimary)
	assert.Equal(t, n.native.Addresses[0].IP, *n.vnic.PrivateIP)
	sn := get[subnet](s, "/subnets/"+*n.vnic.SubnetID)
	assert.Nil(t, sn.AvailabilityDomain, "it is regional")
	assert.NotEmpty(t, sn.SecurityListIDs)

	listed := get[[]instance](s, "/instances", "compartmentId", *s.compartment, "displayName", "node-1")
	assert.Equal(t, []instance{n.instance}, listed)
	domain := *n.AvailabilityDomain
	listed = get[[]instance](s, "/instances", "compartmentId", *s.compartment, "availabilityDomain", domain)
	assert.Equal(t, []instance{n.instance}, listed)
	assert.Len(t, get[[]vnicAttachment](s, "/vnicAttachments", "compartmentId", *s.compartment), 2)
	domains := must.Do(s.identity.ListAvailabilityDomains(
		t.Context(), identity.ListAvailabilityDomainsRequest{CompartmentId: s.compartment},
	))(t)
	assert.Len(t, domains.Items, 3)
	assert.Equal(t, domain, *domains.Items[0].Name)
}

func TestStatesOfInstances(t *testing.T) {
	c, s := startCloud(t)
	n := createNode(t, c, s, "node-1")
	state := func() string { return get[instance](s, "/instances/"+*n.ID).LifecycleState }
	becomes := func(native api.InstanceState, want string) {
		t.Helper()
		c.AwaitInstance(n.native.ID, native)
		assert.Equal(t, want, state())
	}
	stuck := c.Fail(api.FaultCreate{Effect: api.FaultEffect{Stuck: true}})
	must.Do(c.StopInstance(t.Context(), n.native.ID))(t)
	becomes(api.InstanceStopping, "STOPPING")
	require.NoError(t, c.DeleteFault(t.Context(), stuck.ID))
	becomes(api.InstanceStopped, "STOPPED")
	must.Do(c.TerminateInstance(t.Context(), n.native.ID))(t)
	becomes(api.InstanceTerminated, "TERMINATED")
}

func TestPages(t *testing.T) {
	c, s := startCloud(t)
	for _, name := range []string{"node-1", "node-2", "node-3"} {
		createNode(t, c, s, name)
	}
	var names []string
	query, pages := []string{"compartmentId", *s.compartment, "limit", "2"}, 0
	for page := ""; pages == 0 || page != ""; pages++ {
		at := query
		if page != "" {
			at = append(slices.Clone(query), "page", page)
		}
		for _, in := range get[[]instance](s, "/instances", at...) {
			names = append(names, *in.DisplayName)
		}
		page = s.lastResponse.Header.Get("opc-next-page")
	}
	assert.Equal(t, 2, pages)
	assert.ElementsMatch(t, []string{"node-1", "node-2", "node-3"}, names)
}

func TestSignatures(t *testing.T) {
	c, s := startCloud(t)
	domains := func(s *sdk) error {
		_, err := s.identity.ListAvailabilityDomains(
			t.Context(), identity.ListAvailabilityDomainsRequest{CompartmentId: s.compartment},
		)
		return err
	}
	require.NoError(t, domains(s))
	own, strange := makeKeys()[0], makeKeys()[1]
	for name, other := range map[string]*sdk{
		"a foreign key":         connect(t, c, "ccm", fingerprint(t, own), strange),
		"an unknown user":       connect(t, c, "nobody", fingerprint(t, own), own),
		"a key that is nowhere": connect(t, c, "ccm", fingerprint(t, strange), strange),
	} {
		t.Run(name, func(t *testing.T) { requireRefusal(t, 401, "NotAuthenticated", domains(other)) })
	}
	sent := func(tamper func(r *http.Request)) common.HTTPRequestDispatcher {
		return dispatcher(func(r *http.Request) (*http.Response, error) {
			tamper(r)
			return http.DefaultClient.Do(r)
		})
	}
	list := "/instances?compartmentId=" + *s.compartment
	for name, tamper := range map[string]func(r *http.Request){
		"another query":  func(r *http.Request) { r.URL.RawQuery += "&displayName=node-1" },
		"another method": func(r *http.Request) { r.Method = http.MethodHead },
		"another date":   func(r *http.Request) { r.Header.Set("Date", time.Unix(0, 0).UTC().Format(http.TimeFormat)) },
		"no signature":   func(r *http.Request) { r.Header.Del("Authorization") },
	} {
		t.Run(name, func(t *testing.T) {
			s.core.HTTPClient = sent(tamper)
			require.Error(t, s.call(http.MethodGet, list, nil, nil))
		})
	}
	t.Run("another body", func(t *testing.T) {
		s.core.HTTPClient = sent(func(r *http.Request) {
			r.Body = io.NopCloser(strings.NewReader(`{"ipAddress":"127.0.0.2"}`))
		})
		err := s.call(http.MethodPost, "/publicIps/actions/getByIpAddress", map[string]any{"ipAddress": "127.0.0.1"}, nil)
		requireRefusal(t, 401, "NotAuthenticated", err)
	})
	t.Run("an old signature", func(t *testing.T) {
		s.core.HTTPClient = http.DefaultClient
		s.core.Interceptor = func(r *http.Request) error {
			r.Header.Set("Date", time.Now().Add(-time.Hour).UTC().Format(http.TimeFormat))
			return nil
		}
		requireRefusal(t, 401, "NotAuthenticated", s.call(http.MethodGet, list, nil, nil))
	})
}

// dispatcher sends what the SDK has signed.
type dispatcher func(*http.Request) (*http.Response, error)

func (d dispatcher) Do(r *http.Request) (*http.Response, error) { return d(r) }

func TestRefusals(t *testing.T) {
	c, s := startCloud(t)
	ctx := t.Context()
	for _, path := range []string{
		"/instances/ocid1.instance.fc1.neb.000999", "/instances/nonsense", "/vnics/ocid1.vnic.fc1.neb.000999",
		"/subnets/ocid1.subnet.fc1.neb.000999", "/securityLists/ocid1.securitylist.fc1.neb.000999",
	} {
		requireRefusal(t, 404, "NotAuthorizedOrNotFound", s.call(http.MethodGet, path, nil, nil))
	}
	list := func(compartment string) error {
		return s.call(http.MethodGet, withQuery("/instances", []string{"compartmentId", compartment}), nil, nil)
	}
	requireRefusal(t, 404, "NotAuthorizedOrNotFound", list("ocid1.tenancy.fc1..other"))
	for status, code := range map[int]string{
		500: "InternalServerError", 503: "ServiceUnavailable", 429: "TooManyRequests",
	} {
		rule := c.Fail(api.FaultCreate{
			Match: api.FaultMatch{Operations: []string{"listInstances"}}, Effect: api.FaultEffect{Status: status},
		})
		requireRefusal(t, status, code, list(*s.compartment))
		require.NoError(t, c.DeleteFault(ctx, rule.ID))
	}
	c.Fail(api.FaultCreate{Effect: api.FaultEffect{EmptyList: true}})
	createdBefore := must.Do(c.CreateInstance(ctx, api.InstanceCreate{Name: "node-1"}))(t)
	c.AwaitInstance(createdBefore.ID, api.InstanceRunning)
	assert.Empty(t, get[[]instance](s, "/instances", "compartmentId", *s.compartment))
}

func TestViewersOnlyRead(t *testing.T) {
	c, s := startCloud(t)
	viewer := newUser(t, c, "viewer", api.RoleViewer, makeKeys()[1])
	sn := get[subnet](viewer, "/subnets/"+*createNode(t, c, s, "node-1").vnic.SubnetID)
	path := "/securityLists/" + sn.SecurityListIDs[0]
	get[securityList](viewer, path)
	empty := map[string]any{"ingressSecurityRules": []any{}, "egressSecurityRules": []any{}}
	requireRefusal(t, 404, "NotAuthorizedOrNotFound", viewer.call(http.MethodPut, path, empty, nil))
	require.NoError(t, s.call(http.MethodPut, path, empty, nil))
}
