package onfakecloud

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// What a CCM marks as its cluster's is told by the CCM's own names.
func TestNames(t *testing.T) {
	names, err := ParseNames(map[string]string{
		"cluster-tag": "nebula-cluster", "service-tag": "nebula-service", "provider-id": "nebula:",
	})
	require.NoError(t, err)
	c := &Cloud{Cluster: "east", Names: names}
	assert.Equal(t, "nebula:i-1", c.instanceOf(&api.Instance{ID: "i-1"}).ProviderID)
	b := c.balancerOf(&api.LoadBalancer{Metadata: api.Metadata{Tags: api.Tags{"nebula-service": "u-1", "kubernetes-service-uid": "u-2"}}})
	assert.Equal(t, types.UID("u-1"), b.Service)
	assert.Equal(
		t, api.Tags{"nebula-cluster": "east", "kubernetes-cluster": "east", "ccmlab-machine": "none"},
		names.instanceTags("east", false), "the lab looks for its own tags",
	)
	other := &Cloud{Names: Names{Dialect: "hcloud", RegionIsZone: true}}
	guest := other.instanceOf(&api.Instance{
		ID: "i-1", Zone: "nebula-1a", Region: "nebula-1", Identities: map[string]string{"hcloud": "hcloud://42"},
	})
	assert.Equal(t, "hcloud://42", guest.ProviderID)
	assert.Equal(t, "{{.Identities.hcloud}}", other.Names.KubeletProviderIDs())
	assert.Equal(t, "fakecloud://{{.ID}}", Names{}.KubeletProviderIDs())
	assert.Equal(t, "nebula-1a", guest.Region)
	assert.Equal(t, "fakecloud://i-1", (&Cloud{}).instanceOf(&api.Instance{ID: "i-1"}).ProviderID)
}

func TestWrongNames(t *testing.T) {
	_, err := ParseNames(map[string]string{"service-tag": "", "clustertag": "x"})
	require.ErrorContains(t, err, `"clustertag=x", "service-tag=": want KIND=NAME`)
	assert.ErrorContains(t, err, "cluster-tag, cluster-uid-tag, provider-id, service-tag")
}
