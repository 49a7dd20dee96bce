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

// actions are those on instances.
var actions = map[string]func(*cloud.Cloud, context.Context, cloud.Project, string) (cloud.Instance, cloud.Outcome, error){
	"start":     (*cloud.Cloud).StartInstance,
	"stop":      (*cloud.Cloud).StopInstance,
	"reboot":    (*cloud.Cloud).RebootInstance,
	"crash":     (*cloud.Cloud).CrashInstance,
	"terminate": (*cloud.Cloud).TerminateInstance,
}

// does says what a step is about.
func (s Step) does() string {
	switch {
	case s.Fault != nil && s.For > 0:
		return "fault for " + s.For.String()
	case s.Fault != nil:
		return "fault"
	case s.Action == Delete:
		return Delete + " load balancers" + s.LoadBalancers.text()
	}
	return s.Action + " instances" + s.Instances.text()
}

func (s *Selector) text() string {
	text := ""
	for _, part := range []struct{ name, value string }{{"name", s.Name}, {"tag", s.Tag}, {"zone", s.Zone}} {
		if part.value != "" {
			text += " " + part.name + "=" + part.value
		}
	}
	return text
}

// draw is a source that is the same for the same seed and use.
func (one *run) draw(use uint64) *rand.Rand { return rand.New(rand.NewPCG(uint64(one.Seed), use)) }

// thing is a resource that a selector may find.
type thing struct{ id, name string }

// act does a step's action to each resource that it selects, and says to which.
func (r *Runner) act(ctx context.Context, one *run, step Step) (string, error) {
	found, selector := r.instances, step.Instances
	if step.Action == Delete {
		found, selector = r.balancers, step.LoadBalancers
	}
	all, err := found(ctx, one.project, *selector)
	if err != nil {
		return "", err
	}
	if len(all) == 0 || len(all) < selector.Pick {
		return "", fmt.Errorf("%d match%s, which is too few", len(all), selector.text())
	}
	var done []string
	for _, t := range one.pick(all, selector.Pick) {
		if step.Action == Delete {
			_, _, err = r.cloud.DeleteLoadBalancer(ctx, one.project, t.id)
		} else {
			_, _, err = actions[step.Action](r.cloud, ctx, one.project, t.id)
		}
		if err != nil {
			return "", err
		}
		done = append(done, t.name+" ("+t.id+")")
	}
	return step.Action + " " + strings.Join(done, ", "), nil
}

// pick takes n of them, or all if n is 0. It goes by names, which a cloud that is
// set up anew has again.
func (one *run) pick(all []thing, n int) []thing {
	slices.SortFunc(all, func(a, b thing) int { return cmp.Or(cmp.Compare(a.name, b.name), cmp.Compare(a.id, b.id)) })
	if n == 0 {
		return all
	}
	var picked []thing
	for _, i := range one.draw(0).Perm(len(all))[:n] {
		picked = append(picked, all[i])
	}
	return picked
}

const pageSize = 500

func (s Selector) filter() cloud.Filter {
	f := cloud.Filter{Name: s.Name, Zone: s.Zone, Limit: pageSize}
	if s.Tag != "" {
		f.Tags = []cloud.TagFilter{cloud.ParseTagFilter(s.Tag)}
	}
	return f
}

func (r *Runner) instances(ctx context.Context, p cloud.Project, s Selector) ([]thing, error) {
	f := s.filter()
	for _, state := range []cloud.InstanceState{cloud.InstancePending, cloud.InstanceRunning, cloud.InstanceStopping, cloud.InstanceStopped, cloud.InstanceError} {
		f.States = append(f.States, string(state))
	}
	return everyPage(f, func(f cloud.Filter) ([]cloud.Instance, bool, error) { return r.cloud.ListInstances(ctx, p, f) },
		func(in cloud.Instance) thing { return thing{in.ID, in.Name} })
}

func (r *Runner) balancers(ctx context.Context, p cloud.Project, s Selector) ([]thing, error) {
	return everyPage(s.filter(), func(f cloud.Filter) ([]cloud.LoadBalancer, bool, error) { return r.cloud.ListLoadBalancers(ctx, p, f) },
		func(lb cloud.LoadBalancer) thing { return thing{lb.ID, lb.Name} })
}

func everyPage[T any](f cloud.Filter, page func(cloud.Filter) ([]T, bool, error), of func(T) thing) ([]thing, error) {
	var all []thing
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
