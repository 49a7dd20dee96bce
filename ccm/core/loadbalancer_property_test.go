package core

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"

	"github.com/ccmlab/ccmlab/ccm/annotations"
	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/cloudtest"
)

// propertyCloud is a cloud for one drawn history after another, seen through a client that
// counts its calls.
type propertyCloud struct {
	*client.Client
	cloud     *cloudtest.Cloud
	instances []string
	// addresses are called one and two.
	addresses [2]*api.ReservedAddress
	writes    atomic.Int32
}

func startPropertyCloud(t *testing.T, options ...cloudtest.Option) *propertyCloud {
	p := &propertyCloud{cloud: cloudtest.Start(t, append(options, cloudtest.WithoutTraffic())...)}
	for range 3 {
		in, err := p.cloud.CreateInstance(t.Context(), api.InstanceCreate{})
		require.NoError(t, err)
		p.instances = append(p.instances, contract.ProviderID(in.ID))
	}
	for i, name := range []string{"one", "two"} {
		reserved, err := p.cloud.ReserveAddress(t.Context(), api.ReservedAddressCreate{Name: &name})
		require.NoError(t, err)
		p.addresses[i] = reserved
	}
	var err error
	p.Client, err = client.New(client.Config{
		URL: p.cloud.URL, TokenFile: p.cloud.TokenFile, Direct: true,
		Wrap: func(next http.RoundTripper) http.RoundTripper {
			return roundTripper(func(req *http.Request) (*http.Response, error) {
				if req.Method != http.MethodGet {
					p.writes.Add(1)
					read := req.Method == http.MethodPost || req.Header.Get("If-Match") != ""
					assert.True(t, read, "nothing is changed that was not read")
				}
				return next.RoundTrip(req)
			})
		},
	})
	require.NoError(t, err)
	return p
}

type roundTripper func(*http.Request) (*http.Response, error)

func (r roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return r(req) }

// awaitBalancers waits until none is provisioning, updating or deleting, and returns them.
func (p *propertyCloud) awaitBalancers() []api.LoadBalancer {
	return cloudtest.Await(p.cloud, "all balancers to be done", func(ctx context.Context) ([]api.LoadBalancer, error) {
		return p.cloud.ListLoadBalancers(ctx, client.LoadBalancerFilter{})
	}, func(all []api.LoadBalancer) bool {
		return !slices.ContainsFunc(all, func(lb api.LoadBalancer) bool { return lb.State != api.LoadBalancerActive })
	})
}

// ensure calls again, as upstream's controller does, while the balancer is pending.
func (p *propertyCloud) ensure(
	l *loadBalancers, svc *corev1.Service, targets []*corev1.Node,
) (status *corev1.LoadBalancerStatus, err error) {
	for range 6 {
		status, err = l.EnsureLoadBalancer(context.Background(), clusterName, svc, targets)
		if !IsPending(err) {
			return status, err
		}
		p.awaitBalancers()
	}
	return nil, fmt.Errorf("not done after six rounds: %w", err)
}

// removeBalancers deletes all that a test left.
func (p *propertyCloud) removeBalancers(t require.TestingT) {
	for _, lb := range p.awaitBalancers() {
		unprotected := api.LoadBalancerUpdate{DeletionProtection: new(false)}
		_, err := p.cloud.UpdateLoadBalancer(context.Background(), lb.ID, unprotected)
		require.NoError(t, err)
		p.awaitBalancers()
		_, err = p.cloud.DeleteLoadBalancer(context.Background(), lb.ID)
		require.NoError(t, err)
	}
	require.Empty(t, p.awaitBalancers())
}

// Any Service, changed in any way, is either refused before anything but targets is written,
// or its balancer becomes what it asks for within a few rounds, after which nothing is written
// again. In the end nothing is left.
func TestAnyServiceConverges(t *testing.T) {
	clouds := map[bool]*propertyCloud{
		false: startPropertyCloud(t), true: startPropertyCloud(t, cloudtest.IPv6()),
	}
	rapid.Check(t, func(t *rapid.T) {
		cloud := clouds[rapid.Bool().Draw(t, "the cloud has IPv6")]
		cloud.removeBalancers(t) // By a history that failed.
		checkConvergence(t, cloud)
	})
}

func checkConvergence(t *rapid.T, cloud *propertyCloud) {
	l := &loadBalancers{
		api:     cloud,
		cluster: testCluster(rapid.SampledFrom([]string{"", "k-1"}).Draw(t, "cluster UID")),
	}
	for range rapid.IntRange(1, 4).Draw(t, "changes") {
		svc := cloud.drawService(t)
		targets := nodes(rapid.SliceOfNDistinct(rapid.SampledFrom(cloud.instances), 0, 3, rapid.ID).Draw(t, "nodes")...)
		before := cloud.awaitBalancers()
		if _, err := cloud.ensure(l, svc, targets); err != nil {
			require.Contains(t, []string{contract.ReasonInvalidService, contract.ReasonLoadBalancerProtected},
				CauseOf(err).Reason, "%v", err)
			checkOnlyTargetsChanged(t, before, cloud.awaitBalancers(), targets)
			continue
		}
		cloud.writes.Store(0)
		status, err := l.EnsureLoadBalancer(t.Context(), clusterName, svc, targets)
		require.NoError(t, err)
		require.NoError(t, l.UpdateLoadBalancer(t.Context(), clusterName, svc, targets))
		_, exists, err := l.GetLoadBalancer(t.Context(), clusterName, svc)
		require.NoError(t, err)
		require.True(t, exists)
		require.Zero(t, cloud.writes.Load(), "with nothing to change nothing is written")
		checkOutcome(t, cloud, svc, targets, status)
	}
	last := serviceWithAnnotations(annotations.OnDelete, "delete")
	require.NoError(t, l.EnsureLoadBalancerDeleted(t.Context(), clusterName, last))
	assert.Empty(t, cloud.awaitBalancers())
}

// checkOnlyTargetsChanged is for a Service that was refused: of its balancer, if it has one,
// only the targets changed, to the nodes.
func checkOnlyTargetsChanged(t *rapid.T, before, after []api.LoadBalancer, nodes []*corev1.Node) {
	require.Len(t, after, len(before))
	for i := range before {
		was, is := &before[i], &after[i]
		if slices.Equal(was.Targets, is.Targets) {
			continue
		}
		require.Equal(t, targetsOf(nodes, nil), is.Targets)
		was.Targets, was.Version, was.UpdatedAt = is.Targets, is.Version, is.UpdatedAt
		was.StateReason, was.StateReasonCode = is.StateReason, is.StateReasonCode
	}
	require.Equal(t, before, after, "but for its targets a balancer stays as it is")
}

func checkOutcome(
	t *rapid.T, cloud *propertyCloud, svc *corev1.Service, targets []*corev1.Node, status *corev1.LoadBalancerStatus,
) {
	all := cloud.awaitBalancers()
	require.Len(t, all, 1, "one Service, one balancer")
	lb := all[0]
	require.Len(t, lb.Listeners, len(svc.Spec.Ports))
	require.Len(t, lb.Targets, len(targets))
	require.Equal(
		t, svc.Annotations[annotations.Prefix+annotations.Scheme] == "internal", lb.Scheme == api.SchemeInternal,
	)
	if ip := svc.Spec.LoadBalancerIP; ip != "" { //nolint:staticcheck // Deprecated, and used.
		require.Equal(t, ip, lb.Address)
	}
	require.NotEmpty(t, status.Ingress)
	for _, in := range status.Ingress {
		if in.IP == "" {
			require.Equal(t, svc.Annotations[annotations.Prefix+annotations.Hostname], in.Hostname)
			continue
		}
		v6 := lb.IPv6Address != "" && in.IP == lb.IPv6Address
		require.True(t, v6 || in.IP == lb.Address)
		if len(svc.Spec.IPFamilies) == 1 {
			require.Equal(t, svc.Spec.IPFamilies[0] == corev1.IPv6Protocol, v6, "only what is asked for is published")
		}
	}
}

// drawService draws a Service with a few options of each kind. Many annotations hardly ever go together.
func (p *propertyCloud) drawService(t *rapid.T) *corev1.Service {
	svc := service()
	options := removableOptions()
	names := slices.Sorted(maps.Keys(options))
	for _, name := range rapid.SliceOfNDistinct(rapid.SampledFrom(names), 0, 4, rapid.ID).Draw(t, "options") {
		options[name](svc)
	}
	policy := rapid.SampledFrom([]corev1.IPFamilyPolicy{"SingleStack", "PreferDualStack", "RequireDualStack"}).
		Draw(t, "policy")
	families := rapid.SampledFrom([][]corev1.IPFamily{{"IPv4", "IPv6"}, {"IPv6", "IPv4"}}).Draw(t, "families")
	if policy != corev1.IPFamilyPolicyRequireDualStack && rapid.Bool().Draw(t, "one family") {
		families = families[:1]
	}
	svc.Spec.IPFamilyPolicy, svc.Spec.IPFamilies = &policy, families
	ips := []string{"", "", p.addresses[0].IP, p.addresses[1].IP}
	svc.Spec.LoadBalancerIP = rapid.SampledFrom(ips).Draw(t, "address") //nolint:staticcheck // Deprecated, and used.
	return svc
}
