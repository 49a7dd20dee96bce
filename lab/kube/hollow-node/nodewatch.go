package main

import (
	"context"
	"fmt"
	"maps"
	"sync/atomic"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// nodeWatch watches the node's own object with the kubelet's credential. A cloud controller
// manager sets zone and region only after the node has registered.
type nodeWatch struct {
	name     string
	informer cache.SharedIndexInformer
	// last is the object as it was last seen. It stays when the object is deleted, as in kube-proxy
	// (pkg/proxy/node.go, NodeManager).
	last atomic.Pointer[v1.Node]
}

func startNodeWatch(ctx context.Context, config *restclient.Config, name string) (*nodeWatch, error) {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig: %w", err)
	}
	// The node authorizer allows a node to watch itself, with this selector.
	selectNode := func(options *metav1.ListOptions) {
		options.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
	}
	informer := coreinformers.NewFilteredNodeInformer(client, 0, cache.Indexers{}, selectNode)
	if err := informer.SetTransform(reduceNode); err != nil {
		return nil, err
	}
	n := &nodeWatch{name: name, informer: informer}
	_, err = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(node any) { n.last.Store(node.(*v1.Node)) },
		UpdateFunc: func(_, node any) { n.last.Store(node.(*v1.Node)) },
	})
	if err != nil {
		return nil, err
	}
	go informer.Run(ctx.Done())
	return n, nil
}

// onLabelsChange has do called whenever the labels may have changed.
func (n *nodeWatch) onLabelsChange(do func()) error {
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

// reduceNode is an informer's transform that saves memory: it keeps labels, and what kube-proxy's health
// depends on.
func reduceNode(object any) (any, error) {
	if node, ok := object.(*v1.Node); ok {
		return &v1.Node{
			ObjectMeta: metav1.ObjectMeta{
				Name: node.Name, UID: node.UID, ResourceVersion: node.ResourceVersion, Labels: node.Labels,
				DeletionTimestamp: node.DeletionTimestamp,
			},
			Spec: v1.NodeSpec{Taints: node.Spec.Taints},
		}, nil
	}
	return object, nil
}

// lastSeen returns the node's own object, nil before it has registered.
func (n *nodeWatch) lastSeen() *v1.Node { return n.last.Load() }

// currentLabels returns the node's labels; none before the node has registered.
func (n *nodeWatch) currentLabels() map[string]string {
	if object, found, err := n.informer.GetStore().GetByKey(n.name); err == nil && found {
		return object.(*v1.Node).Labels
	}
	return nil
}

func (n *nodeWatch) currentZone() string { return n.currentLabels()[v1.LabelTopologyZone] }
