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
	instance   *api.Instance
	goneReason string // why that is certain
	err        error  // nothing is known
}

// existingInstance is the verdict as most callers want it. The error wraps
// cloudprovider.InstanceNotFound exactly when the instance is gone.
func (v verdict) existingInstance() (*api.Instance, error) {
	if v.goneReason != "" {
		return nil, fmt.Errorf("%s: %w", v.goneReason, cloudprovider.InstanceNotFound)
	}
	return v.instance, v.err
}

// confirmation asks the cloud itself.
type confirmation func(context.Context) verdict

// checkExistence is the verdict on the Node's instance, by its provider ID or else by
// its name. What the inventory knows to exist costs no call.
func (i *instances) checkExistence(ctx context.Context, node *corev1.Node) verdict {
	v, confirm := i.checkInventory(ctx, node)
	if confirm != nil {
		return confirm(ctx)
	}
	return v
}

// instanceFromInventory is the Node's instance by what the inventory can say alone; nil if
// the cloud would have to confirm that it has ended.
func (i *instances) instanceFromInventory(ctx context.Context, node *corev1.Node) (*api.Instance, error) {
	v, _ := i.checkInventory(ctx, node)
	return v.instance, v.err
}

// checkInventory is what the inventory can say, or how to find out.
func (i *instances) checkInventory(ctx context.Context, node *corev1.Node) (verdict, confirmation) {
	if node.Spec.ProviderID == "" {
		return i.checkInventoryByName(ctx, node)
	}
	id, err := parseProviderID(node.Spec.ProviderID)
	if err != nil {
		return verdict{err: err}, nil
	}
	known, err := i.inventory.Instance(ctx, id)
	switch {
	case err != nil && !client.IsNotFound(err):
		return verdict{err: err}, nil
	case err != nil || known == nil || checkAnswer(id, known) != nil || isEnded(known.State):
		return verdict{}, func(ctx context.Context) verdict { return i.askCloud(ctx, id) }
	}
	return i.verdictIfOurs(ctx, known), nil
}

// askCloud has the cloud's fresh word about one instance.
func (i *instances) askCloud(ctx context.Context, id string) verdict {
	instance, err := i.api.GetInstance(ctx, id)
	if err != nil {
		notFound, err := i.project.isDefiniteNotFound(ctx, err)
		if notFound {
			return verdict{goneReason: "the cloud has no instance " + id}
		}
		return verdict{err: err}
	}
	if err := checkAnswer(id, instance); err != nil {
		return verdict{err: err}
	}
	v := i.verdictIfOurs(ctx, instance)
	if v.instance != nil {
		i.inventory.NoteInstance(*instance)
	}
	if v.instance != nil && isEnded(instance.State) {
		return verdict{goneReason: fmt.Sprintf("instance %s (%s) is %s", id, instance.Name, instance.State)}
	}
	return v
}

// errNoSuchName is not "gone": an empty list may be a broken or a stale one,
// and the instance may be yet to come.
var errNoSuchName = errors.New("no instance has that name")

// checkInventoryByName serves Nodes that have no provider ID yet.
func (i *instances) checkInventoryByName(ctx context.Context, node *corev1.Node) (verdict, confirmation) {
	all, err := i.inventory.InstancesNamed(ctx, node.Name)
	if err != nil {
		return verdict{err: err}, nil
	}
	v, last := i.chooseByName(ctx, node.Name, all)
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
		v, last := i.chooseByName(ctx, node.Name, append(fresh, *last))
		switch {
		case last == nil:
			return v
		case !existedBeforeEnd(node, last):
			// It is another's, and a list that does not show that one is stale.
			return verdict{err: fmt.Errorf("%w but the ended %s, and the Node came after that: %q", errNoSuchName, last.ID, node.Name)}
		}
		return i.askCloud(ctx, last.ID)
	}
}

// existedBeforeEnd tells whether the Node was there before its ended namesake's end,
// after which nothing of an instance changes. The API server cuts the time of a
// creation to seconds.
func existedBeforeEnd(node *corev1.Node, ended *api.Instance) bool {
	return node.CreationTimestamp.Add(time.Second).Before(ended.UpdatedAt)
}

// chooseByName chooses from a list by name. Where all of that name have ended, there
// is no verdict but the one that ended last.
func (i *instances) chooseByName(ctx context.Context, name string, all []api.Instance) (v verdict, last *api.Instance) {
	var live, gone []api.Instance
	for _, instance := range all {
		if instance.Name != name {
			continue
		}
		if err := i.checkProject(ctx, &instance); err != nil {
			return verdict{err: err}, nil
		}
		if isEnded(instance.State) {
			gone = append(gone, instance)
		} else {
			live = append(live, instance)
		}
	}
	switch {
	case len(live) == 1:
		return verdict{instance: &live[0]}, nil
	case len(live) > 1:
		return verdict{err: newAmbiguousError(name, live)}, nil
	case len(gone) == 0:
		// A list of another project's instances is as empty as this one.
		if err := i.project.checkToken(ctx); err != nil {
			return verdict{err: err}, nil
		}
		return verdict{err: fmt.Errorf("%w: %q", errNoSuchName, name)}, nil
	}
	ended := slices.MaxFunc(gone, func(a, b api.Instance) int { return a.UpdatedAt.Compare(b.UpdatedAt) })
	return verdict{}, &ended
}

// checkAnswer refuses an answer that is not about the instance that was asked for.
func checkAnswer(id string, instance *api.Instance) error {
	if instance.ID != id || instance.State == "" {
		return fmt.Errorf("the cloud was asked for instance %s and its answer is not that: id %q, state %q", id, instance.ID, instance.State)
	}
	return nil
}

func (i *instances) verdictIfOurs(ctx context.Context, instance *api.Instance) verdict {
	if err := i.checkProject(ctx, instance); err != nil {
		return verdict{err: err}
	}
	return verdict{instance: instance}
}

func (i *instances) checkProject(ctx context.Context, instance *api.Instance) error {
	ours, err := i.project.ownsProject(ctx, instance.Project)
	if err == nil && !ours {
		err = fmt.Errorf("%w: instance %s belongs to project %s, which is not ours", errWrongProject, instance.ID, instance.Project)
	}
	return err
}

// isEnded tells whether an instance is gone for a cluster. One that is still
// terminating is not: its pods may yet be shutting down.
func isEnded(s api.InstanceState) bool { return s == api.InstanceTerminated }

// ambiguousError is several instances of a Node's name.
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
	return fmt.Sprintf("%d instances are named %q (%s); none is chosen by guess", len(e.ids), e.name, strings.Join(e.ids, ", "))
}

func (e *ambiguousError) cause() cause {
	return cause{contract.ReasonInstanceAmbiguous, strings.Join(e.ids, " ")}
}
