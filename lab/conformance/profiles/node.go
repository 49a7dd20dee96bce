package profiles

// Nodes are initialised if they have an instance, with what the cloud says of it, and otherwise not.

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cloudproviderapi "k8s.io/cloud-provider/api"
	k8snet "k8s.io/utils/net"

	"github.com/ccmlab/ccmlab/lab/conformance"
	"github.com/ccmlab/ccmlab/lab/kubediff"
)

const (
	wellKnown      = "kubernetes.io: Well-Known Labels, Annotations and Taints"
	metadata       = "k8s.io/cloud-provider cloud.go: InstancesV2.InstanceMetadata"
	nodeController = "k8s.io/cloud-provider controllers/node"
)

var nodeTests = []conformance.Test{
	{
		ID: "node-taint-lifted", Source: "KEP-2392 Cloud Controller Manager; " + wellKnown,
		Requires: "A Node whose instance runs loses the taint node.cloudprovider.kubernetes.io/uninitialized.",
		Run: func(t *conformance.T) {
			_, node := t.NewWorker(conformance.NodeSpec{}) // It awaits just that.
			t.Logf("Node %s was initialised", node.Name)
		},
	}, {
		ID: "node-waits-without-instance", Source: nodeController + ": the taint stays until there is metadata",
		Requires: "A Node that no instance belongs to keeps its taint, gets no provider ID and is not deleted.",
		Run: func(t *conformance.T) {
			node := t.NewNode(conformance.NodeSpec{Name: t.Name("nobody")})
			waitsWhileOthersJoin(t, node.Name)
		},
	}, {
		ID:       "node-provider-id",
		Source:   "k8s.io/cloud-provider cloud.go: InstanceMetadata.ProviderID; kubernetes/kubernetes#123024",
		Requires: "By the time its taint is lifted, a Node has the provider ID of its instance.",
		Run: func(t *conformance.T) {
			instance, node := newInitializedNode(t)
			assert.Equal(t, instance.ProviderID, node.Spec.ProviderID)
		},
	}, {
		ID:       "node-zone-and-region",
		Source:   "k8s.io/cloud-provider cloud.go: InstanceMetadata.Zone, InstanceMetadata.Region; " + wellKnown,
		Requires: "By the time its taint is lifted, a Node has its instance's zone and region in the labels topology.kubernetes.io/zone and topology.kubernetes.io/region.",
		Needs:    []conformance.Feature{conformance.FeatureZones},
		Run: func(t *conformance.T) {
			instance, node := newInitializedNode(t)
			assert.NotEmpty(t, instance.Zone+instance.Region, "the cloud's driver tells neither zone nor region")
			assert.Equal(t, instance.Zone, node.Labels[corev1.LabelTopologyZone])
			assert.Equal(t, instance.Region, node.Labels[corev1.LabelTopologyRegion])
		},
	}, {
		ID:       "node-instance-type",
		Source:   "k8s.io/cloud-provider cloud.go: InstanceMetadata.InstanceType; " + wellKnown,
		Requires: "By the time its taint is lifted, a Node has its instance's type in the label node.kubernetes.io/instance-type.",
		Needs:    []conformance.Feature{conformance.FeatureInstanceTypes},
		Run: func(t *conformance.T) {
			instance, node := newInitializedNode(t)
			assert.NotEmpty(t, instance.Type, "the cloud's driver tells no type")
			assert.Equal(t, instance.Type, node.Labels[corev1.LabelInstanceTypeStable])
		},
	}, {
		ID:       "node-each-its-own",
		Source:   metadata + ", of the given node; cloud.go: InstanceMetadata.Zone, Region, InstanceType; " + wellKnown,
		Requires: "Of two instances that differ in zone, region or type, each Node has its own instance's in its labels, and keeps its own addresses and host name.",
		Needs:    []conformance.Feature{conformance.FeatureUnlikeInstances},
		Run:      eachItsOwn,
	}, {
		ID: "node-addresses", Source: "k8s.io/cloud-provider cloud.go: InstanceMetadata.NodeAddresses",
		Requires: "A Node has exactly its instance's internal and external addresses, and keeps the host name that its kubelet gave.",
		Run: func(t *conformance.T) {
			instance := t.CreateInstance(conformance.InstanceSpec{Name: t.Name("worker"), External: true})
			node := t.NewNodeOf(instance, conformance.NodeSpec{})
			t.AwaitInitialized(node.Name)
			awaitAddresses(t, node.Name, corev1.NodeInternalIP, instance.InternalIPs)
			awaitAddresses(t, node.Name, corev1.NodeExternalIP, instance.ExternalIPs)
			awaitAddresses(t, node.Name, corev1.NodeHostName, []string{node.Name})
		},
	}, {
		ID:       "node-addresses-changed",
		Source:   "k8s.io/cloud-provider controllers/node/node_controller.go: UpdateNodeStatus (\"updates the node status, such as node addresses\")",
		Requires: "When the addresses of a Node's instance change, the Node's follow, at the latest after the CCM's --node-status-update-frequency.",
		Needs:    []conformance.Feature{conformance.FeatureChangeAddresses},
		Bound:    statusUpdateFrequency + conformance.DefaultBound, Priority: conformance.Early,
		Alone: true, // The CCM is restarted.
		Run: func(t *conformance.T) {
			if t.HasFeature(conformance.FeatureFlags) { // By default, it would be a wait of minutes.
				t.RestartCCM("--node-status-update-frequency=2s")
			}
			instance, node := newInitializedNode(t)
			changed, err := t.Cloud.ChangeAddresses(t.Context(), instance.ID)
			t.Must(err, "changing the addresses of instance %s", instance.ID)
			require.NotEqual(
				t, []any{instance.InternalIPs, instance.ExternalIPs}, []any{changed.InternalIPs, changed.ExternalIPs},
				"the cloud's driver has changed nothing",
			)
			awaitAddresses(t, node.Name, corev1.NodeInternalIP, changed.InternalIPs)
			awaitAddresses(t, node.Name, corev1.NodeExternalIP, changed.ExternalIPs)
		},
	}, {
		ID:       "node-name-is-exact",
		Source:   metadata + " (\"can use other properties of the node like its name\")",
		Requires: "Neither an instance whose name begins with the Node's name nor one whose name the Node's name begins with is taken for the Node's.",
		Needs:    []conformance.Feature{conformance.FeatureNodeNames},
		Run: func(t *conformance.T) {
			shorter := t.Name("exact")
			name := shorter + "-b"
			longer := name + "-c"
			t.NewInstance(shorter)
			t.NewInstance(longer)
			t.NewNode(conformance.NodeSpec{Name: name}) // It has no instance yet.
			waitsWhileOthersJoin(t, name)
			exact := t.NewInstance(name)
			assert.Equal(t, exact.ProviderID, t.AwaitInitialized(name).Spec.ProviderID)
		},
	}, {
		ID: "node-name-in-capitals", Capability: conformance.CapabilityNamesInAnyCase,
		Source:   "k8s.io/component-helpers node/util/hostname.go: GetHostname (the Node's name is \"trimmed and lowercased\"); " + metadata,
		Requires: "An instance whose name has capitals is the one of the Node of that name in lower case.",
		Needs:    []conformance.Feature{conformance.FeatureNodeNames, conformance.FeatureCapitalNames},
		Run: func(t *conformance.T) {
			instance := t.NewInstance(t.Name("Worker"))
			node := t.NewNodeOf(instance, conformance.NodeSpec{})
			assert.NotEqual(t, instance.Name, node.Name, "the cloud's driver made an instance without capitals")
			assert.Equal(t, instance.ProviderID, t.AwaitInitialized(node.Name).Spec.ProviderID)
		},
	}, {
		ID:       "node-name-of-ended-instance",
		Source:   metadata + " (\"can use other properties of the node like its name\")",
		Requires: "Of a terminated instance and a running one with the Node's name, the running one is the Node's.",
		Needs:    []conformance.Feature{conformance.FeatureNodeNames},
		Run: func(t *conformance.T) {
			name := t.Name("again")
			ended := t.NewInstance(name)
			t.Must(t.Cloud.TerminateInstance(t.Context(), ended.ID), "terminating instance %s", ended.ID)
			runs := t.NewInstance(name)
			t.NewNodeOf(runs, conformance.NodeSpec{})
			assert.Equal(t, runs.ProviderID, t.AwaitInitialized(name).Spec.ProviderID)
		},
	}, {
		ID: "node-late-instance", Source: nodeController + ": what fails is tried again",
		Requires: "A Node that the CCM saw before there was an instance is initialised once there is one.",
		Needs:    []conformance.Feature{conformance.FeatureNodeNames},
		Run: func(t *conformance.T) {
			node := t.NewNode(conformance.NodeSpec{Name: t.Name("early")})
			waitsWhileOthersJoin(t, node.Name)
			instance := t.NewInstance(node.Name)
			assert.Equal(t, instance.ProviderID, t.AwaitInitialized(node.Name).Spec.ProviderID)
		},
	}, {
		ID:       "node-known-by-provider-id",
		Source:   metadata + " (\"should always check node.spec.providerID first\")",
		Requires: "A Node that registers with a provider ID is initialised from that instance, whatever the instance's name.",
		Run: func(t *conformance.T) {
			instance := t.NewInstance(t.Name("machine"))
			name := t.Name("node")
			t.NewNode(conformance.NodeSpec{Name: name, ProviderID: instance.ProviderID})
			assert.Equal(t, instance.ProviderID, t.AwaitInitialized(name).Spec.ProviderID)
			awaitAddresses(t, name, corev1.NodeInternalIP, instance.InternalIPs)
		},
	}, {
		ID:       "node-keeps-foreign-labels-and-taints",
		Source:   nodeController + ": only its own taint and labels are touched",
		Requires: "Labels, annotations and taints that others gave a Node survive its initialisation.",
		Run:      keepsForeign,
	}, {
		ID: "node-after-restart", Source: "KEP-2392 Cloud Controller Manager; " + nodeController,
		Requires: "A Node that registered while no CCM ran is initialised once one runs.",
		Alone:    true,
		Run: func(t *conformance.T) {
			restart := stopCCM(t)
			instance := t.NewInstance(t.Name("early"))
			name := t.NewNodeOf(instance, conformance.NodeSpec{}).Name
			t.Must(checkStaysUninitialized(t, name)(t.Context()), "Node %s, while no CCM ran", name)
			restart()
			assert.Equal(t, instance.ProviderID, t.AwaitInitialized(name).Spec.ProviderID)
		},
	}, {
		ID: "node-provided-ip", Capability: conformance.CapabilityProvidedIP,
		Source:   wellKnown + ": alpha.kubernetes.io/provided-node-ip",
		Requires: "A Node whose kubelet was given an internal address of its instance with --node-ip is initialised, and has that address.",
		Run: func(t *conformance.T) {
			instance := t.NewInstance(t.Name("node-ip"))
			if len(instance.InternalIPs) == 0 {
				t.NotMade("instance %s has no internal address", instance.ID)
			}
			awaitProvidedIP(t, instance, instance.InternalIPs[0])
		},
	}, {
		ID: "node-provided-ip-among-several", Capability: conformance.CapabilityProvidedIP,
		Source:   wellKnown + ": alpha.kubernetes.io/provided-node-ip",
		Requires: "Of its instance's internal addresses, a Node has only the one that its kubelet was given with --node-ip.",
		Needs:    []conformance.Feature{conformance.FeatureSeveralAddresses},
		Run: func(t *conformance.T) {
			instance := t.NewInstance(t.Name("node-ip"))
			last := len(instance.InternalIPs) - 1
			assert.Positive(t, last, "the cloud's driver tells only the addresses %v", instance.InternalIPs)
			awaitProvidedIP(t, instance, instance.InternalIPs[last]) // Not the one that a CCM may take by default.
		},
	}, {
		ID: "node-provided-ip-dual-stack", Capability: conformance.CapabilityProvidedIP,
		Source:   "KEP-3705 Cloud Dual-Stack --node-ip Handling; k8s.io/cloud-provider node/helpers/address.go: GetNodeAddressesFromNodeIP",
		Requires: "Of its instance's internal addresses, a Node has only the one of each family that its kubelet was given with --node-ip, in the kubelet's order: the first is the primary one.",
		Needs:    []conformance.Feature{conformance.FeatureDualStack},
		Run:      providedDualStack,
	}, {
		ID: "node-provided-ip-mismatch", Capability: conformance.CapabilityProvidedIP,
		Source:   wellKnown + ": alpha.kubernetes.io/provided-node-ip; " + nodeController,
		Requires: "A Node whose kubelet was given a --node-ip that is no address of its instance stays tainted.",
		Run: func(t *conformance.T) {
			instance := t.NewInstance(t.Name("node-ip"))
			node := t.NewNodeOf(instance, conformance.NodeSpec{NodeIP: "192.0.2.1"}) // A documentation address.
			waitsWhileOthersJoin(t, node.Name)
		},
	}, {
		ID: "node-says-why", Capability: conformance.CapabilityExplains, Source: fromDebugging,
		Requires: "While a Node waits for its instance, a Warning Event on it says why.",
		Run: func(t *conformance.T) {
			node := t.NewNode(conformance.NodeSpec{Name: t.Name("nobody")})
			awaitWarning(t, node.Name)
		},
	},
}

// statusUpdateFrequency is the default of upstream's --node-status-update-frequency
// (k8s.io/cloud-provider config/v1alpha1/defaults.go).
const statusUpdateFrequency = 5 * time.Minute

// instanceLabels are the labels that tell what a Node's instance is.
var instanceLabels = []struct {
	needs conformance.Feature
	key   string
	value func(conformance.Instance) string
}{
	{conformance.FeatureZones, corev1.LabelTopologyZone, func(i conformance.Instance) string { return i.Zone }},
	{conformance.FeatureZones, corev1.LabelTopologyRegion, func(i conformance.Instance) string { return i.Region }},
	{conformance.FeatureInstanceTypes, corev1.LabelInstanceTypeStable,
		func(i conformance.Instance) string { return i.Type }},
}

func eachItsOwn(t *conformance.T) {
	first := t.NewInstance(t.Name("worker"))
	second := t.CreateInstance(conformance.InstanceSpec{Name: t.Name("worker"), Unlike: first.ID})
	nodes := []*conformance.StandIn{
		t.NewNodeOf(first, conformance.NodeSpec{}), t.NewNodeOf(second, conformance.NodeSpec{}),
	}
	differences := 0
	for i, instance := range []conformance.Instance{first, second} {
		node := t.AwaitInitialized(nodes[i].Name)
		for _, l := range instanceLabels {
			if !t.HasFeature(l.needs) {
				continue
			}
			assert.Equal(t, l.value(instance), node.Labels[l.key], "label %s of Node %s", l.key, node.Name)
			if l.value(first) != l.value(second) {
				differences++
			}
		}
		awaitAddresses(t, node.Name, corev1.NodeInternalIP, instance.InternalIPs)
		awaitAddresses(t, node.Name, corev1.NodeHostName, []string{node.Name})
	}
	assert.Positive(t, differences, "the cloud's driver has made two instances that differ in nothing that labels tell")
}

func keepsForeign(t *conformance.T) {
	const key, value = "conformance.ccmlab.io/foreign", "kept"
	taint := corev1.Taint{Key: key, Value: value, Effect: corev1.TaintEffectPreferNoSchedule}
	_, n := t.NewWorker(conformance.NodeSpec{
		Labels: map[string]string{key: value},
		Change: func(node *corev1.Node) {
			metav1.SetMetaDataAnnotation(&node.ObjectMeta, key, value)
			node.Spec.Taints = append(node.Spec.Taints, taint)
		},
	})
	node, err := t.GetNode(t.Context(), n.Name)
	t.Must(err, "reading Node %s", n.Name)
	assert.Equal(t, value, node.Labels[key], "label")
	assert.Equal(t, value, node.Annotations[key], "annotation")
	assert.Contains(t, node.Spec.Taints, taint)
}

// awaitProvidedIP registers the instance's Node with this --node-ip, and waits for that to be its only internal
// address.
func awaitProvidedIP(t *conformance.T, instance conformance.Instance, ip string) {
	node := t.NewNodeOf(instance, conformance.NodeSpec{NodeIP: ip})
	t.AwaitInitialized(node.Name)
	awaitAddresses(t, node.Name, corev1.NodeInternalIP, []string{ip})
}

// providedDualStack registers two Nodes with --node-ip of both families: each family comes first once.
func providedDualStack(t *conformance.T) {
	for _, first := range []k8snet.IPFamily{k8snet.IPv4, k8snet.IPv6} {
		instance := t.NewInstance(t.Name("dual-stack"))
		var provided []string
		for _, ip := range slices.Backward(instance.InternalIPs) { // Not those that a CCM may take by default.
			family := k8snet.IPFamilyOfString(ip)
			if slices.ContainsFunc(provided, func(has string) bool { return k8snet.IPFamilyOfString(has) == family }) {
				continue
			}
			if provided = append(provided, ip); family == first {
				slices.Reverse(provided)
			}
		}
		require.Len(t, provided, 2, "the cloud's driver tells only the addresses %v", instance.InternalIPs)
		node := t.NewNodeOf(instance, conformance.NodeSpec{NodeIP: strings.Join(provided, ",")})
		t.AwaitInitialized(node.Name)
		awaitAddressesInOrder(t, node.Name, corev1.NodeInternalIP, provided)
	}
}

// newInitializedNode returns an instance, and its Node as it was when its taint had just been lifted.
func newInitializedNode(t *conformance.T) (conformance.Instance, *corev1.Node) {
	instance := t.NewInstance(t.Name("worker"))
	return instance, t.AwaitInitialized(t.NewNodeOf(instance, conformance.NodeSpec{}).Name)
}

// checkStaysUninitialized returns an error once the CCM has lifted the Node's taint or given it a provider ID.
func checkStaysUninitialized(t *conformance.T, name string) func(context.Context) error {
	return func(ctx context.Context) error {
		node, err := t.GetNode(ctx, name)
		switch {
		case err != nil:
			return err
		case !kubediff.HasTaint(node, cloudproviderapi.TaintExternalCloudProvider):
			return fmt.Errorf("its taint was lifted; its provider ID is %q", node.Spec.ProviderID)
		case node.Spec.ProviderID != "" && !t.HasFeature(conformance.FeatureKubeletProviderIDs):
			return fmt.Errorf("it was given provider ID %q", node.Spec.ProviderID)
		}
		return nil
	}
}

// waitsWhileOthersJoin watches that a Node waits until the CCM has had its chance: until two Nodes that
// registered later, one after the other, are initialised.
func waitsWhileOthersJoin(t *conformance.T, name string) {
	for range 2 {
		other := t.NewNodeOf(t.NewInstance(t.Name("control")), conformance.NodeSpec{})
		t.HoldsUntil("Node "+name+" is to wait", checkStaysUninitialized(t, name),
			"Node "+other.Name+" to be initialised", checkNodeInitialized(t, other.Name))
	}
}

// checkNodeInitialized returns an error while the Node waits for a CCM.
func checkNodeInitialized(t *conformance.T, name string) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := t.Initialized(ctx, name)
		return err
	}
}

// awaitAddresses waits for the Node to have these addresses of a type, in any order, and no others. They may
// come a moment after the taint is lifted, since they are in the Node's status.
func awaitAddresses(t *conformance.T, name string, of corev1.NodeAddressType, want []string) {
	awaitAddressesThat(t, name, of, want, func(have []string) bool { return hasSameAddresses(have, want) })
}

// awaitAddressesInOrder waits for the Node to have these addresses of a type, in this order, and no others.
func awaitAddressesInOrder(t *conformance.T, name string, of corev1.NodeAddressType, want []string) {
	awaitAddressesThat(t, name, of, want, func(have []string) bool { return slices.Equal(have, want) })
}

func awaitAddressesThat(
	t *conformance.T, name string, of corev1.NodeAddressType, want []string, match func(have []string) bool,
) {
	t.Await(fmt.Sprintf("the %s addresses of Node %s to be %v", of, name, want), func(ctx context.Context) error {
		node, err := t.GetNode(ctx, name)
		if err != nil {
			return err
		}
		if have := addressesOf(node, of); !match(have) {
			return fmt.Errorf("they are %v", have)
		}
		return nil
	})
}

// addressesOf returns the Node's addresses of a type, in their order.
func addressesOf(node *corev1.Node, of corev1.NodeAddressType) (addresses []string) {
	for _, a := range node.Status.Addresses {
		if a.Type == of {
			addresses = append(addresses, a.Address)
		}
	}
	return addresses
}

// hasSameAddresses tells whether both are the same addresses, in any order.
func hasSameAddresses(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}

// deleteNode deletes the Node, which the test cannot go on without.
func deleteNode(t *conformance.T, name string) {
	t.Must(t.Kube.CoreV1().Nodes().Delete(t.Context(), name, metav1.DeleteOptions{}), "deleting Node %s", name)
}

// stopCCM stops the CCM, and returns how to start it again. The end of the test starts it in any case.
func stopCCM(t *conformance.T) (start func()) {
	t.Cleanup(t.CCM.Start)
	t.Must(t.CCM.Stop(t.Context()), "stopping the CCM")
	return func() { t.Must(t.CCM.Start(t.Context()), "starting the CCM again") }
}
