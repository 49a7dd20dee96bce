package main

import (
	"context"
	"fmt"
	"maps"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// nodeLabels watches the node's own object with the kubelet's credential. A cloud controller
// manager sets zone and region only after the node has registered.
type nodeLabels struct {
	name     string
	informer cache.SharedIndexInformer
}

func watchNodeLabels(ctx context.Context, config *restclient.Config, name string) (*nodeLabels, error) {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig: %w", err)
	}
	// The node authorizer allows a node to watch itself, with this selector.
	selectNode := func(options *metav1.ListOptions) {
		options.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
	}
	informer := coreinformers.NewFilteredNodeInformer(client, 0, cache.Indexers{}, selectNode)
	if err := informer.SetTransform(withLabelsOnly); err != nil {
		return nil, err
	}
	go informer.Run(ctx.Done())
	return &nodeLabels{name: name, informer: informer}, nil
}

// onChange has do called whenever the labels may have changed.
func (n *nodeLabels) onChange(do func()) error {
	_, err := n.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { do() },
		UpdateFunc: func(old, updated any) {
			if !maps.Equal(old.(*v1.Node).Labels, updated.(*v1.Node).Labels) {
				do()
			}
		},
	})
	return err
}

// withLabelsOnly is an informer's transform that saves memory.
func withLabelsOnly(object any) (any, error) {
	if node, ok := object.(*v1.Node); ok {
		return &v1.Node{ObjectMeta: metav1.ObjectMeta{
			Name: node.Name, UID: node.UID, ResourceVersion: node.ResourceVersion, Labels: node.Labels,
		}}, nil
	}
	return object, nil
}

// currentLabels returns the node's labels; none before the node has registered.
func (n *nodeLabels) currentLabels() map[string]string {
	if object, found, err := n.informer.GetStore().GetByKey(n.name); err == nil && found {
		return object.(*v1.Node).Labels
	}
	return nil
}

func (n *nodeLabels) currentZone() string { return n.currentLabels()[v1.LabelTopologyZone] }
