package ccm

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

// modelCloud serves the cloud's API of balancers. It refuses what the spec refuses, and
// what is immutable in the cloud is immutable here.
type modelCloud struct {
	*client.Client
	schemas openapi3.Schemas

	mu        sync.Mutex
	next      int
	ipv6      bool
	balancers []*api.LoadBalancer
	reserved  []*api.ReservedAddress
	writes    []string
	reads     int
}

func newModelCloud(t testing.TB) *modelCloud {
	t.Helper()
	doc, err := openapi3.NewLoader().LoadFromData(api.Spec)
	require.NoError(t, err)
	m := &modelCloud{schemas: doc.Components.Schemas}
	m.reset(false)
	srv := httptest.NewServer(m)
	t.Cleanup(srv.Close)
	token := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(token, []byte("secret"), 0o600))
	m.Client, err = client.New(client.Config{URL: srv.URL, TokenFile: token})
	require.NoError(t, err)
	return m
}

// reset leaves two reserved addresses and no balancers.
func (m *modelCloud) reset(ipv6 bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ipv6, m.balancers, m.writes, m.reads = ipv6, nil, nil, 0
	m.reserved = []*api.ReservedAddress{
		{ID: "a-1", Name: "one", IP: "127.30.64.101", State: api.AddressAvailable},
		{ID: "a-2", Name: "two", IP: "127.30.64.102", State: api.AddressAvailable},
	}
}

// finishPendingWork makes balancers active, or gone if they are being deleted.
func (m *modelCloud) finishPendingWork() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.balancers = slices.DeleteFunc(m.balancers, func(lb *api.LoadBalancer) bool {
		if lb.State != api.LoadBalancerDeleting {
			if lb.State != api.LoadBalancerActive {
				lb.State = api.LoadBalancerActive
				lb.Version++
			}
			return false
		}
		for _, a := range m.reserved {
			if a.Holder != nil && a.Holder.ID == lb.ID {
				a.Holder, a.State = nil, api.AddressAvailable
			}
		}
		return true
	})
}

// takeCallCounts returns the calls since it was last called.
func (m *modelCloud) takeCallCounts() (writes []string, reads int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	writes, reads = m.writes, m.reads
	m.writes, m.reads = nil, 0
	return writes, reads
}

type refusal struct {
	status int
	code   api.ProblemCode
	field  string
}

func (r *refusal) Error() string { return string(r.code) + " " + r.field }

func (m *modelCloud) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r.Method == http.MethodGet {
		m.reads++
	} else {
		m.writes = append(m.writes, r.Method)
	}
	status, body, err := m.answer(r)
	w.Header().Set("Content-Type", "application/json")
	if err != nil {
		e, ok := err.(*refusal) //nolint:errorlint // Never wrapped.
		if !ok {
			e = &refusal{400, api.InvalidRequest, err.Error()}
		}
		project := ourProject
		status, body = e.status, api.Problem{
			Status: e.status, Code: e.code, Detail: e.Error(), Project: &project,
			Fields: &[]api.ProblemField{{Field: e.field, Message: "is refused"}},
		}
		w.Header().Set("Content-Type", "application/problem+json")
	}
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body)
}

func (m *modelCloud) answer(r *http.Request) (int, any, error) {
	id := strings.TrimPrefix(r.URL.Path, "/v1/load-balancers/")
	switch at := r.Method + " " + strings.TrimSuffix(r.URL.Path, "/"+id); {
	case at == "GET /v1/project":
		return 200, api.Project{ID: ourProject, Name: "lab"}, nil
	case at == "GET /v1/addresses":
		list := api.ReservedAddressList{Items: []api.ReservedAddress{}}
		for _, a := range m.reserved {
			list.Items = append(list.Items, *a)
		}
		return 200, list, nil
	case at == "GET /v1/load-balancers" && id == r.URL.Path:
		return 200, m.list(r), nil
	case at == "POST /v1/load-balancers":
		lb, err := m.create(r)
		return 201, lb, err
	}
	i := slices.IndexFunc(m.balancers, func(lb *api.LoadBalancer) bool { return lb.ID == id })
	if i < 0 {
		return 0, nil, &refusal{404, api.NotFound, r.URL.Path}
	}
	lb := m.balancers[i]
	if match := r.Header.Get("If-Match"); r.Method != http.MethodGet &&
		match != strconv.Quote(strconv.FormatInt(lb.Version, 10)) {
		return 0, nil, &refusal{412, api.PreconditionFailed, match} // Without one too: ours always has one.
	}
	switch r.Method {
	case http.MethodPatch:
		return 202, lb, m.update(r, lb)
	case http.MethodDelete:
		lb.State = api.LoadBalancerDeleting
		lb.Version++
	}
	return 202, lb, nil
}

func (m *modelCloud) list(r *http.Request) api.LoadBalancerList {
	list := api.LoadBalancerList{Items: []api.LoadBalancer{}}
	for _, lb := range m.balancers {
		name := r.URL.Query().Get("name")
		all := name == "" || name == lb.Name
		for _, tag := range r.URL.Query()["tag"] {
			k, v, _ := strings.Cut(tag, "=")
			all = all && lb.Tags[k] == v
		}
		if all {
			list.Items = append(list.Items, *lb)
		}
	}
	return list
}

// decodeValidated decodes a body, and refuses one that the spec does not allow.
func (m *modelCloud) decodeValidated(r *http.Request, schema string, into any) error {
	var raw any
	if err := json.NewDecoder(r.Body).Decode(&raw); err != nil {
		return err
	}
	if err := m.schemas[schema].Value.VisitJSON(raw); err != nil {
		return err
	}
	text, err := json.Marshal(raw)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, into)
}

func (m *modelCloud) create(r *http.Request) (*api.LoadBalancer, error) {
	var want api.LoadBalancerCreate
	if err := m.decodeValidated(r, "LoadBalancerCreate", &want); err != nil {
		return nil, err
	}
	m.next++
	lb := &api.LoadBalancer{
		ID: fmt.Sprintf("lb-%d", m.next), Project: ourProject, Name: want.Name,
		Address: fmt.Sprintf("127.30.64.%d", m.next%100+1), Version: 1,
		State: api.LoadBalancerProvisioning, IPFamilies: *want.IPFamilies, Tags: api.Tags{},
	}
	if slices.Contains(lb.IPFamilies, api.IPv6) {
		if !m.ipv6 {
			return nil, &refusal{400, api.InvalidRequest, "ipFamilies"}
		}
		v6 := fmt.Sprintf("fd00:30::%d", m.next)
		lb.IPv6Address = &v6
	}
	if slices.ContainsFunc(m.balancers, func(has *api.LoadBalancer) bool { return has.Name == want.Name }) {
		return nil, &refusal{409, api.NameTaken, "name"}
	}
	err := m.applyUpdate(lb, api.LoadBalancerUpdate{
		Listeners: &want.Listeners, Scheme: want.Scheme, Algorithm: want.Algorithm, Targets: want.Targets,
		SourceRanges:          want.SourceRanges,
		ClientAffinitySeconds: want.ClientAffinitySeconds, IdleTimeoutSeconds: want.IdleTimeoutSeconds,
		DrainSeconds: want.DrainSeconds,
		HealthCheck:  want.HealthCheck, Tags: want.Tags,
	})
	if err == nil && want.AddressID != nil {
		err = m.holdAddress(lb, *want.AddressID)
	}
	if err == nil {
		m.balancers = append(m.balancers, lb)
	}
	return lb, err
}

func (m *modelCloud) holdAddress(lb *api.LoadBalancer, id string) error {
	for _, a := range m.reserved {
		switch {
		case a.ID != id:
			continue
		case a.Holder != nil:
			return &refusal{409, api.AddressInUse, "addressId"}
		case lb.Scheme == api.SchemeInternal:
			return &refusal{400, api.InvalidRequest, "addressId"}
		}
		a.Holder, a.State = &api.AddressHolder{Kind: api.HolderLoadBalancer, ID: lb.ID}, api.AddressHeld
		lb.Address, lb.AddressID = a.IP, &a.ID
		return nil
	}
	return &refusal{400, api.UnknownAddress, "addressId"}
}

func (m *modelCloud) update(r *http.Request, lb *api.LoadBalancer) error {
	var u api.LoadBalancerUpdate
	if err := m.decodeValidated(r, "LoadBalancerUpdate", &u); err != nil {
		return err
	}
	changed := *lb
	if err := m.applyUpdate(&changed, u); err != nil {
		return err
	}
	changed.Version++
	if changed.State == api.LoadBalancerActive {
		changed.State = api.LoadBalancerUpdating
	}
	*lb = changed
	return nil
}

func copyIfSet[T any](to, from *T) {
	if from != nil {
		*to = *from
	}
}

// applyUpdate sets the fields that u has, and refuses combinations that the cloud refuses.
func (m *modelCloud) applyUpdate(lb *api.LoadBalancer, u api.LoadBalancerUpdate) error {
	copyIfSet(&lb.Listeners, u.Listeners)
	copyIfSet(&lb.Targets, u.Targets)
	copyIfSet(&lb.SourceRanges, u.SourceRanges)
	copyIfSet(&lb.Scheme, u.Scheme)
	copyIfSet(&lb.Algorithm, u.Algorithm)
	copyIfSet(&lb.ClientAffinitySeconds, u.ClientAffinitySeconds)
	copyIfSet(&lb.IdleTimeoutSeconds, u.IdleTimeoutSeconds)
	copyIfSet(&lb.DrainSeconds, u.DrainSeconds)
	copyIfSet(&lb.Tags, u.Tags)
	slices.Reverse(lb.Listeners) // In the cloud, the order of these means nothing.
	slices.Reverse(lb.SourceRanges)
	if u.HealthCheck != nil {
		lb.HealthCheck = withDefaults(*u.HealthCheck)
	}
	switch {
	case lb.DrainSeconds > 0 && !slices.ContainsFunc(lb.Listeners, func(l api.Listener) bool {
		return l.Protocol == api.ProtocolTCP
	}):
		return &refusal{400, api.InvalidRequest, "drainSeconds"}
	case slices.ContainsFunc(lb.Listeners, func(l api.Listener) bool {
		return l.Protocol == api.ProtocolUDP && l.ProxyProtocol != ""
	}):
		return &refusal{400, api.InvalidRequest, "proxyProtocol"}
	case lb.AddressID != nil && lb.Scheme == api.SchemeInternal:
		return &refusal{400, api.InvalidRequest, "scheme"}
	case lb.HealthCheck != nil && lb.HealthCheck.TimeoutSeconds > lb.HealthCheck.IntervalSeconds:
		return &refusal{400, api.InvalidRequest, "healthCheck.timeoutSeconds"}
	}
	return nil
}

// withDefaults returns the check with the cloud's defaults filled in, nil for none.
func withDefaults(c api.HealthCheck) *api.HealthCheck {
	if c.Protocol == api.HealthCheckNone {
		return nil
	}
	if c.Protocol == api.HealthCheckHTTP {
		c.Path = cmp.Or(c.Path, "/")
	}
	c.IntervalSeconds = cmp.Or(c.IntervalSeconds, 5)
	c.TimeoutSeconds = cmp.Or(c.TimeoutSeconds, min(2, c.IntervalSeconds))
	c.HealthyThreshold = cmp.Or(c.HealthyThreshold, 2)
	c.UnhealthyThreshold = cmp.Or(c.UnhealthyThreshold, 2)
	return &c
}
