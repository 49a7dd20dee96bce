package scenarios

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/cloud"
	"github.com/ccmlab/ccmlab/fakecloud/faults"
)

// Selector selects resources. Empty fields do not narrow it.
type Selector struct {
	Name string
	Tag  string // key=value, or key
	Zone string // of instances
	// Pick takes so many of the selected resources at random, or all if 0. For the same
	// seed and resources, the pick is the same.
	Pick int
}

// Step is a fault, or an action on selected resources.
type Step struct {
	At    time.Duration
	Fault *faults.Spec
	// For is how long the fault is in force; if 0, until the scenario is stopped.
	For                      time.Duration
	Action                   string
	Instances, LoadBalancers *Selector
}

// Spec is a scenario.
type Spec struct {
	Name, Description string
	// Seed is for picks, and for faults that draw and have no seed of their own; if 0, one
	// is drawn.
	Seed  int64
	Steps []Step
}

// Delete is the only action on load balancers. The others are on instances.
const Delete = "delete"

func (r *Runner) checkSpec(ctx context.Context, s Spec) error {
	var p faults.Problems
	if len(s.Steps) == 0 {
		p.Add("steps", "must not be empty")
	}
	for i, step := range s.Steps {
		at := fmt.Sprintf("steps.%d", i)
		step.checkStep(at, &p)
		if step.Fault == nil {
			continue
		}
		err := r.faults.Check(ctx, *step.Fault, r.now())
		var refused *cloud.Error
		switch {
		case errors.As(err, &refused):
			for _, f := range refused.Fields {
				p.Add(at+".fault."+f.Path, "%s", f.Message)
			}
		case err != nil:
			return err
		}
	}
	return p.Refuse("this scenario")
}

func (s Step) checkStep(at string, p *faults.Problems) {
	selector, where := s.Instances, at+".instances"
	if s.Action == Delete {
		selector, where = s.LoadBalancers, at+".loadBalancers"
	}
	switch {
	case s.Fault != nil && s.Action != "":
		p.Add(at+".action", "cannot go with fault: make two steps")
	case s.Fault != nil && (s.Instances != nil || s.LoadBalancers != nil):
		p.Add(at+".instances", "and loadBalancers go with action: a fault says what it is for in its match")
	case s.Fault != nil:
	case s.Action == "":
		p.Add(at, "does nothing: give fault, or action")
	case s.For != 0:
		p.Add(at+".for", "goes with fault: undo an action with another step")
	case selector == nil:
		p.Add(where, "is what action %s needs", s.Action)
	case *selector == Selector{}:
		p.Add(where, "would be all there are: give name, tag, zone or pick")
	case s.Instances != nil && s.LoadBalancers != nil:
		p.Add(at+".loadBalancers", "cannot go with instances: make two steps")
	case s.Action == Delete && selector.Zone != "":
		p.Add(where+".zone", "is for instances: a load balancer is in none")
	case s.Action != Delete && instanceActions[s.Action] == nil:
		p.Add(at+".action", "is %q: choose start, stop, reboot, crash, terminate or delete", s.Action)
	}
}
