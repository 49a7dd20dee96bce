package core

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/ccmlab/ccmlab/ccm/annotations"
	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// Whose a balancer is that carries the Service's UID: the cluster's UID decides, and the name
// where there is none. What is not this cluster's is neither used nor deleted, and no other is
// created beside it.
func TestBalancerOwnership(t *testing.T) {
	for name, tc := range map[string]struct {
		own          string   // this cluster's UID, if it is known
		cluster, uid string   // the balancer's tags
		sets         api.Tags // what an update sets if it is ours
		text         string   // of the error if it is not
		retry        time.Duration
	}{
		"ours":                        {own: "k", cluster: "lab", uid: "k"},
		"ours, under an earlier name": {own: "k", cluster: "old", uid: "k", sets: api.Tags{contract.TagCluster: "lab"}},
		"ours, of before the UID was known": {
			own: "k", cluster: "lab", sets: api.Tags{contract.TagClusterUID: "k"},
		},
		"by name, with the UID still to be": {cluster: "lab", uid: "k"},
		"a namesake's": {
			own: "k", cluster: "lab", uid: "other",
			text: `in cluster "lab" (kubernetes-cluster-uid is "other"), which is another cluster`,
		},
		"another name's, without a UID": {own: "k", cluster: "old", text: "set the tag kubernetes-cluster"},
		"not to be told yet":            {cluster: "old", uid: "k", text: "UID is not known yet", retry: failedStateRetry},
	} {
		t.Run(name, func(t *testing.T) {
			have := built(t, api.LoadBalancerActive)
			have.Tags[contract.TagCluster], have.Tags[contract.TagClusterUID] = tc.cluster, tc.uid
			f := newFakeBalancers(*have)
			l := f.loadBalancers()
			l.cluster = testCluster(tc.own)
			var sent api.Tags
			f.update = func(_ string, u api.LoadBalancerUpdate) (*api.LoadBalancer, error) {
				assert.Equal(t, api.LoadBalancerUpdate{Tags: u.Tags}, u)
				sent = *u.Tags
				return have, nil
			}
			_, ensureErr := l.EnsureLoadBalancer(t.Context(), clusterName, service(), nil)
			_, exists, getErr := l.GetLoadBalancer(t.Context(), clusterName, service())
			deleted := 0
			f.remove = func(string) (*api.LoadBalancer, error) { deleted++; return have, nil }
			deleteErr := l.EnsureLoadBalancerDeleted(t.Context(), clusterName, service())
			if tc.text == "" {
				require.NoError(t, errors.Join(ensureErr, getErr, deleteErr))
				assert.True(t, exists)
				assert.Equal(t, 1, deleted)
				assert.Equal(t, tc.sets != nil, sent != nil)
				assert.Subset(t, sent, tc.sets)
				return
			}
			assert.Zero(t, deleted)
			for _, err := range []error{ensureErr, getErr, deleteErr} {
				require.ErrorContains(t, err, tc.text)
				assert.Equal(t, contract.ReasonLoadBalancerAmbiguous, CauseOf(err).Reason)
				assert.Equal(t, tc.retry, retryAfter(err))
			}
		})
	}
}

// The address that a balancer has wins over a name that now means another, also for a CCM that
// has just started.
func TestReservedAddressThatWasRenamed(t *testing.T) {
	web := serviceWithAnnotations(annotations.Address, "web")
	byIP := serviceWithLoadBalancerIP("127.30.64.1")
	for name, tc := range map[string]struct {
		svc      *corev1.Service
		called   string    // what the Service called it; "" if the balancer is older than that tag
		names    [2]string // of addresses a-1 and a-2
		asked    bool      // the cloud is asked for its addresses
		tag      string    // the balancer's in the end
		replaced bool
	}{
		"its name is another's": {svc: web, called: "web", names: [2]string{"old", "web"}, tag: "web"},
		"chosen by its new name": {
			svc: serviceWithAnnotations(annotations.Address, "new"), called: "web",
			names: [2]string{"new", "web"}, asked: true, tag: "new",
		},
		"of before there was a tag": {svc: web, names: [2]string{"web", "x"}, asked: true, tag: "web"},
		"another one is chosen": {
			svc: serviceWithAnnotations(annotations.Address, "x"), called: "web",
			names: [2]string{"web", "x"}, asked: true, replaced: true,
		},
		"it is chosen by its IP now": {svc: byIP, called: "web"},
	} {
		t.Run(name, func(t *testing.T) {
			have := built(t, api.LoadBalancerActive)
			have.AddressID = "a-1"
			if tc.called != "" {
				have.Tags[contract.TagServiceAddress] = tc.called
			}
			f := listing(have)
			asked := false
			f.addresses = func() ([]api.ReservedAddress, error) {
				asked = true
				holder := &api.AddressHolder{Kind: api.HolderLoadBalancer, ID: have.ID}
				return []api.ReservedAddress{
					{Metadata: api.Metadata{ID: "a-1", Name: tc.names[0]}, IP: have.Address, Holder: holder},
					{Metadata: api.Metadata{ID: "a-2", Name: tc.names[1]}, IP: "127.30.64.2"},
				}, nil
			}
			f.update = func(_ string, u api.LoadBalancerUpdate) (*api.LoadBalancer, error) {
				assert.Equal(t, api.LoadBalancerUpdate{Tags: u.Tags}, u)
				have.Tags = *u.Tags
				return have, nil
			}
			replaced := false
			f.remove = func(string) (*api.LoadBalancer, error) {
				replaced = true
				return built(t, api.LoadBalancerDeleting), nil
			}
			_, err := f.loadBalancers().EnsureLoadBalancer(t.Context(), clusterName, tc.svc, nil)
			assert.Equal(t, tc.replaced, IsPending(err), "%v", err)
			assert.Equal(t, tc.replaced, replaced)
			assert.Equal(t, tc.asked, asked)
			if !tc.replaced {
				require.NoError(t, err)
				assert.Equal(t, tc.tag, have.Tags[contract.TagServiceAddress])
			}
		})
	}
}

// An address is found by what the Service says of it, and not by what it leaves out.
func TestReservedAddressIsFoundByItsChoice(t *testing.T) {
	all := []api.ReservedAddress{
		{Metadata: api.Metadata{ID: "a-1"}, IP: "127.30.64.1"},
		{Metadata: api.Metadata{ID: "a-3", Name: "a-2"}},
		{Metadata: api.Metadata{ID: "a-2", Name: "web"}, IP: "127.30.64.2"},
	}
	for choice, want := range map[addressChoice]int{
		{ip: "127.30.64.2"}: 2, {ip: "127.30.64.9"}: -1,
		{nameOrID: "web"}: 2, {nameOrID: "a-1"}: 0, {nameOrID: "a-2"}: 1, {nameOrID: "nobody"}: -1,
	} {
		assert.Equal(t, want, choice.indexIn(all), choice)
	}
}
