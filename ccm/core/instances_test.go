package core

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/validation"
	cloudproviderapi "k8s.io/cloud-provider/api"
	"pgregory.net/rapid"

	"github.com/ccmlab/ccmlab/ccm/config"
	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
)

const byID = "fakecloud://i-1"

func newInstances(f *fakeAPI) *instances {
	return &instances{
		api: f, cluster: testCluster("cluster-uid"), addresses: config.Default().NodeAddresses,
	}
}

// with answers every question with an instance that runs, changed.
func with(change func(*api.Instance)) func(string) (*api.Instance, error) {
	return func(string) (*api.Instance, error) {
		i := instance(api.InstanceRunning)
		change(&i)
		return &i, nil
	}
}

func inState(s api.InstanceState) func(string) (*api.Instance, error) {
	return with(func(i *api.Instance) { i.State = s })
}

func TestInstanceMetadata(t *testing.T) {
	i := newInstances(&fakeAPI{getInstance: with(func(i *api.Instance) {
		i.Tags = api.Tags{"team": "Team A", "rack": "", "private": "x"}
	})})
	i.labels = config.NodeLabels{Tags: []string{"team", "rack", "absent"}, Prefix: "example.org/"}
	meta, err := i.InstanceMetadata(t.Context(), node(byID))
	require.NoError(t, err)
	assert.Equal(t, byID, meta.ProviderID)
	assert.Equal(t, []string{"small", "r-a", "r"}, []string{meta.InstanceType, meta.Zone, meta.Region})
	assert.Len(t, meta.NodeAddresses, 3)
	assert.Equal(t, map[string]string{"example.org/team": "Team-A", "example.org/rack": ""}, meta.AdditionalLabels)
}

func TestNodeAddresses(t *testing.T) {
	in := func(ip string) api.Address { return api.Address{Type: api.AddressInternal, IP: ip} }
	out := func(ip string) api.Address { return api.Address{Type: api.AddressExternal, IP: ip} }
	for name, tc := range map[string]struct {
		has  []api.Address
		want string
		cfg  config.NodeAddresses
	}{
		"both families, of each kind": {
			has:  []api.Address{out("2001:db8::2"), in("fd00::1"), out("192.0.2.1"), in("10.0.0.1")},
			want: "Hostname:n InternalIP:10.0.0.1 InternalIP:fd00::1 ExternalIP:192.0.2.1 ExternalIP:2001:db8::2",
		},
		"twice, in two spellings; the cloud's first is first": {
			has:  []api.Address{in("fd00::1"), in("fd00:0::1"), in("10.0.0.9"), in("10.0.0.1"), in("::ffff:10.0.0.9")},
			want: "Hostname:n InternalIP:10.0.0.9 InternalIP:10.0.0.1 InternalIP:fd00::1",
		},
		"internal and external alike": {
			has: []api.Address{in("10.0.0.1"), out("10.0.0.1")}, want: "Hostname:n InternalIP:10.0.0.1 ExternalIP:10.0.0.1",
		},
		"garbage among them": {
			has: []api.Address{in(""), in("x"), in("fe80::1%eth0"), in("10.0.0.1")}, want: "Hostname:n InternalIP:10.0.0.1",
		},
		"IPv6 first": {
			has:  []api.Address{in("10.0.0.1"), out("192.0.2.1"), in("fd00::1")},
			cfg:  config.NodeAddresses{Families: []string{"ipv6", "ipv4"}},
			want: "Hostname:n InternalIP:fd00::1 InternalIP:10.0.0.1 ExternalIP:192.0.2.1",
		},
		"of one network": {
			has:  []api.Address{in("10.0.0.1"), in("10.1.0.1"), in("fd00::1"), out("192.0.2.1")},
			cfg:  config.NodeAddresses{InternalRanges: []string{"10.1.2.3/16"}},
			want: "Hostname:n InternalIP:10.1.0.1 ExternalIP:192.0.2.1",
		},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			if tc.cfg.Families == nil {
				tc.cfg.Families = config.Default().NodeAddresses.Families
			}
			for _, a := range (&instances{addresses: tc.cfg}).nodeAddresses(&api.Instance{Addresses: tc.has}, "n") {
				got = append(got, string(a.Type)+":"+a.Address)
			}
			assert.Equal(t, tc.want, strings.Join(got, " "))
		})
	}
}

func TestProvidedNodeIP(t *testing.T) {
	for provided, agrees := range map[string]bool{
		"192.0.2.1": true, "127.30.16.1,fd00::1": true, "127.30.16.1,fd00::2": false, "": false, "nonsense": false,
	} {
		i := newInstances(&fakeAPI{getInstance: with(func(i *api.Instance) {
			i.Addresses = append(i.Addresses, api.Address{Type: api.AddressInternal, IP: "fd00::1"})
		})})
		n := node(byID)
		n.Annotations = map[string]string{cloudproviderapi.AnnotationAlphaProvidedIPAddr: provided}
		_, err := i.InstanceMetadata(t.Context(), n)
		if agrees {
			require.NoError(t, err, provided)
			continue
		}
		require.ErrorContains(t, err, "instance i-1, which has [127.30.16.1 fd00::1 192.0.2.1]", provided)
		assert.Equal(t, contract.ReasonProvidedNodeIP, CauseOf(err).Reason)
	}
}

func TestTagsThatCanBeNoLabels(t *testing.T) {
	tags := api.Tags{"a b": "x", "ok": "1", "dots": "...", "long": strings.Repeat("x", 70), "private": "x"}
	for prefix, tc := range map[string]struct {
		want map[string]string
		told []string // parts of the only notice
	}{
		"example.org/": {
			map[string]string{"example.org/ok": "1", "example.org/long": strings.Repeat("x", 63)},
			[]string{
				`Some tags of instance i-1 cannot be labels of the Node: tag "a b": "example.org/a b" is not a valid label key`,
				`tag "dots": its value "..." has no character that a label can hold`,
			},
		},
		"node.kubernetes.io/": {map[string]string{}, []string{"a prefix that is reserved for Kubernetes"}},
	} {
		i := newInstances(&fakeAPI{})
		i.labels = config.NodeLabels{Tags: []string{"ok", "long", "a b", "dots", "absent"}, Prefix: prefix}
		var told []Notice
		got := i.additionalLabels(collectNotices(t.Context(), &told), &api.Instance{ID: "i-1", Tags: tags})
		assert.Equal(t, tc.want, got)
		require.Len(t, told, 1)
		assert.Equal(t, contract.ReasonNodeLabelSkipped, told[0].Reason)
		for _, text := range tc.told {
			assert.Contains(t, told[0].Message, text)
		}
	}
}

// Whatever a tag holds, what comes of it is a valid label or nothing.
func TestLabelsAreValid(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		key := rapid.String().Draw(t, "key")
		value, err := labelValue(key, rapid.String().Draw(t, "value"))
		if err != nil {
			return
		}
		assert.Empty(t, validation.IsQualifiedName(key))
		assert.Empty(t, validation.IsValidLabelValue(value))
	})
}
