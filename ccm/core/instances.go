package core

// The node controller calls InstanceMetadata to initialise a Node, and again every few
// minutes for its addresses. The node lifecycle controller calls InstanceExists and
// InstanceShutdown for Nodes that are not Ready, and deletes the Node when the first is
// false. existence.go decides what is certain. Package guard limits how many Nodes may go at a time.

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	cloudprovider "k8s.io/cloud-provider"
	cloudproviderapi "k8s.io/cloud-provider/api"
	nodehelpers "k8s.io/cloud-provider/node/helpers"

	"github.com/ccmlab/ccmlab/ccm/annotations"
	"github.com/ccmlab/ccmlab/ccm/config"
	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// instances answers what the cloud knows of the machine behind a Node.
type instances struct {
	api       Cloud
	cluster   *Cluster
	labels    config.NodeLabels    // which of an instance's tags become labels
	addresses config.NodeAddresses // which of its addresses the Node has
}

// InstanceExists is false only if the cloud said, for our project, that the instance does not exist or has
// ended. A stopped instance exists. For a Node without a provider ID, a list without its name proves nothing:
// its ended instance must be seen.
func (i *instances) InstanceExists(ctx context.Context, node *corev1.Node) (bool, error) {
	return Exists(ctx, i, node)
}

// Exists answers InstanceExists by MayDelete, also for a ring that has another one.
func Exists(ctx context.Context, i Instances, node *corev1.Node) (bool, error) {
	goneReason, err := i.MayDelete(ctx, node)
	if err != nil {
		return false, fmt.Errorf("checking whether the instance of node %s exists: %w", node.Name, err)
	}
	return goneReason == "", nil
}

// MayDelete returns why it is certain that the Node's instance is gone, "" if it exists.
func (i *instances) MayDelete(ctx context.Context, node *corev1.Node) (goneReason string, err error) {
	_, err = i.FindInstance(ctx, node)
	if errors.Is(err, cloudprovider.InstanceNotFound) {
		return err.Error(), nil
	}
	return "", err
}

// FindInstance is the Node's instance. The error wraps cloudprovider.InstanceNotFound exactly when it is gone.
func (i *instances) FindInstance(ctx context.Context, node *corev1.Node) (*api.Instance, error) {
	instance, err := i.checkExistence(ctx, node)
	if err != nil {
		return nil, err
	}
	switch instance.State { // It does not run, and will not by itself.
	case api.InstanceStopped:
		notify(ctx, contract.ReasonInstanceStopped, "Instance %s is stopped", instance.ID)
	case api.InstanceError:
		notify(ctx, contract.ReasonInstanceInError, "Instance %s is in error: %s",
			instance.ID, stateReason(instance.StateReason))
	}
	return instance, nil
}

// InstanceShutdown is true for an instance that is stopped. One that is still stopping may serve.
func (i *instances) InstanceShutdown(ctx context.Context, node *corev1.Node) (bool, error) {
	instance, err := i.FindInstance(ctx, node)
	if err != nil {
		return false, fmt.Errorf("checking whether the instance of node %s is shut down: %w", node.Name, err)
	}
	return instance.State == api.InstanceStopped, nil
}

// InstanceMetadata is what the node controller writes on the Node. An error
// leaves the Node tainted, to be tried again.
func (i *instances) InstanceMetadata(ctx context.Context, node *corev1.Node) (*cloudprovider.InstanceMetadata, error) {
	metadata, err := i.buildMetadata(ctx, node)
	if err != nil {
		return nil, fmt.Errorf("metadata of node %s: %w", node.Name, err)
	}
	return metadata, nil
}

// buildMetadata finds the Node's instance, and checks what it would write on the Node.
func (i *instances) buildMetadata(ctx context.Context, node *corev1.Node) (*cloudprovider.InstanceMetadata, error) {
	instance, err := i.FindInstance(ctx, node)
	if err != nil {
		return nil, err
	}
	addresses := i.nodeAddresses(instance, node.Name)
	// Upstream writes what it is given, and would take the Node's address from it.
	if !slices.ContainsFunc(addresses, func(a corev1.NodeAddress) bool { return a.Type == corev1.NodeInternalIP }) {
		return nil, newReasonError(contract.ReasonNoInternalAddress, "instance %s has no internal address "+
			"that nodeAddresses in the cloud config allows: it has %v", instance.ID, instance.Addresses)
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
		AdditionalLabels: i.additionalLabels(ctx, instance),
	}, nil
}

// nodeAddresses are the host name, then the internal addresses, then the external ones. Of each type, those of the
// first family come first, and otherwise they keep the cloud's order: others connect to the first internal one.
func (i *instances) nodeAddresses(instance *api.Instance, nodeName string) []corev1.NodeAddress {
	addresses := []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: nodeName}}
	for _, t := range []corev1.NodeAddressType{corev1.NodeInternalIP, corev1.NodeExternalIP} {
		for _, family := range i.addresses.Families {
			for _, a := range instance.Addresses {
				if ip, ok := i.usableIP(a, t, family); ok {
					nodehelpers.AddToNodeAddresses(&addresses, corev1.NodeAddress{Type: t, Address: ip})
				}
			}
		}
	}
	return addresses
}

// usableIP returns the IP of an address of that type and family. An internal one must be in a range of the
// configuration, if that has any.
func (i *instances) usableIP(a api.Address, t corev1.NodeAddressType, family string) (ip string, ok bool) {
	isExternal, ranges := a.Type == api.AddressExternal, i.addresses.InternalRanges
	parsed, err := netip.ParseAddr(a.IP)
	unmapped := parsed.Unmap()
	if err != nil || parsed.Zone() != "" ||
		isExternal != (t == corev1.NodeExternalIP) || unmapped.Is4() != (family == "ipv4") {
		return "", false
	}
	return unmapped.String(), isExternal || len(ranges) == 0 || slices.ContainsFunc(ranges, func(r string) bool {
		return netip.MustParsePrefix(r).Contains(unmapped) // The configuration was validated.
	})
}

// checkKubeletNodeIP makes upstream's own check beforehand: a kubelet's --node-ip that is not
// among the instance's addresses keeps the Node tainted, which upstream only logs.
func checkKubeletNodeIP(node *corev1.Node, instanceID string, addresses []corev1.NodeAddress) error {
	provided, given := node.Annotations[cloudproviderapi.AnnotationAlphaProvidedIPAddr]
	if !given {
		return nil
	}
	_, err := nodehelpers.GetNodeAddressesFromNodeIP(provided, addresses)
	if err == nil {
		return nil
	}
	var ips []string
	for _, a := range addresses {
		if a.Type != corev1.NodeHostName {
			ips = append(ips, a.Address)
		}
	}
	return &reasonError{contract.ReasonProvidedNodeIP, fmt.Sprint(provided, addresses), fmt.Errorf(
		"the kubelet's --node-ip %s is not an address of instance %s, which has %v: %s",
		annotations.Quote(provided), instanceID, ips, annotations.Shorten(err.Error()))}
}

// kubernetesPrefixes matches the prefixes that belong to Kubernetes. Upstream discards
// labels with them (controllers/node, getNodeModifiersFromCloudProvider).
var kubernetesPrefixes = regexp.MustCompile(`(^|\.)(kubernetes|k8s)\.io/`)

// invalidLabelValueChars matches what a label's value cannot hold.
var invalidLabelValueChars = regexp.MustCompile(`[^-A-Za-z0-9_.]+`)

// additionalLabels are labels from the instance's tags, beside the well-known ones for type, zone and region:
// the configured prefix and the tag's key, with the tag's value. Upstream sets them when it initialises the Node,
// and changes none that exists. A tag that cannot be a label is left out, and a notice says so: a missing label is
// no reason to keep a Node from its pods.
func (i *instances) additionalLabels(ctx context.Context, instance *api.Instance) map[string]string {
	labels := map[string]string{}
	var skipped []string
	for _, tag := range i.labels.Tags {
		value, there := instance.Tags[tag]
		if !there {
			continue
		}
		key := i.labels.Prefix + tag
		fit, err := labelValue(key, value)
		if err != nil {
			skipped = append(skipped, fmt.Sprintf("tag %q: %v", tag, err))
			continue
		}
		labels[key] = fit
	}
	if len(skipped) > 0 {
		notify(ctx, contract.ReasonNodeLabelSkipped, "Some tags of instance %s cannot be labels of the Node: %s",
			instance.ID, strings.Join(skipped, "; "))
	}
	return labels
}

// labelValue makes the value of a label with that key. What it cannot hold becomes "-", and one that is too long is
// cut. It fails if either cannot be a label's.
func labelValue(key, value string) (string, error) {
	if problems := validation.IsQualifiedName(key); len(problems) > 0 {
		return "", fmt.Errorf("%q is not a valid label key: %s", key, strings.Join(problems, ", "))
	}
	if kubernetesPrefixes.MatchString(key) {
		return "", fmt.Errorf("%q has a prefix that is reserved for Kubernetes", key)
	}
	fit := invalidLabelValueChars.ReplaceAllString(value, "-")
	fit = strings.Trim(fit[:min(len(fit), validation.LabelValueMaxLength)], "-_.")
	if fit == "" && value != "" {
		return "", fmt.Errorf("its value %q has no character that a label can hold", value)
	}
	return fit, nil
}
