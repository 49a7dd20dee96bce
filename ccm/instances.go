package ccm

// What the cloud knows of the machine behind a Node. The node controller asks
// InstanceMetadata to initialise a Node; the node lifecycle controller asks
// InstanceExists and InstanceShutdown of Nodes that are not Ready, and deletes
// the Node when the first says false. So "false" is said only on a definite
// answer, and find is the one place that decides what is definite.

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	cloudprovider "k8s.io/cloud-provider"

	"github.com/ccmlab/ccmlab/ccm/calls"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

type instancesAPI interface {
	GetInstance(ctx context.Context, id string) (*api.Instance, error)
	ListInstances(ctx context.Context, f client.InstanceFilter) ([]api.Instance, error)
}

type instances struct {
	api     instancesAPI
	project *projectGuard
	explain *explainer
}

var _ cloudprovider.InstancesV2 = (*instances)(nil)

// InstanceExists is false only when the cloud said, for our project, that the
// instance does not exist or has ended. A stopped instance exists. For a Node
// without a provider ID, a list without its name says nothing: only the sight
// of its ended instance does.
func (i *instances) InstanceExists(ctx context.Context, node *corev1.Node) (bool, error) {
	ctx = calls.For(ctx, calls.CloudNodeLifecycle)
	_, err := i.find(ctx, node)
	if errors.Is(err, cloudprovider.InstanceNotFound) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("does the instance of node %s exist: %w", node.Name, err)
	}
	return true, nil
}

// InstanceShutdown is true for an instance that is stopped; one that is still
// stopping may yet serve.
func (i *instances) InstanceShutdown(ctx context.Context, node *corev1.Node) (bool, error) {
	ctx = calls.For(ctx, calls.CloudNodeLifecycle)
	instance, err := i.find(ctx, node)
	if err != nil {
		return false, fmt.Errorf("is the instance of node %s shut down: %w", node.Name, err)
	}
	return instance.State == api.InstanceStopped, nil
}

// InstanceMetadata is what the node controller writes on the Node. An error
// leaves the Node tainted, to be tried again.
func (i *instances) InstanceMetadata(ctx context.Context, node *corev1.Node) (*cloudprovider.InstanceMetadata, error) {
	ctx = calls.For(ctx, calls.CloudNode)
	instance, err := i.find(ctx, node)
	i.explain.node(node, err)
	if err != nil {
		return nil, fmt.Errorf("metadata of node %s: %w", node.Name, err)
	}
	return &cloudprovider.InstanceMetadata{
		ProviderID:    providerID(instance.ID),
		InstanceType:  string(instance.Type),
		Zone:          instance.Zone,
		Region:        instance.Region,
		NodeAddresses: nodeAddresses(instance, node.Name),
	}, nil
}

func nodeAddresses(instance *api.Instance, nodeName string) []corev1.NodeAddress {
	addresses := []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: nodeName}}
	for _, a := range instance.Addresses {
		t := corev1.NodeInternalIP
		if a.Type == api.AddressExternal {
			t = corev1.NodeExternalIP
		}
		addresses = append(addresses, corev1.NodeAddress{Type: t, Address: a.IP})
	}
	return addresses
}

// find returns the Node's instance: by provider ID, else by name. The error is
// (or wraps) cloudprovider.InstanceNotFound only where the cloud's answer is
// definite; everything else, from a refused connection to a 404 of another
// project, is an error that says nothing about existence.
func (i *instances) find(ctx context.Context, node *corev1.Node) (*api.Instance, error) {
	if node.Spec.ProviderID != "" {
		id, err := parseProviderID(node.Spec.ProviderID)
		if err != nil {
			return nil, err
		}
		return i.byID(ctx, id)
	}
	return i.byName(ctx, node.Name)
}

func (i *instances) byID(ctx context.Context, id string) (*api.Instance, error) {
	instance, err := i.api.GetInstance(ctx, id)
	if err != nil {
		notFound, err := i.project.definiteNotFound(ctx, err)
		if notFound {
			return nil, fmt.Errorf("instance %s: %w", id, cloudprovider.InstanceNotFound)
		}
		return nil, err
	}
	if instance.ID != id || instance.State == "" {
		return nil, fmt.Errorf("the cloud was asked for instance %s and its answer is not that: id %q, state %q", id, instance.ID, instance.State)
	}
	if err := i.mustBeOurs(ctx, instance); err != nil {
		return nil, err
	}
	if ended(instance.State) {
		return nil, fmt.Errorf("instance %s is %s: %w", id, instance.State, cloudprovider.InstanceNotFound)
	}
	return instance, nil
}

// errNoSuchName is not cloudprovider.InstanceNotFound: an empty list may be a
// broken or a stale one.
var errNoSuchName = errors.New("no instance has that name")

// byName serves Nodes that have no provider ID yet.
func (i *instances) byName(ctx context.Context, name string) (*api.Instance, error) {
	all, err := i.api.ListInstances(ctx, client.InstanceFilter{Name: name})
	if err != nil {
		return nil, err
	}
	var live, gone []api.Instance
	for _, instance := range all {
		switch {
		case instance.Name != name:
		case ended(instance.State):
			gone = append(gone, instance)
		default:
			live = append(live, instance)
		}
	}
	switch len(live) {
	case 1:
		if err := i.mustBeOurs(ctx, &live[0]); err != nil {
			return nil, err
		}
		return &live[0], nil
	case 0:
		if len(gone) == 0 {
			return nil, fmt.Errorf("%w: %q", errNoSuchName, name)
		}
		if err := i.mustBeOurs(ctx, &gone[0]); err != nil {
			return nil, err
		}
		return nil, fmt.Errorf("instance %s, named %q, is %s: %w", gone[0].ID, name, gone[0].State, cloudprovider.InstanceNotFound)
	default:
		return nil, &ambiguousError{name: name, instances: live}
	}
}

func (i *instances) mustBeOurs(ctx context.Context, instance *api.Instance) error {
	ours, err := i.project.owns(ctx, instance.Project)
	if err == nil && !ours {
		err = fmt.Errorf("instance %s belongs to project %s, which is not ours", instance.ID, instance.Project)
	}
	return err
}

// ended tells whether an instance is gone for a cluster. One that is still
// terminating is not: its pods may yet be shutting down.
func ended(s api.InstanceState) bool { return s == api.InstanceTerminated }

type ambiguousError struct {
	name      string
	instances []api.Instance
}

func (e *ambiguousError) Error() string {
	ids := make([]string, len(e.instances))
	for i, instance := range e.instances {
		ids[i] = instance.ID
	}
	return fmt.Sprintf("%d instances are named %q (%s); none is chosen by guess", len(ids), e.name, strings.Join(ids, ", "))
}
