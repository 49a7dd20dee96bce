package oxide_test

import (
	"errors"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/oxidecomputer/oxide.go/oxide"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/cloudtest"
	dialect "github.com/ccmlab/ccmlab/fakecloud/dialect/oxide"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
)

const patience = 30 * time.Second

// startCloud starts a cloud that speaks the dialect, and makes the official SDK's client of it.
func startCloud(t *testing.T, options ...cloudtest.Option) (*cloudtest.Cloud, *oxide.Client) {
	t.Helper()
	c := cloudtest.Start(t, append(options, cloudtest.Dialect(dialect.Dialect))...)
	return c, newSDK(t, c, strings.TrimSpace(string(must.Do(os.ReadFile(c.TokenFile))(t))))
}

// requireRefused wants a call to be refused with an error.
func requireRefused(t *testing.T, want error) func(results ...any) {
	return func(results ...any) {
		t.Helper()
		err, _ := results[len(results)-1].(error)
		require.ErrorIs(t, err, want)
	}
}

func newSDK(t *testing.T, c *cloudtest.Cloud, token string) *oxide.Client {
	t.Helper()
	return must.Do(oxide.NewClient(oxide.WithHost(c.DialectURL("oxide")), oxide.WithToken(token)))(t)
}

func project(t *testing.T, c *cloudtest.Cloud) oxide.NameOrId {
	t.Helper()
	return oxide.NameOrId(must.Do(c.Client.Project(t.Context()))(t).Name)
}

func TestInstances(t *testing.T) {
	c, sdk := startCloud(t, cloudtest.WithoutTraffic())
	in, ctx := c.RunInstance("node-1"), t.Context()
	byName := must.Do(sdk.InstanceView(ctx, oxide.InstanceViewParams{Project: project(t, c), Instance: "node-1"}))(t)
	assert.Equal(t, "oxide://"+byName.Id, in.Identities["oxide"])
	assert.Equal(t, "node-1", byName.Hostname)
	assert.Equal(t, oxide.InstanceStateRunning, byName.RunState)
	assert.EqualValues(t, 2, byName.Ncpus)
	assert.EqualValues(t, 4<<30, byName.Memory)
	require.NoError(t, uuid.Validate(byName.ProjectId))

	id := oxide.NameOrId(byName.Id)
	assert.Equal(t, byName, must.Do(sdk.InstanceView(ctx, oxide.InstanceViewParams{Instance: id}))(t))
	nics := must.Do(sdk.InstanceNetworkInterfaceList(ctx, oxide.InstanceNetworkInterfaceListParams{Instance: id}))(t)
	require.Len(t, nics.Items, 1)
	v4, ok := nics.Items[0].IpStack.AsV4()
	require.True(t, ok)
	assert.Equal(t, in.Addresses[0].IP, v4.Value.Ip)
	assert.Empty(t, must.Do(sdk.InstanceExternalIpList(ctx, oxide.InstanceExternalIpListParams{Instance: id}))(t).Items)

	must.Do(c.StopInstance(ctx, in.ID))(t)
	require.Eventually(t, func() bool {
		stopped, err := sdk.InstanceView(ctx, oxide.InstanceViewParams{Instance: id})
		return err == nil && stopped.RunState == oxide.InstanceStateStopped
	}, patience, 5*time.Millisecond)
	must.Do(c.TerminateInstance(ctx, in.ID))(t)
	require.Eventually(t, func() bool {
		_, err := sdk.InstanceView(ctx, oxide.InstanceViewParams{Instance: id})
		return errors.Is(err, oxide.ErrObjectNotFound)
	}, patience, 5*time.Millisecond)
	_, err := sdk.InstanceView(ctx, oxide.InstanceViewParams{Project: project(t, c), Instance: "node-1"})
	require.ErrorIs(t, err, oxide.ErrObjectNotFound, "a name that an instance had")
}

func TestFloatingIPs(t *testing.T) {
	c, sdk := startCloud(t, cloudtest.WithoutTraffic())
	ctx, in, p := t.Context(), c.RunInstance("node-1"), project(t, c)
	ip := must.Do(sdk.FloatingIpCreate(ctx, oxide.FloatingIpCreateParams{Project: p, Body: &oxide.FloatingIpCreate{
		Name: "web", Description: "of a test", AddressAllocator: oxide.AddressAllocator{Value: &oxide.AddressAllocatorAuto{}},
	}}))(t)
	assert.Equal(t, "of a test", ip.Description)
	id := oxide.NameOrId(ip.Id)
	attach := func(to oxide.NameOrId) (*oxide.FloatingIp, error) {
		return sdk.FloatingIpAttach(ctx, oxide.FloatingIpAttachParams{
			FloatingIp: id, Project: p,
			Body: &oxide.FloatingIpAttach{Kind: oxide.FloatingIpParentKindInstance, Parent: to},
		})
	}
	attached := must.Do(attach("node-1"))(t)
	assert.Equal(t, in.Identities["oxide"], "oxide://"+attached.InstanceId)
	must.Do(attach(oxide.NameOrId(attached.InstanceId)))(t, "it is there already")
	viewed := must.Do(sdk.FloatingIpView(ctx, oxide.FloatingIpViewParams{FloatingIp: "web", Project: p}))(t)
	assert.Equal(t, attached, viewed)
	external := must.Do(sdk.InstanceExternalIpList(
		ctx, oxide.InstanceExternalIpListParams{Instance: oxide.NameOrId(attached.InstanceId)},
	))(t)
	require.Len(t, external.Items, 1)
	floating, ok := external.Items[0].AsFloating()
	require.True(t, ok)
	assert.Equal(t, []string{ip.Id, ip.Ip, "web"}, []string{floating.Id, floating.Ip, string(floating.Name)})

	c.RunInstance("node-2")
	_, err := attach("node-2")
	require.ErrorIs(t, err, oxide.ErrInvalidRequest, "it has to be detached first")
	requireRefused(t, oxide.ErrInvalidRequest)(sdk.FloatingIpDelete(ctx, oxide.FloatingIpDeleteParams{FloatingIp: id}))
	assert.Empty(t, must.Do(sdk.FloatingIpDetach(ctx, oxide.FloatingIpDetachParams{FloatingIp: id}))(t).InstanceId)
	requireRefused(t, oxide.ErrInvalidRequest)(sdk.FloatingIpDetach(ctx, oxide.FloatingIpDetachParams{FloatingIp: id}))
	must.Do(attach("node-2"))(t)
	must.Do(sdk.FloatingIpDetach(ctx, oxide.FloatingIpDetachParams{FloatingIp: id}))(t)
	require.NoError(t, sdk.FloatingIpDelete(ctx, oxide.FloatingIpDeleteParams{FloatingIp: id}))
	requireRefused(t, oxide.ErrObjectNotFound)(sdk.FloatingIpView(ctx, oxide.FloatingIpViewParams{FloatingIp: id}))
}

func TestAllocators(t *testing.T) {
	c, sdk := startCloud(t, cloudtest.WithoutTraffic())
	ctx, p := t.Context(), project(t, c)
	pool := must.Do(sdk.IpPoolView(ctx, oxide.IpPoolViewParams{Pool: "default"}))(t)
	requireRefused(t, oxide.ErrObjectNotFound)(sdk.IpPoolView(ctx, oxide.IpPoolViewParams{Pool: "other"}))
	auto := oxide.AddressAllocator{Value: &oxide.AddressAllocatorAuto{}}
	from := func(selector oxide.PoolSelector) oxide.AddressAllocator {
		return oxide.AddressAllocator{Value: &oxide.AddressAllocatorAuto{PoolSelector: selector}}
	}
	inPool := func(name string) oxide.AddressAllocator {
		return from(oxide.PoolSelector{Value: &oxide.PoolSelectorExplicit{Pool: oxide.NameOrId(name)}})
	}
	ofVersion := func(v oxide.IpVersion) oxide.AddressAllocator {
		return from(oxide.PoolSelector{Value: &oxide.PoolSelectorAuto{IpVersion: v}})
	}
	explicitly := func(ip string) oxide.AddressAllocator {
		return oxide.AddressAllocator{Value: &oxide.AddressAllocatorExplicit{Ip: ip}}
	}
	create := func(name string, from oxide.AddressAllocator) (*oxide.FloatingIp, error) {
		return sdk.FloatingIpCreate(ctx, oxide.FloatingIpCreateParams{
			Project: p, Body: &oxide.FloatingIpCreate{Name: oxide.Name(name), AddressAllocator: from},
		})
	}
	a := must.Do(create("a", inPool("default")))(t)
	assert.Equal(t, pool.Id, a.IpPoolId)
	must.Do(create("b", inPool(pool.Id)))(t)
	must.Do(create("d", ofVersion(oxide.IpVersionV4)))(t)
	require.NoError(t, sdk.FloatingIpDelete(ctx, oxide.FloatingIpDeleteParams{FloatingIp: oxide.NameOrId(a.Id)}))
	assert.Equal(t, a.Ip, must.Do(create("f", explicitly(a.Ip)))(t).Ip)
	for _, refused := range []struct {
		name string
		from oxide.AddressAllocator
		want error
	}{
		{"c", inPool("other"), oxide.ErrObjectNotFound},
		{"e", ofVersion(oxide.IpVersionV6), oxide.ErrObjectNotFound},
		{"g", explicitly(a.Ip), oxide.ErrInvalidRequest},
		{"f", auto, oxide.ErrObjectAlreadyExists},
		{strings.Repeat("x", 64), auto, oxide.ErrInvalidRequest},
	} {
		requireRefused(t, refused.want)(create(refused.name, refused.from))
	}
	_, err := create("f", explicitly(""))
	require.Error(t, err)
}

func TestRefusals(t *testing.T) {
	c, sdk := startCloud(t, cloudtest.WithoutTraffic())
	ctx := t.Context()
	c.RunInstance("node-1")
	view := func(sdk *oxide.Client, instance, project oxide.NameOrId) error {
		_, err := sdk.InstanceView(ctx, oxide.InstanceViewParams{Instance: instance, Project: project})
		return err
	}
	require.ErrorIs(t, view(sdk, "node-1", ""), oxide.ErrInvalidRequest)
	require.ErrorIs(t, view(sdk, "node-1", "other"), oxide.ErrObjectNotFound)
	require.ErrorIs(t, view(sdk, "node-2", project(t, c)), oxide.ErrObjectNotFound)
	require.ErrorIs(t, view(sdk, oxide.NameOrId(uuid.NewString()), ""), oxide.ErrObjectNotFound)
	require.ErrorIs(t, view(newSDK(t, c, "wrong"), "node-1", project(t, c)), oxide.ErrUnauthenticated)
	viewer := must.Do(c.CreateToken(ctx, c.Project, api.TokenCreate{Name: "viewer", Role: api.RoleViewer}))(t)
	_, err := newSDK(t, c, viewer.Secret).FloatingIpCreate(ctx, oxide.FloatingIpCreateParams{
		Project: project(t, c), Body: &oxide.FloatingIpCreate{
			Name: "web", AddressAllocator: oxide.AddressAllocator{Value: &oxide.AddressAllocatorAuto{}},
		},
	})
	require.ErrorIs(t, err, oxide.ErrForbidden)
	for status, want := range map[int]error{
		http.StatusInternalServerError: oxide.ErrInternalError, http.StatusServiceUnavailable: oxide.ErrServiceUnavailable,
		http.StatusTooManyRequests: nil,
	} {
		rule := c.Fail(api.FaultCreate{
			Match: api.FaultMatch{Operations: []string{"listInstances"}}, Effect: api.FaultEffect{Status: status},
		})
		err := view(sdk, "node-1", project(t, c))
		require.Error(t, err)
		if want != nil {
			require.ErrorIs(t, err, want)
		}
		require.NoError(t, c.DeleteFault(ctx, rule.ID))
	}
}

func TestAPIVersion(t *testing.T) {
	c, _ := startCloud(t, cloudtest.WithoutTraffic())
	token := must.Do(os.ReadFile(c.TokenFile))(t)
	for version, want := range map[string]int{
		"": http.StatusOK, "2026060800.0.0": http.StatusOK, "1.0.0": http.StatusOK, "latest": http.StatusBadRequest,
	} {
		request := must.Do(http.NewRequestWithContext(
			t.Context(), http.MethodGet, c.DialectURL("oxide")+"/v1/ip-pools/default", nil,
		))(t)
		request.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
		request.Header.Set("API-Version", version)
		response := must.Do(http.DefaultClient.Do(request))(t)
		_ = response.Body.Close()
		assert.Equal(t, want, response.StatusCode, version)
	}
}
