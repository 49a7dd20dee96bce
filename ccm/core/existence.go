package core

// This file decides whether the instance of a Node exists. Deleting a Node on a wrong answer costs
// its pods, so there are three verdicts: the instance exists, it is gone, nothing is known. "Gone"
// needs a fresh answer of the cloud about that one instance; package doubt lets none pass that is not about
// our project. The instance is found by the Node's provider ID, or, where the Node has none, by its name
// and age. ANSWERS.md lists every answer that a cloud can give, and what follows.

//go:generate go test -trimpath -tags=osusergo,netgo,sqlite_omit_load_extension -run ^TestAnswers$ -update-answers

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	cloudprovider "k8s.io/cloud-provider"
	cloudproviderapi "k8s.io/cloud-provider/api"

	"github.com/ccmlab/ccmlab/ccm/annotations"
	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

// goneError is why it is certain that an instance is gone. It is a cloudprovider.InstanceNotFound.
type goneError string

func (e goneError) Error() string { return string(e) }

// Is makes it a cloudprovider.InstanceNotFound.
func (e goneError) Is(target error) bool { return target == cloudprovider.InstanceNotFound }

// checkExistence returns the Node's instance. A goneError means that it is gone, any other that nothing is known.
func (i *instances) checkExistence(ctx context.Context, node *corev1.Node) (*api.Instance, error) {
	if node.Spec.ProviderID == "" {
		return i.checkExistenceByName(ctx, node)
	}
	id, err := parseProviderID(node.Spec.ProviderID)
	if err != nil {
		return nil, err
	}
	return i.checkExistenceByID(ctx, id)
}

func (i *instances) checkExistenceByID(ctx context.Context, id string) (*api.Instance, error) {
	instance, err := i.api.GetInstance(ctx, id)
	switch {
	case client.IsNotFound(err):
		return nil, goneError("the cloud has no instance " + id)
	case err != nil:
		return nil, err
	case IsEnded(instance.State):
		return nil, goneError(fmt.Sprintf("instance %s (%s) is %s", id, instance.Name, instance.State))
	}
	return instance, nil
}

// errNoSuchName does not mean that the instance is gone: an empty list may be broken or
// stale, and the instance may be yet to come.
var errNoSuchName = newReasonError(contract.ReasonInstanceNotFound, "no instance has that name")

// checkExistenceByName is checkExistence for a Node that has no provider ID yet. The tag of the cluster decides, where
// an instance has one: other clusters of the project have Nodes of that name, too, and what is adopted is adopted for
// good, as a provider ID never changes.
func (i *instances) checkExistenceByName(ctx context.Context, node *corev1.Node) (*api.Instance, error) {
	all, err := i.api.ListInstances(ctx, client.InstanceFilter{Name: node.Name})
	if err != nil {
		return nil, err
	}
	var tagged, untagged, others, gone []api.Instance
	for _, instance := range all {
		if !strings.EqualFold(instance.Name, node.Name) { // A kubelet registers its host name in lower case.
			continue
		}
		switch isTagged := instance.Tags[contract.TagCluster]+instance.Tags[contract.TagClusterUID] != ""; {
		case isTagged && !i.cluster.MayOwn(instance.Tags):
			others = append(others, instance)
		case IsEnded(instance.State):
			gone = append(gone, instance)
		case isTagged:
			tagged = append(tagged, instance)
		default:
			untagged = append(untagged, instance)
		}
	}
	live := tagged
	if len(live) == 0 {
		live = untagged
	}
	switch {
	case len(live) == 1:
		return &live[0], nil
	case len(live) > 1:
		return nil, newAmbiguousError(node.Name, live)
	case len(gone) > 0:
		return i.checkExistenceOfEnded(ctx, node, gone)
	case len(others) > 0:
		return nil, fmt.Errorf("%w in this cluster: %q is %s, which has the tag %s=%s", errNoSuchName,
			node.Name, others[0].ID, contract.TagCluster, others[0].Tags[contract.TagCluster])
	}
	return nil, fmt.Errorf("%w: %q", errNoSuchName, node.Name)
}

// checkExistenceOfEnded is checkExistence for a Node all of whose namesakes have ended. The Node is of the one that
// ended last if it registered before that end, after which nothing of an instance is updated. Otherwise it is of
// another instance, and the list that does not show that one is stale.
func (i *instances) checkExistenceOfEnded(
	ctx context.Context, node *corev1.Node, gone []api.Instance,
) (*api.Instance, error) {
	last := slices.MaxFunc(gone, func(a, b api.Instance) int { return a.UpdatedAt.Compare(b.UpdatedAt) })
	registered := node.CreationTimestamp.Add(time.Second) // The API server cuts it to seconds.
	if !registered.Before(last.UpdatedAt) {
		return nil, fmt.Errorf("%w: %q; only %s had it, which ended before the Node registered",
			errNoSuchName, node.Name, last.ID)
	}
	return i.checkExistenceByID(ctx, last.ID)
}

// IsEnded tells whether an instance is gone for a cluster. An instance that is still
// terminating is not: its pods may still be shutting down.
func IsEnded(s api.InstanceState) bool { return s == api.InstanceTerminated }

// newAmbiguousError means that several instances have a Node's name.
func newAmbiguousError(name string, instances []api.Instance) error {
	var ids []string
	for _, instance := range instances {
		ids = append(ids, instance.ID)
	}
	slices.Sort(ids)
	return &reasonError{contract.ReasonInstanceAmbiguous, strings.Join(ids, " "), fmt.Errorf(
		"%d instances are named %q (%s); the CCM does not guess which is right", len(ids), name, strings.Join(ids, ", "))}
}

// parseProviderID returns the instance's ID. It is an error for the ID of any other
// cloud: such a Node is not ours to judge.
func parseProviderID(id string) (string, error) {
	instanceID, ok := contract.InstanceIDFromProviderID(id)
	if !ok {
		return "", &reasonError{contract.ReasonForeignProviderID, id, fmt.Errorf(
			"provider ID %s is not of the form %s<instance-id>", annotations.Quote(id), contract.ProviderIDPrefix)}
	}
	return instanceID, nil
}

// errNoProviderID means that a Node has no provider ID, and that no controller will set one.
var errNoProviderID = newReasonError(contract.ReasonProviderIDMissing,
	"it has no provider ID, and no taint %s, without which no controller sets one; "+
		"it gets no route and is not a load balancer target", cloudproviderapi.TaintExternalCloudProvider)

// CheckOwnNode fails for a Node that is not ours: it has another cloud's provider ID, or none and no
// taint with which it would get one.
func CheckOwnNode(node *corev1.Node) error {
	if node.Spec.ProviderID != "" {
		_, err := parseProviderID(node.Spec.ProviderID)
		return err
	}
	if !IsUninitialized(node) {
		return errNoProviderID
	}
	return nil
}

// IsUninitialized tells whether the Node waits to be initialized.
func IsUninitialized(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool {
		return t.Key == cloudproviderapi.TaintExternalCloudProvider
	})
}
