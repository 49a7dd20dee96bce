package main

// The node controller and the node lifecycle controller call these methods: which
// instance is a Node, does it exist, is it shut down?

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	cloudprovider "k8s.io/cloud-provider"
)

// step 1
import (
	"fmt"
	"strings"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

// end

// step 2
import "errors"

// end

// InstanceMetadata is called for each Node with the taint
// node.cloudprovider.kubernetes.io/uninitialized, until there is no error. Then the
// result is written to the Node, and the taint is removed.
func (p *provider) InstanceMetadata(ctx context.Context, node *corev1.Node) (*cloudprovider.InstanceMetadata, error) {
	// step 1
	i, err := p.instanceOf(ctx, node)
	if err != nil {
		return nil, err
	}
	m := &cloudprovider.InstanceMetadata{
		ProviderID: scheme + i.ID, InstanceType: string(i.Type), Zone: i.Zone, Region: i.Region,
	}
	for _, a := range i.Addresses {
		kind := corev1.NodeInternalIP
		if a.Type == api.AddressExternal {
			kind = corev1.NodeExternalIP
		}
		m.NodeAddresses = append(m.NodeAddresses, corev1.NodeAddress{Type: kind, Address: a.IP})
	}
	return m, nil
	// before
	// return nil, errNotWritten
	// end
}

// InstanceExists is called for each Node that is not Ready, every few seconds. If the
// answer is false, the Node is deleted, and its pods with it. So false must be certain;
// an error keeps the Node.
func (p *provider) InstanceExists(ctx context.Context, node *corev1.Node) (bool, error) {
	// step 2
	_, err := p.instanceOf(ctx, node)
	if errors.Is(err, cloudprovider.InstanceNotFound) {
		return false, nil
	}
	return err == nil, err
	// before
	// return true, errNotWritten
	// end
}

// InstanceShutdown is called for each Node that is not Ready and exists. If the answer
// is true, the Node gets the taint node.cloudprovider.kubernetes.io/shutdown.
func (p *provider) InstanceShutdown(ctx context.Context, node *corev1.Node) (bool, error) {
	// step 2
	i, err := p.instanceOf(ctx, node)
	if err != nil {
		return false, err
	}
	return i.State == api.InstanceStopped, nil
	// before
	// return false, errNotWritten
	// end
}

// step 1

// instanceOf returns the Node's instance: by its provider ID if it has one, else by its
// name. cloudprovider.InstanceNotFound means that it is terminated; any other error
// means that nothing is known.
func (p *provider) instanceOf(ctx context.Context, node *corev1.Node) (*api.Instance, error) {
	if node.Spec.ProviderID == "" {
		return p.instanceByName(ctx, node.Name)
	}
	id, ours := strings.CutPrefix(node.Spec.ProviderID, scheme)
	if !ours {
		return nil, fmt.Errorf("provider ID %s is another cloud's", node.Spec.ProviderID)
	}
	i, err := p.cloud.GetInstance(ctx, id)
	// step 5
	if err == nil && i.ID != id {
		return nil, fmt.Errorf("the cloud was asked for instance %s and answered %q", id, i.ID)
	}
	if client.IsNotFound(err) {
		if err := p.checkProject(ctx, client.ProjectOf(err)); err != nil {
			return nil, err
		}
	}
	// end
	if client.IsNotFound(err) || err == nil && isTerminated(i) {
		return nil, fmt.Errorf("instance %s: %w", id, cloudprovider.InstanceNotFound)
	}
	return i, err
}

// instanceByName returns the only instance of a name in this cluster. That there is
// none yet does not mean that there never will be.
func (p *provider) instanceByName(ctx context.Context, name string) (*api.Instance, error) {
	all, err := p.cloud.ListInstances(
		ctx, client.InstanceFilter{Name: name, Tags: []string{tagCluster + "=" + p.cluster}},
	)
	if err != nil {
		return nil, err
	}
	var found *api.Instance
	for _, i := range all {
		switch {
		case i.Name != name || isTerminated(&i):
		case found != nil:
			return nil, fmt.Errorf("instances %s and %s have the name %s", found.ID, i.ID, name)
		default:
			found = &i
		}
	}
	if found == nil {
		return nil, fmt.Errorf("no instance has the name %s", name)
	}
	return found, nil
}

// isTerminated tells whether an instance is gone for good, though the cloud still
// returns it.
func isTerminated(i *api.Instance) bool {
	return i.State == api.InstanceTerminating || i.State == api.InstanceTerminated
}

// end

// step 5

// checkProject is an error unless this is the ID of our project. Our instances do not
// exist in another project, which says nothing about them.
func (p *provider) checkProject(ctx context.Context, project string) error {
	have, err := p.cloud.Project(ctx)
	if err != nil {
		return err
	}
	if have.ID != project || have.Name != p.project {
		return fmt.Errorf("the cloud speaks of project %q, and ours is %s", project, p.project)
	}
	return nil
}

// end
