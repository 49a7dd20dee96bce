// Package apply applies manifests to a cluster by server-side apply, so that
// doing it twice is the same as doing it once, and deletes them again.
//
// It knows nothing of what is in the manifests. Begin with Manifests and Owner.
package apply

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"
)

// fieldManager owns the fields that a lab applies to its own cluster.
const fieldManager = "ccmlab"

const labelManagedBy = "app.kubernetes.io/managed-by"

// Manifests applies every document of every file, in order, to a cluster that
// is the lab's own.
func Manifests(ctx context.Context, kubeconfig string, files ...[]byte) error {
	return Owner{kubeconfig: kubeconfig, name: fieldManager, force: true}.Apply(ctx, files...)
}

// Missing applies the documents whose object does not exist, and returns these as "Kind name".
// Objects that exist stay as they are.
func Missing(ctx context.Context, kubeconfig string, files ...[]byte) (made []string, err error) {
	o := Owner{kubeconfig: kubeconfig, name: fieldManager, force: true}
	err = forEachObject(ctx, kubeconfig, "applying", func(
		target dynamic.ResourceInterface,
		obj *unstructured.Unstructured,
	) error {
		_, err := target.Get(ctx, obj.GetName(), metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			return err
		}
		made = append(made, obj.GetKind()+" "+obj.GetName())
		return o.applyObject(ctx, target, obj)
	}, files...)
	return made, err
}

// Owner applies manifests as a field manager with a name of its own, which the API server keeps
// with every field that it sets.
type Owner struct {
	kubeconfig, name string
	force            bool
}

// Guest is the owner for a lab in a cluster that is not its own. No other lab has this name. A
// guest takes no field from another owner, and withdrawing leaves objects that others have
// applied, too.
func Guest(kubeconfig, name string) Owner {
	return Owner{kubeconfig: kubeconfig, name: fieldManager + "-" + name}
}

// Apply applies every document of every file, in order.
func (o Owner) Apply(ctx context.Context, files ...[]byte) error {
	return forEachObject(ctx, o.kubeconfig, "applying", func(
		target dynamic.ResourceInterface,
		obj *unstructured.Unstructured,
	) error {
		if !o.force {
			// In an object without any content nobody owns a field. Once this owner had applied
			// it, Withdraw would take it for its own.
			if have, err := target.Get(ctx, obj.GetName(), metav1.GetOptions{}); err == nil &&
				len(have.GetManagedFields()) == 0 {
				return nil
			}
		}
		return o.applyObject(ctx, target, obj)
	}, files...)
}

// applyObject applies one object, with a label, so that the owner owns at least one field.
func (o Owner) applyObject(
	ctx context.Context,
	target dynamic.ResourceInterface,
	obj *unstructured.Unstructured,
) error {
	labels := obj.GetLabels()
	if labels == nil {
		labels = map[string]string{}
	}
	labels[labelManagedBy] = fieldManager
	obj.SetLabels(labels)
	_, err := target.Apply(ctx, obj.GetName(), obj, metav1.ApplyOptions{FieldManager: o.name, Force: o.force})
	if apierrors.IsConflict(err) {
		err = fmt.Errorf("somebody has one by that name that says something else, and it is left alone: %w", err)
	}
	return err
}

// Withdraw deletes those objects in the files of which this owner alone owns fields. In objects
// that others have applied, too, it gives up its own fields.
func (o Owner) Withdraw(ctx context.Context, files ...[]byte) error {
	return forEachObject(ctx, o.kubeconfig, "deleting", func(
		target dynamic.ResourceInterface,
		obj *unstructured.Unstructured,
	) error {
		have, err := target.Get(ctx, obj.GetName(), metav1.GetOptions{})
		if err == nil {
			err = o.withdrawObject(ctx, target, have)
		}
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	}, files...)
}

// withdrawObject deletes one object, or gives up the owner's fields in it.
func (o Owner) withdrawObject(
	ctx context.Context,
	target dynamic.ResourceInterface,
	have *unstructured.Unstructured,
) error {
	ownsFields, sharedFields := false, false
	for _, f := range have.GetManagedFields() {
		if f.Manager == o.name {
			ownsFields = true
		} else {
			sharedFields = true
		}
	}
	switch {
	case !ownsFields:
		return nil
	case !sharedFields:
		uid := have.GetUID()
		return target.Delete(ctx, have.GetName(), metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
	}
	// Applying no field gives up all fields.
	none := &unstructured.Unstructured{}
	none.SetGroupVersionKind(have.GroupVersionKind())
	none.SetName(have.GetName())
	none.SetNamespace(have.GetNamespace())
	_, err := target.Apply(ctx, have.GetName(), none, metav1.ApplyOptions{FieldManager: o.name})
	return err
}

// forEachObject calls do with every document of every file, in order. doing names the action in
// errors.
func forEachObject(
	ctx context.Context,
	kubeconfig, doing string,
	do func(dynamic.ResourceInterface, *unstructured.Unstructured) error,
	files ...[]byte,
) error {
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	cfg.QPS, cfg.Burst = 100, 200
	disco, err := discovery.NewDiscoveryClientForConfig(cfg)
	if err != nil {
		return err
	}
	client, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return err
	}
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(disco))
	for _, file := range files {
		docs := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(file), 4096)
		for {
			var obj unstructured.Unstructured
			if err := docs.Decode(&obj.Object); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				return fmt.Errorf("reading a manifest: %w", err)
			}
			if len(obj.Object) == 0 {
				continue
			}
			if err := ctx.Err(); err != nil {
				return err
			}
			target, err := resourceFor(client, mapper, &obj)
			if err == nil {
				err = do(target, &obj)
			}
			if err != nil {
				return fmt.Errorf("%s %s %s: %w", doing, obj.GetKind(), obj.GetName(), err)
			}
		}
	}
	return nil
}

// resourceFor is the client for the kind and namespace of an object.
func resourceFor(
	client dynamic.Interface,
	mapper meta.RESTMapper,
	obj *unstructured.Unstructured,
) (dynamic.ResourceInterface, error) {
	gvk := obj.GroupVersionKind()
	mapping, err := mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		return nil, err
	}
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		return client.Resource(mapping.Resource).Namespace(obj.GetNamespace()), nil
	}
	return client.Resource(mapping.Resource), nil
}
