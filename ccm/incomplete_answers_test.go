package ccm

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	cloudprovider "k8s.io/cloud-provider"

	"github.com/ccmlab/ccmlab/ccm/annotations"
	"github.com/ccmlab/ccmlab/ccm/config"
	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/cloudtest"
)

// answeredField is a field of a kind of resource, by its dotted path.
type answeredField struct {
	path     string
	required bool // in what it is in, if that is there
}

// fieldsOf are all fields that openapi.yaml gives an object, those of objects and lists in it too.
func fieldsOf(s *openapi3.Schema, prefix string) (all []answeredField) {
	if s.Items != nil {
		return fieldsOf(s.Items.Value, prefix)
	}
	for _, part := range s.AllOf {
		all = append(all, fieldsOf(part.Value, prefix)...)
	}
	for name, field := range s.Properties {
		all = append(all, answeredField{prefix + name, slices.Contains(s.Required, name)})
		all = append(all, fieldsOf(field.Value, prefix+name+".")...)
	}
	return all
}

// incompleteWorld is a cloud that has one of everything that a CCM reads.
type incompleteWorld struct {
	*cloudtest.Cloud
	schemas  openapi3.Schemas
	instance *api.Instance
	node     *corev1.Node
	nodes    corelisters.NodeLister
	svc      *corev1.Service
	tokens   int
}

func newIncompleteWorld(t *testing.T) *incompleteWorld {
	spec, err := openapi3.NewLoader().LoadFromData(api.Spec)
	require.NoError(t, err)
	w := &incompleteWorld{Cloud: cloudtest.Start(t, cloudtest.WithoutTraffic(), cloudtest.IPv6())}
	w.schemas = spec.Components.Schemas
	made, err := w.CreateInstance(t.Context(), api.InstanceCreate{Name: new("node-1")})
	require.NoError(t, err)
	w.instance = w.AwaitInstance(made.ID, api.InstanceRunning)
	w.node = &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "node-1", UID: "n-1"},
		Spec:       corev1.NodeSpec{ProviderID: contract.ProviderID(made.ID)},
	}
	indexer := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	require.NoError(t, indexer.Add(w.node))
	w.nodes = corelisters.NewNodeLister(indexer)
	_, err = w.ReserveAddress(t.Context(), api.ReservedAddressCreate{Name: new("web")})
	require.NoError(t, err)
	w.svc = &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: "web", UID: "s-1", Annotations: map[string]string{
				annotations.Prefix + annotations.Address: "web", annotations.Prefix + annotations.HealthCheck: "tcp",
			},
		},
		Spec: corev1.ServiceSpec{
			Type:           corev1.ServiceTypeLoadBalancer,
			IPFamilyPolicy: new(corev1.IPFamilyPolicyRequireDualStack),
			IPFamilies:     []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol},
			Ports: []corev1.ServicePort{
				{Port: 8443, NodePort: 30443, Protocol: corev1.ProtocolTCP},
				{Port: 8080, NodePort: 30080, Protocol: corev1.ProtocolTCP},
			},
		},
	}
	c := w.newProvider(t, true)
	require.NoError(t, c.provider.Routes.CreateRoute(t.Context(), "lab", "", &cloudprovider.Route{
		TargetNode: "node-1", DestinationCIDR: "10.244.1.0/24",
	}))
	require.Eventually(t, func() bool { _, err := askBalancer(t.Context(), w, c); return err == nil },
		20*time.Second, 10*time.Millisecond)
	return w
}

// newProvider is a CCM's provider with a token of its own.
func (w *incompleteWorld) newProvider(t *testing.T, cached bool) *cloud {
	w.tokens++
	token := w.NewToken(fmt.Sprint("ccm-", w.tokens), api.RoleEditor)
	c, err := newCloud(config.Config{
		URL: w.URL, TokenFile: token, Project: cloudtest.ProjectName, Cache: cached,
		NodeAddresses: config.NodeAddresses{Families: []string{"ipv4"}},
		NodeLabels:    config.NodeLabels{Tags: []string{"round"}},
	}, "lab")
	require.NoError(t, err)
	c.cluster.SetUID("k-1")
	c.provider.Routes.Follow(w.nodes)
	return c
}

// runMemory runs the cache, if there is one, until stop is called.
func (c *cloud) runMemory(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	if c.memory != nil {
		running.Go(func() { c.memory.Run(ctx) })
	}
	return func() { cancel(); running.Wait() }
}

// question is what upstream asks a provider, for which that reads one kind of resource.
type question func(context.Context, *incompleteWorld, *cloud) (any, error)

func askInstance(ctx context.Context, w *incompleteWorld, c *cloud) (any, error) {
	if exists, err := c.provider.Instances.InstanceExists(ctx, w.node); err != nil || !exists {
		return exists, err
	}
	found, err := c.provider.Instances.InstanceMetadata(ctx, w.node)
	if err == nil {
		found.AdditionalLabels = nil // That changes.
	}
	return found, err
}

func askInstanceByName(ctx context.Context, w *incompleteWorld, c *cloud) (any, error) {
	found, err := c.provider.Instances.InstanceMetadata(ctx, &corev1.Node{ObjectMeta: w.node.ObjectMeta})
	if err == nil {
		found.AdditionalLabels = nil
	}
	return found, err
}

func askBalancer(ctx context.Context, w *incompleteWorld, c *cloud) (any, error) {
	status, err := c.provider.LoadBalancers.EnsureLoadBalancer(ctx, "lab", w.svc, []*corev1.Node{w.node})
	if err == nil {
		// An update may be under way, of what an optional field lacked.
		_, exists, getErr := c.provider.LoadBalancers.GetLoadBalancer(ctx, "lab", w.svc)
		return []any{status, exists}, getErr
	}
	return nil, err
}

func askRoutes(ctx context.Context, _ *incompleteWorld, c *cloud) (any, error) {
	return c.provider.Routes.ListRoutes(ctx, "lab")
}

// TestIncompleteAnswers leaves each field out of each kind of answer for a while. What upstream is told
// meanwhile is the truth or an error, which names a field that openapi.yaml requires; and afterwards
// it is the truth.
func TestIncompleteAnswers(t *testing.T) {
	w := newIncompleteWorld(t)
	// Without a stream every question that comes later has a list made.
	w.Fail(api.FaultCreate{
		Match: api.FaultMatch{Operations: []string{"streamEvents"}}, Effect: api.FaultEffect{Status: 503},
	})
	for _, tc := range []struct {
		schema, operation string
		ask               question
		uncached, later   bool
	}{
		{schema: "Instance", operation: "listInstances", ask: askInstance},
		{schema: "Instance", operation: "listInstances", ask: askInstance, later: true},
		{schema: "Instance", operation: "listInstances", ask: askInstanceByName},
		{schema: "Instance", operation: "listInstances", ask: askInstanceByName, later: true},
		{schema: "Instance", operation: "getInstance", ask: askInstance, uncached: true},
		{schema: "LoadBalancer", operation: "listLoadBalancers", ask: askBalancer},
		{schema: "LoadBalancer", operation: "listLoadBalancers", ask: askBalancer, uncached: true, later: true},
		{schema: "Route", operation: "listRoutes", ask: askRoutes},
		{schema: "Route", operation: "listRoutes", ask: askRoutes, later: true},
		{schema: "Route", operation: "listRoutes", ask: askRoutes, uncached: true},
		{schema: "Project", operation: "getProject", ask: askInstance},
	} {
		var walk sync.WaitGroup
		slots := make(chan struct{}, 16)
		want, err := tc.ask(t.Context(), w, w.newProvider(t, true))
		require.NoError(t, err)
		for _, field := range fieldsOf(w.schemas[tc.schema].Value, "") {
			name := fmt.Sprint(tc.operation, " without ", field.path, ", later: ", tc.later)
			c, token := w.newProvider(t, !tc.uncached), fmt.Sprint("ccm-", w.tokens)
			slots <- struct{}{}
			walk.Go(func() {
				defer func() { <-slots }()
				defer c.runMemory(t.Context())()
				if tc.later {
					_, err := tc.ask(t.Context(), w, c)
					assert.NoError(t, err, name)
				}
				w.walkField(t, name, token, tc.operation, field, func() (any, error) { return tc.ask(t.Context(), w, c) }, want)
			})
		}
		walk.Wait()
	}
}

// TestIncompleteEvents leaves each required field out of one event of a stream that is open.
func TestIncompleteEvents(t *testing.T) {
	w := newIncompleteWorld(t)
	balancers, err := w.ListLoadBalancers(t.Context(), client.LoadBalancerFilter{})
	require.NoError(t, err)
	routes, err := w.ListRoutes(t.Context(), client.RouteFilter{})
	require.NoError(t, err)
	// As upstream's, of the version that the cloud has; what is changed is a tag.
	tagsOf := func(tags api.Tags, round string) *api.Tags {
		tags = maps.Clone(tags)
		tags["round"] = round
		return &tags
	}
	for payload, tc := range map[string]struct {
		schema string
		ask    question
		change func(round string) error
	}{
		"instance": {"Instance", askInstance, func(round string) error {
			_, err := w.UpdateInstance(t.Context(), w.instance.ID, api.ResourceUpdate{Tags: tagsOf(w.instance.Tags, round)})
			return err
		}},
		"loadBalancer": {"LoadBalancer", askBalancer, func(round string) error {
			_, err := w.UpdateLoadBalancer(t.Context(), balancers[0].ID,
				api.LoadBalancerUpdate{Tags: tagsOf(balancers[0].Tags, round)})
			return err
		}},
		"route": {"Route", askRoutes, func(round string) error {
			_, err := w.UpdateRoute(t.Context(), routes[0].ID, api.ResourceUpdate{Tags: tagsOf(routes[0].Tags, round)})
			return err
		}},
	} {
		c := w.newProvider(t, true)
		token := fmt.Sprint("ccm-", w.tokens)
		ctx := t.Context()
		stop := c.runMemory(ctx)
		ask := func() (any, error) { return tc.ask(ctx, w, c) }
		want, err := ask()
		require.NoError(t, err)
		fields := append(fieldsOf(w.schemas[tc.schema].Value, ""), answeredField{path: "", required: true})
		for _, field := range fields {
			if !field.required || strings.Contains(field.path, "ealthCheck.") {
				continue
			}
			name := strings.TrimSuffix(payload+"."+field.path, ".")
			fault := w.Fail(api.FaultCreate{Times: 1,
				Match:  api.FaultMatch{Token: token, Operations: []string{"streamEvents"}},
				Effect: api.FaultEffect{OmitFields: []string{name}},
			})
			changes := 0
			require.Eventually(t, func() bool {
				// More than once, as the stream may not be open yet, or again.
				changes++
				assert.NoError(t, tc.change(fmt.Sprint(name, changes)), name)
				if got, err := ask(); err == nil {
					assert.Equal(t, want, got, name)
				}
				f, err := w.GetFault(ctx, fault.ID)
				return err == nil && f.Hits == 1
			}, 20*time.Second, 20*time.Millisecond, name)
			w.awaitRound(t, c, name) // In the stream after the event that lacked the field.
			var got any
			require.Eventually(t, func() bool { // A balancer that was changed is busy for a moment.
				got, err = ask()
				return err == nil
			}, 20*time.Second, 10*time.Millisecond, "%s: %v", name, err)
			assert.Equal(t, want, got, name)
			require.NoError(t, w.DeleteFault(ctx, fault.ID))
		}
		stop()
	}
}

// awaitRound changes the instance, and waits until the provider has its event.
func (w *incompleteWorld) awaitRound(t *testing.T, c *cloud, round string) {
	round = "after-" + round
	_, err := w.UpdateInstance(t.Context(), w.instance.ID, api.ResourceUpdate{Tags: &api.Tags{"round": round}})
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		found, err := c.provider.Instances.InstanceMetadata(t.Context(), w.node)
		return err == nil && found.AdditionalLabels["round"] == round
	}, 20*time.Second, 5*time.Millisecond, round)
}

func (w *incompleteWorld) walkField(
	t *testing.T, name, token, operation string, field answeredField, ask func() (any, error), want any,
) {
	fault := w.Fail(api.FaultCreate{
		Match:  api.FaultMatch{Token: token, Operations: []string{operation}},
		Effect: api.FaultEffect{OmitFields: []string{field.path}},
	})
	var firstErr error
	check := func() bool {
		got, err := ask()
		if err == nil {
			return assert.Equal(t, want, got, name)
		}
		if firstErr == nil {
			firstErr = err
		}
		return false
	}
	assert.Eventually(t, func() bool {
		check()
		f, err := w.GetFault(t.Context(), fault.ID)
		return err == nil && f.Hits > 0
	}, 20*time.Second, 10*time.Millisecond, name)
	check()
	assert.NoError(t, w.DeleteFault(t.Context(), fault.ID))
	assert.Eventually(t, check, 20*time.Second, 10*time.Millisecond, "%s: %v", name, firstErr)
	if isThere := !strings.Contains(field.path, "ealthCheck.") && !strings.HasPrefix(field.path, "token."); field.required && isThere {
		assert.ErrorContains(t, firstErr, field.path[strings.LastIndex(field.path, ".")+1:]+" ", name)
	}
}
