package compare

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// One lab in each situation, as it is when it has come to rest.
func plainFacts() *Facts {
	f := &Facts{
		Name: "plain", CloudProvider: "none", Flags: map[string]string{"kubelet": "", "kube-controller-manager": ""},
	}
	f.Nodes = []NodeFacts{
		{Name: "node-1", Ready: true, InternalIP: "127.30.16.1"},
		{Name: "node-2", Ready: true, InternalIP: "127.30.16.2"},
	}
	f.Pods = []PodFacts{{Phase: "Running", Node: "node-1"}, {Phase: "Running", Node: "node-2"}}
	f.Services = []ServiceFacts{{Name: "default/web", Type: "LoadBalancer"}}
	return f
}

func taintedFacts() *Facts {
	f := &Facts{
		Name: "tainted", CloudProvider: "external",
		Flags: map[string]string{"kubelet": "external", "kube-controller-manager": "external"},
	}
	taint := []string{"node.cloudprovider.kubernetes.io/uninitialized:NoSchedule"}
	f.Nodes = []NodeFacts{{Name: "node-1", Ready: true, Taints: taint}, {Name: "node-2", Ready: true, Taints: taint}}
	const reason = "0/2 nodes are available: 2 node(s) had untolerated taint(s)"
	f.Pods = []PodFacts{{Phase: "Pending", Unschedulable: reason}, {Phase: "Pending", Unschedulable: reason}}
	f.Services = []ServiceFacts{{Name: "default/web", Type: "LoadBalancer"}}
	return f
}

func fullFacts() *Facts {
	f := taintedFacts()
	f.Name, f.CCM, f.CCMCalls = "full", true, 11
	f.Nodes = []NodeFacts{
		{
			Name: "node-1", Ready: true, ProviderID: "fakecloud://i-1", Zone: "nebula-1a", Region: "nebula-1",
			InstanceType: "small", InternalIP: "127.32.16.1",
		},
		{
			Name: "node-2", Ready: true, ProviderID: "fakecloud://i-2", Zone: "nebula-1b", Region: "nebula-1",
			InstanceType: "large", InternalIP: "127.32.16.2",
		},
	}
	f.Pods = plainFacts().Pods
	f.Services = []ServiceFacts{
		{Name: "default/web", Type: "LoadBalancer", Address: "127.32.64.1:8080", Balancer: true},
	}
	return f
}

func desertedFacts() *Facts {
	f := fullFacts()
	f.Name, f.CCM = "deserted", false
	return f
}

func differencesOf(left, right *Facts) []string {
	names := []string{}
	for _, r := range compareFacts(left, right) {
		if r.Differs {
			names = append(names, r.What)
		}
	}
	return names
}

func rowNamed(t *testing.T, left, right *Facts, what string) Row {
	t.Helper()
	for _, r := range compareFacts(left, right) {
		if r.What == what {
			return r
		}
	}
	require.Fail(t, "no row "+what)
	return Row{}
}

func TestWhatDiffers(t *testing.T) {
	flags, node := []string{"kubelet", "kube-controller-manager", "CCM"}, []string{
		"provider ID", "zone", "region", "instance type",
	}
	another := fullFacts() // Other IDs, addresses and pods, and a third node, as any other lab has.
	another.Nodes = append(another.Nodes, NodeFacts{
		Ready: true, ProviderID: "fakecloud://i-9", Zone: "nebula-1c", Region: "nebula-1", InstanceType: "small",
		InternalIP: "127.40.16.1",
	})
	another.Services[0].Address, another.CCMCalls = "127.40.64.1:8080", 999
	for name, tc := range map[string]struct {
		left, right *Facts
		want        []string
	}{
		"plain and tainted": {plainFacts(), taintedFacts(), append(flags[:3:3], "taints", "InternalIP", "app=web")},
		"plain and full": {
			plainFacts(), fullFacts(), append(append(flags[:3:3], node...), "default/web", "calls by the CCM"),
		},
		"tainted and full": {taintedFacts(), fullFacts(), append(
			append([]string{"CCM", "taints"}, node...), "InternalIP", "app=web", "default/web", "calls by the CCM",
		)},
		"full and deserted": {fullFacts(), desertedFacts(), []string{"CCM"}},
		"tainted and deserted": {
			taintedFacts(), desertedFacts(),
			append(append([]string{"taints"}, node...), "InternalIP", "app=web", "default/web", "calls by the CCM"),
		},
		"two alike": {fullFacts(), another, []string{}},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, tc.want, differencesOf(tc.left, tc.right))
			assert.Equal(t, tc.want, differencesOf(tc.right, tc.left), "either way")
			for _, r := range compareFacts(tc.left, tc.right) {
				if !r.Differs {
					assert.Empty(t, r.Why, r.What)
					assert.Empty(t, r.Source, r.What)
					continue
				}
				require.Len(t, r.Why, 2, r.What)
				assert.Contains(t, r.Why[0], tc.left.Name+": ")
				assert.Contains(t, r.Why[1], tc.right.Name+": ")
				assert.NotContains(t, r.Why[0]+r.Why[1], "not as it is set up to be", r.What)
				assert.NotContains(t, r.Why[0]+r.Why[1], "NAME", r.What)
			}
		})
	}
}

func TestDifferenceIsExplained(t *testing.T) {
	taints := rowNamed(t, taintedFacts(), fullFacts(), "taints")
	assert.Equal(t, SectionNodes, taints.Section)
	assert.Equal(
		t, [2]string{"node.cloudprovider.kubernetes.io/uninitialized:NoSchedule on 2 of 2", "none"}, taints.Values,
	)
	assert.Equal(t, []string{
		"tainted: the kubelet registered its node with this taint, and it is there until a CCM removes it.",
		"full: the CCM initialised the nodes and removed the taint.",
	}, taints.Why)
	assert.Contains(t, taints.Source, "pkg/kubelet/kubelet_node_status.go, initialNode")

	for what, want := range map[string][2]string{
		"app=web": {
			"2 Pending: 0/2 nodes are available: 2 node(s) had untolerated taint(s)", "2 Running on node-1, node-2",
		},
		"provider ID":      {"none", "fakecloud://INSTANCE-ID"},
		"zone":             {"none", "nebula-1a, nebula-1b"},
		"default/web":      {"LoadBalancer, address pending", "LoadBalancer, 127.32.64.1:8080"},
		"calls by the CCM": {"none", "11"},
		"CCM":              {"does not run", "runs"},
	} {
		assert.Equal(t, want, rowNamed(t, taintedFacts(), fullFacts(), what).Values, what)
	}
	registered := taintedFacts()
	registered.KubeletProviderIDs = true
	for i := range registered.Nodes {
		registered.Nodes[i].ProviderID = "mine://i-1"
	}
	assert.Equal(
		t, "tainted: each kubelet registered its node with it, as its --provider-id says.",
		rowNamed(t, registered, plainFacts(), "provider ID").Why[0],
	)
	assert.Contains(t, rowNamed(t, taintedFacts(), fullFacts(), "CCM").Why[0], "`lab ccm start --name tainted`")
}

// What the set-up does not bring about is not explained by it.
func TestWhatHappenedIsNoMatterOfProviders(t *testing.T) {
	stopped := fullFacts()
	stopped.Name = "stopped"
	stopped.Nodes[1].Ready, stopped.Nodes[1].Taints = false, []string{
		"node.cloudprovider.kubernetes.io/shutdown:NoSchedule",
	}
	ready := rowNamed(t, fullFacts(), stopped, "Ready")
	assert.Equal(t, [2]string{"2 of 2 Ready", "1 of 2 Ready"}, ready.Values)
	assert.Equal(t, []string{
		"This is no matter of cloud providers; `lab watch --name full` and `lab watch --name stopped` tell what happened.",
	}, ready.Why)
	assert.Empty(t, ready.Source)

	halfway := fullFacts()
	halfway.Name = "halfway"
	halfway.Nodes[0].Zone = ""
	zone := rowNamed(t, plainFacts(), halfway, "zone")
	assert.Equal(t, "nebula-1b on 1 of 2", zone.Values[1])
	assert.Contains(t, zone.Why[0], "plain: only the cloud knows where a machine stands")
	assert.Contains(t, zone.Why[1], "halfway: not as it is set up to be; `lab status --name halfway`")
}

func TestServicesOfACCMThatWasStopped(t *testing.T) {
	pending, gone := desertedFacts(), desertedFacts()
	pending.Name, pending.Services[0].Address, pending.Services[0].Balancer = "pending", "", false
	gone.Name, gone.Services[0].Balancer = "gone", false
	for _, c := range []struct {
		left, right *Facts
		want        []string
	}{
		{pending, desertedFacts(), []string{
			"pending: the CCM was stopped before it had the cloud make a balancer; `lab ccm start --name pending` has it go on.",
			"deserted: the CCM had the cloud make a balancer, which goes on without it, to the nodes as they were.",
		}},
		{gone, plainFacts(), []string{
			"gone: the CCM wrote the address before it was stopped, and the balancer has gone since.",
			"plain: nobody has the cloud make a balancer, so the address stays pending for ever; the Service still has its ClusterIP and NodePort.",
		}},
	} {
		assert.Equal(t, c.want, rowNamed(t, c.left, c.right, "default/web").Why)
	}
}

func TestKindsOfBalancersDiffer(t *testing.T) {
	embedded, kind := fullFacts(), fullFacts()
	embedded.Services[0].Kind, kind.Services[0].Kind = api.KindProxy, api.KindNetwork
	row := rowNamed(t, embedded, kind, "default/web")
	assert.Equal(
		t, [2]string{"LoadBalancer, 127.32.64.1:8080 (proxy)", "LoadBalancer, 127.32.64.1:8080 (network)"}, row.Values,
	)
	require.Len(t, row.Why, 1)
	assert.Contains(t, row.Why[0], "the annotation fakecloud.ccmlab.io/kind chooses")
	assert.False(t, rowNamed(t, kind, kind, "default/web").Differs)
	assert.Len(t, rowNamed(t, taintedFacts(), kind, "default/web").Why, 2, "of one balancer alone")
}

func TestServiceOfOneLabAlone(t *testing.T) {
	without := desertedFacts()
	without.Services = nil
	assert.Equal(
		t, []string{"deserted: this Service was not created there."},
		rowNamed(t, without, fullFacts(), "default/web").Why,
	)
	assert.Equal(
		t, []string{"deserted: this Service was not created there."},
		rowNamed(t, fullFacts(), without, "default/web").Why,
	)
	assert.Empty(t, rowNamed(t, fullFacts(), without, "default/web").Source)
}

func TestLabsWithLessInThem(t *testing.T) {
	empty := &Facts{Name: "empty", CloudProvider: "external"}
	assert.NotPanics(t, func() { compareFacts(empty, fullFacts()) })
	assert.Equal(
		t, [2]string{"not to be seen from here", "--cloud-provider=external"},
		rowNamed(t, empty, fullFacts(), "kubelet").Values,
	)
	assert.Equal(
		t, [2]string{"no demo", "2 Running on node-1, node-2"}, rowNamed(t, empty, fullFacts(), "app=web").Values,
	)
	assert.Equal(
		t, [2]string{"not there", "LoadBalancer, 127.32.64.1:8080"},
		rowNamed(t, empty, fullFacts(), "default/web").Values,
	)
	many := fullFacts()
	for _, zone := range []string{"c", "d", "e", "f"} {
		many.Nodes = append(many.Nodes, NodeFacts{Zone: zone})
	}
	assert.Equal(t, "c, d, e, f and 2 more", rowNamed(t, empty, many, "zone").Values[1])
}
