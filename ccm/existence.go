package ccm

// Whether the machine behind a Node exists: the one place that decides it, for
// all who ask. Deleting a Node on a wrong answer costs its pods, so there are
// three verdicts, and "gone" is the rare one: only on the cloud's own and fresh
// word about that one instance, for our project. Which instance that is, a Node
// without a provider ID leaves to its name and age. ANSWERS.md lists every answer
// that a cloud can give, and what follows.

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

// knownInstances is the part of the inventory that says "yes, and it looks so".
type knownInstances interface {
	Instance(ctx context.Context, id string) (*api.Instance, error)
	InstancesNamed(ctx context.Context, name string) ([]api.Instance, error)
	// NoteInstance takes in what the cloud said of an instance of our project, so
	// that a list that lacks it costs one question and no more.
	NoteInstance(i api.Instance)
}

// verdict on the instance of a Node: exactly one field is set.
type verdict struct {
	exists *api.Instance
	gone   string // why that is certain
	err    error  // nothing is known
}

// found is the verdict as most callers want it. The error wraps
// cloudprovider.InstanceNotFound exactly when the instance is gone.
func (v verdict) found() (*api.Instance, error) {
	if v.gone != "" {
		return nil, fmt.Errorf("%s: %w", v.gone, cloudprovider.InstanceNotFound)
	}
	return v.exists, v.err
}

// confirmation asks the cloud itself.
type confirmation func(context.Context) verdict

// judge is the verdict on the Node's instance, by its provider ID or else by
// its name. What the inventory knows to exist costs no call.
func (i *instances) judge(ctx context.Context, node *corev1.Node) verdict {
	v, confirm := i.recall(ctx, node)
	if confirm != nil {
		return confirm(ctx)
	}
	return v
}

// remembered is the Node's instance by what the inventory can say alone; nil if
// the cloud would have to confirm that it has ended.
func (i *instances) remembered(ctx context.Context, node *corev1.Node) (*api.Instance, error) {
	v, _ := i.recall(ctx, node)
	return v.exists, v.err
}

// recall is what the inventory can say, or how to find out.
func (i *instances) recall(ctx context.Context, node *corev1.Node) (verdict, confirmation) {
	if node.Spec.ProviderID == "" {
		return i.recallNamed(ctx, node)
	}
	id, err := parseProviderID(node.Spec.ProviderID)
	if err != nil {
		return verdict{err: err}, nil
	}
	known, err := i.inventory.Instance(ctx, id)
	switch {
	case err != nil && !client.IsNotFound(err):
		return verdict{err: err}, nil
	case err != nil || known == nil || notThat(id, known) != nil || ended(known.State):
		return verdict{}, func(ctx context.Context) verdict { return i.ask(ctx, id) }
	}
	return i.ifOurs(ctx, known), nil
}

// ask has the cloud's fresh word about one instance.
func (i *instances) ask(ctx context.Context, id string) verdict {
	instance, err := i.api.GetInstance(ctx, id)
	if err != nil {
		notFound, err := i.project.definiteNotFound(ctx, err)
		if notFound {
			return verdict{gone: "the cloud has no instance " + id}
		}
		return verdict{err: err}
	}
	if err := notThat(id, instance); err != nil {
		return verdict{err: err}
	}
	v := i.ifOurs(ctx, instance)
	if v.exists != nil {
		i.inventory.NoteInstance(*instance)
	}
	if v.exists != nil && ended(instance.State) {
		return verdict{gone: fmt.Sprintf("instance %s (%s) is %s", id, instance.Name, instance.State)}
	}
	return v
}

// errNoSuchName is not "gone": an empty list may be a broken or a stale one,
// and the instance may be yet to come.
var errNoSuchName = errors.New("no instance has that name")

// recallNamed serves Nodes that have no provider ID yet.
func (i *instances) recallNamed(ctx context.Context, node *corev1.Node) (verdict, confirmation) {
	all, err := i.inventory.InstancesNamed(ctx, node.Name)
	if err != nil {
		return verdict{err: err}, nil
	}
	v, last := i.among(ctx, node.Name, all)
	if last == nil {
		return v, nil
	}
	return verdict{}, func(ctx context.Context) verdict {
		// A namesake that came since may be unknown to the inventory, and the
		// Node may be its.
		fresh, err := i.api.ListInstances(ctx, client.InstanceFilter{Name: node.Name})
		if err != nil {
			return verdict{err: err}
		}
		v, last := i.among(ctx, node.Name, append(fresh, *last))
		switch {
		case last == nil:
			return v
		case !outlived(node, last):
			// It is another's, and a list that does not show that one is stale.
			return verdict{err: fmt.Errorf("%w but the ended %s, and the Node came after that: %q", errNoSuchName, last.ID, node.Name)}
		}
		return i.ask(ctx, last.ID)
	}
}

// outlived tells whether the Node was there before its ended namesake's end,
// after which nothing of an instance changes. The API server cuts the time of a
// creation to seconds.
func outlived(node *corev1.Node, ended *api.Instance) bool {
	return node.CreationTimestamp.Add(time.Second).Before(ended.UpdatedAt)
}

// among chooses from a list by name. Where all of that name have ended, there
// is no verdict but the one that ended last.
func (i *instances) among(ctx context.Context, name string, all []api.Instance) (v verdict, last *api.Instance) {
	var live, gone []api.Instance
	for _, instance := range all {
		if instance.Name != name {
			continue
		}
		if err := i.mustBeOurs(ctx, &instance); err != nil {
			return verdict{err: err}, nil
		}
		if ended(instance.State) {
			gone = append(gone, instance)
		} else {
			live = append(live, instance)
		}
	}
	switch {
	case len(live) == 1:
		return verdict{exists: &live[0]}, nil
	case len(live) > 1:
		return verdict{err: newAmbiguous(name, live)}, nil
	case len(gone) == 0:
		// A list of another project's instances is as empty as this one.
		if err := i.project.check(ctx); err != nil {
			return verdict{err: err}, nil
		}
		return verdict{err: fmt.Errorf("%w: %q", errNoSuchName, name)}, nil
	}
	ended := slices.MaxFunc(gone, func(a, b api.Instance) int { return a.UpdatedAt.Compare(b.UpdatedAt) })
	return verdict{}, &ended
}

// notThat refuses an answer that is not about the instance that was asked for.
func notThat(id string, instance *api.Instance) error {
	if instance.ID != id || instance.State == "" {
		return fmt.Errorf("the cloud was asked for instance %s and its answer is not that: id %q, state %q", id, instance.ID, instance.State)
	}
	return nil
}

func (i *instances) ifOurs(ctx context.Context, instance *api.Instance) verdict {
	if err := i.mustBeOurs(ctx, instance); err != nil {
		return verdict{err: err}
	}
	return verdict{exists: instance}
}

func (i *instances) mustBeOurs(ctx context.Context, instance *api.Instance) error {
	ours, err := i.project.owns(ctx, instance.Project)
	if err == nil && !ours {
		err = fmt.Errorf("%w: instance %s belongs to project %s, which is not ours", errWrongProject, instance.ID, instance.Project)
	}
	return err
}

// ended tells whether an instance is gone for a cluster. One that is still
// terminating is not: its pods may yet be shutting down.
func ended(s api.InstanceState) bool { return s == api.InstanceTerminated }

// ambiguousError is several instances of a Node's name.
type ambiguousError struct {
	name string
	ids  []string // sorted
}

func newAmbiguous(name string, instances []api.Instance) *ambiguousError {
	e := &ambiguousError{name: name}
	for _, instance := range instances {
		e.ids = append(e.ids, instance.ID)
	}
	slices.Sort(e.ids)
	return e
}

func (e *ambiguousError) Error() string {
	return fmt.Sprintf("%d instances are named %q (%s); none is chosen by guess", len(e.ids), e.name, strings.Join(e.ids, ", "))
}

func (e *ambiguousError) cause() cause {
	return cause{contract.ReasonInstanceAmbiguous, strings.Join(e.ids, " ")}
}
