package ccm

// This file decides whether the instance of a Node exists. Deleting a Node on a wrong answer costs
// its pods, so there are three verdicts: the instance exists, it is gone, nothing is known. "Gone"
// needs a fresh answer of the cloud about that one instance; package doubt lets none pass that is not about
// our project. The instance is found by the Node's provider ID, or, where the Node has none, by its name
// and age. ANSWERS.md lists every answer that a cloud can give, and what follows.

//go:generate go test . -trimpath -tags=osusergo,netgo,sqlite_omit_load_extension -run ^TestAnswers$ -update-answers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	cloudprovider "k8s.io/cloud-provider"

	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

// verdict is what is known of the instance of a Node. Exactly one field is set.
type verdict struct {
	instance   *api.Instance // it exists
	goneReason string        // it is gone, and why that is certain
	err        error         // nothing is known
}

// existingInstance is the instance, or an error. The error wraps
// cloudprovider.InstanceNotFound exactly when the instance is gone.
func (v verdict) existingInstance() (*api.Instance, error) {
	if v.goneReason != "" {
		return nil, fmt.Errorf("%s: %w", v.goneReason, cloudprovider.InstanceNotFound)
	}
	return v.instance, v.err
}

// checkExistence is the verdict on the Node's instance.
func (i *instances) checkExistence(ctx context.Context, node *corev1.Node) verdict {
	if node.Spec.ProviderID == "" {
		return i.checkExistenceByName(ctx, node)
	}
	id, err := parseProviderID(node.Spec.ProviderID)
	if err != nil {
		return verdict{err: err}
	}
	return i.checkExistenceByID(ctx, id)
}

func (i *instances) checkExistenceByID(ctx context.Context, id string) verdict {
	instance, err := i.api.GetInstance(ctx, id)
	switch {
	case client.IsNotFound(err):
		return verdict{goneReason: "the cloud has no instance " + id}
	case err != nil:
		return verdict{err: err}
	case isEnded(instance.State):
		return verdict{goneReason: fmt.Sprintf("instance %s (%s) is %s", id, instance.Name, instance.State)}
	}
	return verdict{instance: instance}
}

// errNoSuchName does not mean that the instance is gone: an empty list may be broken or
// stale, and the instance may be yet to come.
var errNoSuchName = errors.New("no instance has that name")

// checkExistenceByName is checkExistence for a Node that has no provider ID yet.
func (i *instances) checkExistenceByName(ctx context.Context, node *corev1.Node) verdict {
	all, err := i.api.ListInstances(ctx, client.InstanceFilter{Name: node.Name})
	if err != nil {
		return verdict{err: err}
	}
	v, last := i.chooseByName(node.Name, all)
	switch {
	case last == nil:
		return v
	case !existedBeforeEnd(node, last):
		// The Node is of another instance, and a list that does not show that is stale.
		return verdict{err: fmt.Errorf("%w: %q; only %s had it, which ended before the Node registered",
			errNoSuchName, node.Name, last.ID)}
	}
	return i.checkExistenceByID(ctx, last.ID)
}

// existedBeforeEnd tells whether the Node existed before the ended instance of its name
// ended: after its end nothing of an instance is updated. The API server cuts creation times
// to seconds.
func existedBeforeEnd(node *corev1.Node, ended *api.Instance) bool {
	return node.CreationTimestamp.Add(time.Second).Before(ended.UpdatedAt)
}

// chooseByName is the verdict on the instances of that name. If all of them have ended there
// is none, and last is the one that ended last. The tag of the cluster decides, where an instance
// has one: other clusters of the project have Nodes of that name, too, and what is adopted is
// adopted for good, as a provider ID never changes.
func (i *instances) chooseByName(name string, all []api.Instance) (v verdict, last *api.Instance) {
	var tagged, untagged, others, gone []api.Instance
	for _, instance := range all {
		if !strings.EqualFold(instance.Name, name) { // A kubelet registers its host name in lower case.
			continue
		}
		switch isTagged := instance.Tags[contract.TagCluster]+instance.Tags[contract.TagClusterUID] != ""; {
		case isTagged && !i.identity.mayOwn(instance.Tags):
			others = append(others, instance)
		case isEnded(instance.State):
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
		return verdict{instance: &live[0]}, nil
	case len(live) > 1:
		return verdict{err: newAmbiguousError(name, live)}, nil
	case len(gone) == 0:
		if len(others) > 0 {
			return verdict{err: fmt.Errorf("%w in this cluster: %q is %s, which has the tag %s=%s", errNoSuchName,
				name, others[0].ID, contract.TagCluster, others[0].Tags[contract.TagCluster])}, nil
		}
		return verdict{err: fmt.Errorf("%w: %q", errNoSuchName, name)}, nil
	}
	ended := slices.MaxFunc(gone, func(a, b api.Instance) int { return a.UpdatedAt.Compare(b.UpdatedAt) })
	return verdict{}, &ended
}

// isEnded tells whether an instance is gone for a cluster. An instance that is still
// terminating is not: its pods may still be shutting down.
func isEnded(s api.InstanceState) bool { return s == api.InstanceTerminated }

// ambiguousError means that several instances have a Node's name.
type ambiguousError struct {
	name string
	ids  []string // sorted
}

func newAmbiguousError(name string, instances []api.Instance) *ambiguousError {
	e := &ambiguousError{name: name}
	for _, instance := range instances {
		e.ids = append(e.ids, instance.ID)
	}
	slices.Sort(e.ids)
	return e
}

func (e *ambiguousError) Error() string {
	return fmt.Sprintf("%d instances are named %q (%s); the CCM does not guess which is right",
		len(e.ids), e.name, strings.Join(e.ids, ", "))
}

func (e *ambiguousError) cause() cause {
	return cause{contract.ReasonInstanceAmbiguous, strings.Join(e.ids, " ")}
}
