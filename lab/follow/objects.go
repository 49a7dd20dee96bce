// Package follow tells what is new, each thing once: changes of an API server's objects, and calls of a
// cloud that lists them again and again. The lab's timeline and the conformance suite's recorder follow
// both with it and put what is new into their own words. Begin with Objects and Calls.
package follow

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

// Objects calls fn for each change of an informer's objects: before is nil for a new object, after is nil
// for a deleted one. isNew says of an object of the first list whether it counts as new. An error means
// that the informer was stopped.
func Objects[O any](informer cache.SharedIndexInformer, isNew func(*O) bool, fn func(before, after *O)) error {
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerDetailedFuncs{
		AddFunc: func(obj any, first bool) {
			if after, ok := obj.(*O); ok && (!first || isNew(after)) {
				fn(nil, after)
			}
		},
		UpdateFunc: func(was, is any) {
			before, ok1 := was.(*O)
			after, ok2 := is.(*O)
			if ok1 && ok2 {
				fn(before, after)
			}
		},
		DeleteFunc: func(obj any) {
			if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = tombstone.Obj
			}
			if before, ok := obj.(*O); ok {
				fn(before, nil)
			}
		},
	})
	return err
}

// StripObject is an informer's transform that removes large fields, which nobody compares, to save memory.
func StripObject(obj any) (any, error) {
	if o, ok := obj.(metav1.Object); ok {
		o.SetManagedFields(nil)
	}
	if n, ok := obj.(*corev1.Node); ok {
		n.Status.Images = nil
	}
	return obj, nil
}
