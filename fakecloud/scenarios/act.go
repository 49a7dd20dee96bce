package scenarios

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/ccmlab/ccmlab/fakecloud/cloud"
)

// instanceActions are the actions on instances.
var instanceActions = map[string]func(*cloud.Cloud, context.Context, cloud.Project, string) (cloud.Instance, cloud.Outcome, error){
	"start":     (*cloud.Cloud).StartInstance,
	"stop":      (*cloud.Cloud).StopInstance,
	"reboot":    (*cloud.Cloud).RebootInstance,
	"crash":     (*cloud.Cloud).CrashInstance,
	"terminate": (*cloud.Cloud).TerminateInstance,
}

// describeStep says what a step does.
func (s Step) describeStep() string {
	switch {
	case s.Fault != nil && s.For > 0:
		return "fault for " + s.For.String()
	case s.Fault != nil:
		return "fault"
	case s.Action == Delete:
		return Delete + " load balancers" + s.LoadBalancers.describeSelector()
	}
	return s.Action + " instances" + s.Instances.describeSelector()
}

func (s *Selector) describeSelector() string {
	text := ""
	for _, part := range []struct{ name, value string }{{"name", s.Name}, {"tag", s.Tag}, {"zone", s.Zone}} {
		if part.value != "" {
			text += " " + part.name + "=" + part.value
		}
	}
	return text
}

// newRand makes a source of randomness that is the same for the same seed and use.
func (one *run) newRand(use uint64) *rand.Rand { return rand.New(rand.NewPCG(uint64(one.Seed), use)) }

// resourceRef is a resource that a selector found.
type resourceRef struct{ id, name string }

// runAction does a step's action to each resource that it selects, and lists them.
func (r *Runner) runAction(ctx context.Context, one *run, step Step) (string, error) {
	found, selector := r.selectInstances, step.Instances
	if step.Action == Delete {
		found, selector = r.selectLoadBalancers, step.LoadBalancers
	}
	all, err := found(ctx, one.project, *selector)
	if err != nil {
		return "", err
	}
	if len(all) == 0 || len(all) < selector.Pick {
		return "", fmt.Errorf("%d match%s, which is too few", len(all), selector.describeSelector())
	}
	var done []string
	for _, t := range one.pickResources(all, selector.Pick) {
		if step.Action == Delete {
			_, _, err = r.cloud.DeleteLoadBalancer(ctx, one.project, t.id)
		} else {
			_, _, err = instanceActions[step.Action](r.cloud, ctx, one.project, t.id)
		}
		if err != nil {
			return "", err
		}
		done = append(done, t.name+" ("+t.id+")")
	}
	return step.Action + " " + strings.Join(done, ", "), nil
}

// pickResources picks n resources at random, or all if n is 0. It sorts them by name
// first, as names are the same in a cloud that is set up again.
func (one *run) pickResources(all []resourceRef, n int) []resourceRef {
	slices.SortFunc(all, func(a, b resourceRef) int {
		return cmp.Or(cmp.Compare(a.name, b.name), cmp.Compare(a.id, b.id))
	})
	if n == 0 {
		return all
	}
	var picked []resourceRef
	for _, i := range one.newRand(0).Perm(len(all))[:n] {
		picked = append(picked, all[i])
	}
	return picked
}

const pageSize = 500

func (s Selector) toFilter() cloud.Filter {
	f := cloud.Filter{Name: s.Name, Zone: s.Zone, Limit: pageSize}
	if s.Tag != "" {
		f.Tags = []cloud.TagFilter{cloud.ParseTagFilter(s.Tag)}
	}
	return f
}

func (r *Runner) selectInstances(ctx context.Context, p cloud.Project, s Selector) ([]resourceRef, error) {
	f := s.toFilter()
	for _, state := range []cloud.InstanceState{
		cloud.InstancePending, cloud.InstanceRunning, cloud.InstanceStopping, cloud.InstanceStopped,
		cloud.InstanceError,
	} {
		f.States = append(f.States, string(state))
	}
	return listEveryPage(f, func(f cloud.Filter) ([]cloud.Instance, bool, error) {
		return r.cloud.ListInstances(ctx, p, f)
	},
		func(in cloud.Instance) resourceRef { return resourceRef{in.ID, in.Name} })
}

func (r *Runner) selectLoadBalancers(ctx context.Context, p cloud.Project, s Selector) ([]resourceRef, error) {
	return listEveryPage(s.toFilter(), func(f cloud.Filter) ([]cloud.LoadBalancer, bool, error) {
		return r.cloud.ListLoadBalancers(ctx, p, f)
	},
		func(lb cloud.LoadBalancer) resourceRef { return resourceRef{lb.ID, lb.Name} })
}

func listEveryPage[T any](
	f cloud.Filter,
	page func(cloud.Filter) ([]T, bool, error),
	of func(T) resourceRef,
) ([]resourceRef, error) {
	var all []resourceRef
	for {
		items, more, err := page(f)
		if err != nil {
			return nil, err
		}
		for _, item := range items {
			all = append(all, of(item))
		}
		if !more {
			return all, nil
		}
		f.After = all[len(all)-1].id
	}
}
