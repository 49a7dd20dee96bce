package lab

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// Nodes get their instances' provider IDs where they have none. One that a CCM of another cloud has set stays.
func TestPlanProviderIDs(t *testing.T) {
	instance := func(name, id string, state api.InstanceState) api.Instance {
		return api.Instance{Name: name, ID: id, State: state, Identities: map[string]string{"hcloud": "hcloud://" + id}}
	}
	instances := []api.Instance{
		instance("two", "0", api.InstanceTerminated), instance("Two", "2", api.InstanceStopped),
		instance("one", "1", api.InstanceRunning), instance("one", "0", api.InstanceTerminated),
		instance("ended", "3", api.InstanceTerminated),
	}
	for name, tc := range map[string]struct {
		nodes   map[string]string // provider IDs by name
		missing map[string]string
		blocked []string
	}{
		"none":               {nil, map[string]string{}, nil},
		"all there":          {map[string]string{"one": "hcloud://1"}, map[string]string{}, nil},
		"by the live one":    {map[string]string{"two": ""}, map[string]string{"two": "hcloud://2"}, nil},
		"a terminated one's": {map[string]string{"ended": ""}, map[string]string{"ended": "hcloud://3"}, nil},
		"of our own CCM": {
			map[string]string{"one": "fakecloud://i-1", "two": ""}, map[string]string{"two": "hcloud://2"},
			[]string{"one has fakecloud://i-1"},
		},
		"of another instance": {map[string]string{"two": "hcloud://0"}, map[string]string{}, []string{"two has hcloud://0"}},
		"a stranger":          {map[string]string{"three": ""}, map[string]string{}, []string{"three has no instance"}},
	} {
		var nodes []corev1.Node
		for node, id := range tc.nodes {
			nodes = append(nodes, corev1.Node{
				ObjectMeta: metav1.ObjectMeta{Name: node}, Spec: corev1.NodeSpec{ProviderID: id},
			})
		}
		missing, blocked, err := planProviderIDs("{{.Identities.hcloud}}", nodes, instances)
		require.NoError(t, err, name)
		assert.Equal(t, tc.missing, missing, name)
		assert.Equal(t, tc.blocked, blocked, name)
	}
	_, _, err := planProviderIDs("{{.Identities.nimbus}}", []corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "one"}}}, instances)
	require.ErrorContains(t, err, "provider ID of Node one")
}
