package ccm

// The node controller calls InstanceMetadata to initialise a Node, and again every few
// minutes for its addresses. The node lifecycle controller calls InstanceExists and
// InstanceShutdown for Nodes that are not Ready, and deletes the Node when the first is
// false. existence.go decides what is certain, and guard.go how many Nodes may go at a time.

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	cloudprovider "k8s.io/cloud-provider"
	cloudproviderapi "k8s.io/cloud-provider/api"
	nodehelpers "k8s.io/cloud-provider/node/helpers"

	"github.com/ccmlab/ccmlab/ccm/calls"
	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

type instancesAPI interface {
	GetInstance(ctx context.Context, id string) (*api.Instance, error)
	ListInstances(ctx context.Context, f client.InstanceFilter) ([]api.Instance, error)
}

// instances answers what the cloud knows of the machine behind a Node.
type instances struct {
	api       instancesAPI
	project   *projectGuard
	inventory knownInstances
	guard     *deletionGuard
	explain   *explainer
	labels    nodeLabels
}

var _ cloudprovider.InstancesV2 = (*instances)(nil)

// InstanceExists is false only if the cloud said, for our project, that the instance does
// not exist or has ended, and not too many Nodes end at once. A stopped instance exists. For
// a Node without a provider ID, a list without its name proves nothing: its ended instance
// must be seen.
func (i *instances) InstanceExists(ctx context.Context, node *corev1.Node) (bool, error) {
	gone, err := i.mayDeleteNode(calls.For(ctx, calls.CloudNodeLifecycle), node)
	if err != nil {
		return false, fmt.Errorf("does the instance of node %s exist: %w", node.Name, err)
	}
	return !gone, nil
}

// mayDeleteNode tells whether the Node may be deleted: its instance is gone for certain, and
// the mass-deletion guard lets it go. An error keeps the Node; it may be an api.RetryError
// that says when to ask again.
func (i *instances) mayDeleteNode(ctx context.Context, node *corev1.Node) (bool, error) {
	v, confirm := i.checkInventory(ctx, node)
	if confirm != nil {
		if err := i.guard.checkHeld(ctx, node); err != nil {
			return false, err
		}
		v = confirm(ctx)
	}
	if v.instance != nil {
		i.recordExists(node, v.instance)
		return false, nil
	}
	if v.goneReason == "" {
		i.guard.recordDoubt(node)
		return false, v.err
	}
	if err := i.guard.checkNotReplaced(node); err != nil {
		return false, err
	}
	if err := i.guard.admitDeletion(ctx, node, v.goneReason); err != nil {
		return false, err
	}
	return true, nil
}

// recordExists tells the guard and the explainer that a Node's instance exists.
func (i *instances) recordExists(node *corev1.Node, instance *api.Instance) {
	i.guard.recordExists(node)
	i.explain.explainInstanceState(node, instance)
}

// InstanceShutdown is true for an instance that is stopped. One that is still stopping may
// yet serve.
func (i *instances) InstanceShutdown(ctx context.Context, node *corev1.Node) (bool, error) {
	instance, err := i.checkExistence(calls.For(ctx, calls.CloudNodeLifecycle), node).existingInstance()
	if err != nil {
		return false, fmt.Errorf("is the instance of node %s shut down: %w", node.Name, err)
	}
	return instance.State == api.InstanceStopped, nil
}

// InstanceMetadata is what the node controller writes on the Node. An error
// leaves the Node tainted, to be tried again.
func (i *instances) InstanceMetadata(ctx context.Context, node *corev1.Node) (*cloudprovider.InstanceMetadata, error) {
	metadata, err := i.buildMetadata(calls.For(ctx, calls.CloudNode), node)
	i.explain.explainInitialization(node, err)
	if err != nil {
		return nil, fmt.Errorf("metadata of node %s: %w", node.Name, err)
	}
	return metadata, nil
}

// buildMetadata finds the Node's instance, and checks what it would write on the Node.
func (i *instances) buildMetadata(ctx context.Context, node *corev1.Node) (*cloudprovider.InstanceMetadata, error) {
	instance, err := i.checkExistence(ctx, node).existingInstance()
	if err != nil {
		return nil, err
	}
	i.recordExists(node, instance)
	addresses := nodeAddresses(instance, node.Name)
	// Upstream writes what it is given: an incomplete answer would cost a Node its address,
	// or it would never get its zone.
	if instance.Type == "" || instance.Zone == "" || instance.Region == "" ||
		!slices.ContainsFunc(addresses, isInternalAddress) {
		return nil, fmt.Errorf("the cloud's answer about instance %s lacks its type, zone, region "+
			"or internal address: type %q, zone %q, region %q, addresses %v",
			instance.ID, instance.Type, instance.Zone, instance.Region, instance.Addresses)
	}
	if err := checkKubeletNodeIP(node, instance.ID, addresses); err != nil {
		return nil, err
	}
	return &cloudprovider.InstanceMetadata{
		ProviderID:       contract.ProviderID(instance.ID),
		InstanceType:     string(instance.Type),
		Zone:             instance.Zone,
		Region:           instance.Region,
		NodeAddresses:    addresses,
		AdditionalLabels: i.additionalLabels(node, instance),
	}, nil
}

// nodeAddresses are the host name, then the internal addresses, then the external ones. Of
// each kind IPv4 comes before IPv6, and otherwise they keep the cloud's order: others connect
// to the first internal one.
func nodeAddresses(instance *api.Instance, nodeName string) []corev1.NodeAddress {
	var ips []corev1.NodeAddress
	for _, a := range instance.Addresses {
		ip, err := netip.ParseAddr(a.IP)
		if err != nil || ip.Zone() != "" {
			continue
		}
		t := corev1.NodeInternalIP
		if a.Type == api.AddressExternal {
			t = corev1.NodeExternalIP
		}
		nodehelpers.AddToNodeAddresses(&ips, corev1.NodeAddress{Type: t, Address: ip.Unmap().String()})
	}
	rank := func(a corev1.NodeAddress) int {
		r := 0
		if !isInternalAddress(a) {
			r += 2
		}
		if netip.MustParseAddr(a.Address).Is6() {
			r++
		}
		return r
	}
	slices.SortStableFunc(ips, func(a, b corev1.NodeAddress) int { return rank(a) - rank(b) })
	return append([]corev1.NodeAddress{{Type: corev1.NodeHostName, Address: nodeName}}, ips...)
}

func isInternalAddress(a corev1.NodeAddress) bool { return a.Type == corev1.NodeInternalIP }

// checkKubeletNodeIP makes upstream's own check beforehand: a kubelet's --node-ip that is not
// among the instance's addresses keeps the Node tainted, which upstream only logs.
func checkKubeletNodeIP(node *corev1.Node, instanceID string, addresses []corev1.NodeAddress) error {
	provided, given := node.Annotations[cloudproviderapi.AnnotationAlphaProvidedIPAddr]
	if !given {
		return nil
	}
	if _, err := nodehelpers.GetNodeAddressesFromNodeIP(provided, addresses); err != nil {
		return &nodeIPError{provided: provided, instance: instanceID, addresses: addresses, err: err}
	}
	return nil
}

// nodeIPError is a kubelet's --node-ip that its instance does not have.
type nodeIPError struct {
	provided, instance string
	addresses          []corev1.NodeAddress
	err                error
}

func (e *nodeIPError) Error() string {
	var ips []string
	for _, a := range e.addresses {
		if a.Type != corev1.NodeHostName {
			ips = append(ips, a.Address)
		}
	}
	return fmt.Sprintf("the kubelet's --node-ip %q is no address of instance %s, which has %v: %v",
		e.provided, e.instance, ips, e.err)
}

func (e *nodeIPError) Unwrap() error { return e.err }

func (e *nodeIPError) cause() cause {
	return cause{contract.ReasonProvidedNodeIP, fmt.Sprint(e.provided, e.addresses)}
}
