package core

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// OnDeletion has forget called with the UID of each Node and Service that is deleted, for rings that remember
// something of it. Call it before the informers start.
func OnDeletion(shared informers.SharedInformerFactory, forget func(types.UID)) {
	handler := cache.ResourceEventHandlerFuncs{DeleteFunc: func(obj any) {
		if uid, ok := DeletedUID(obj); ok {
			forget(uid)
		}
	}}
	core := shared.Core().V1()
	for _, informer := range []cache.SharedIndexInformer{core.Nodes().Informer(), core.Services().Informer()} {
		if _, err := informer.AddEventHandler(handler); err != nil {
			klog.ErrorS(err, "Cannot watch deletions: what is remembered of deleted objects stays in memory")
		}
	}
}

// DeletedUID is the UID of an object that an informer reports as deleted; false for another type.
func DeletedUID(obj any) (types.UID, bool) {
	if last, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = last.Obj
	}
	object, ok := obj.(metav1.Object)
	if !ok {
		return "", false
	}
	return object.GetUID(), true
}
