package lab

// Provider IDs of Nodes for CCMs that do not find instances by Node name: what kubelets did not register with.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/ui"
)

// maxNamedNodes is how many Nodes a message names.
const maxNamedNodes = 5

// UseProviderIDs has Nodes get provider IDs by a template of cluster.KubeletProviderID from now on: new ones by
// their kubelets, those that have none when a CCM starts. It is an error, and changes nothing, if a Node has
// another one, which is for good, or cannot have one.
func (l *Lab) UseProviderIDs(ctx context.Context, template string) error {
	if template == l.State.KubeletProviderIDs {
		return nil
	}
	_, blocked, err := l.missingProviderIDs(ctx, template)
	if err != nil {
		return err
	}
	if len(blocked) > 0 {
		return fmt.Errorf(
			"this CCM needs Nodes with provider IDs of its own cloud, and a Node's provider ID cannot be changed: %s. "+
				"`lab down --name %s`, then `lab up --name %[2]s --dialect NAME --ccm PROGRAM` makes Nodes that have them",
			ui.JoinFirst(blocked, maxNamedNodes), l.State.Name,
		)
	}
	l.State.KubeletProviderIDs = template
	return l.State.Save()
}

// dropProviderIDs has Nodes get no provider IDs any more that the preset of the program in use asked for, unless the
// program next asks for the same. Other CCMs take them for another cloud's.
func (l *Lab) dropProviderIDs(next *cluster.Program) error {
	used, err := l.OtherCCM()
	if err != nil || used == nil || used.ProviderIDs == "" || used.ProviderIDs != l.State.KubeletProviderIDs {
		return err
	}
	if next != nil && next.ProviderIDs == used.ProviderIDs {
		return nil
	}
	l.State.KubeletProviderIDs = ""
	return l.State.Save()
}

// SetProviderIDs sets the provider ID of Nodes that have none, in the operator's name, if the lab gives Nodes
// provider IDs. Nodes that kubelets have registered with theirs, and foreign ones, stay as they are.
func (l *Lab) SetProviderIDs(ctx context.Context) error {
	if l.State.KubeletProviderIDs == "" {
		return nil
	}
	missing, _, err := l.missingProviderIDs(ctx, l.State.KubeletProviderIDs)
	if err != nil || len(missing) == 0 {
		return err
	}
	kube, err := l.Cluster.Operator()
	if err != nil {
		return err
	}
	var errs []error
	for name, id := range missing {
		patch, err := json.Marshal(map[string]any{"spec": map[string]string{"providerID": id}})
		if err == nil {
			_, err = kube.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
		}
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	names := slices.Sorted(maps.Keys(missing))
	l.Say("   Set the provider IDs of %d Nodes, as their operator: %s.", len(names), ui.JoinFirst(names, maxNamedNodes))
	return nil
}

// missingProviderIDs compares the lab's Nodes with its instances.
func (l *Lab) missingProviderIDs(
	ctx context.Context,
	template string,
) (missing map[string]string, blocked []string, err error) {
	kube, err := l.Cluster.Operator()
	if err != nil {
		return nil, nil, err
	}
	nodes, err := kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, nil, err
	}
	cloud, err := l.Cloud()
	if err != nil {
		return nil, nil, err
	}
	instances, err := cloud.ListInstances(ctx, client.InstanceFilter{Tags: []string{l.Tag()}})
	if err != nil {
		return nil, nil, err
	}
	return planProviderIDs(template, nodes.Items, instances)
}

// planProviderIDs gives the provider IDs that Nodes lack, by name, and says which Nodes cannot have theirs.
func planProviderIDs(
	template string,
	nodes []corev1.Node,
	instances []api.Instance,
) (missing map[string]string, blocked []string, err error) {
	byName := map[string]api.Instance{}
	for _, i := range instances { // A terminated one leaves its name to the next.
		name := strings.ToLower(i.Name)
		if _, known := byName[name]; !known || i.State != api.InstanceTerminated {
			byName[name] = i
		}
	}
	missing = map[string]string{}
	for _, node := range nodes {
		i, known := byName[node.Name]
		if !known {
			blocked = append(blocked, node.Name+" has no instance")
			continue
		}
		id, err := cluster.KubeletProviderID(template, cluster.MachineOf(i), i.Identities)
		switch have := node.Spec.ProviderID; {
		case err != nil:
			return nil, nil, fmt.Errorf("provider ID of Node %s: %w", node.Name, err)
		case have == "":
			missing[node.Name] = id
		case have != id:
			blocked = append(blocked, node.Name+" has "+have)
		}
	}
	return missing, blocked, nil
}
