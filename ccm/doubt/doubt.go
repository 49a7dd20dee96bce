// Package doubt turns answers on which nobody may act into errors: answers about another project than
// the CCM's, and about another resource than the one that was asked for. So a caller may take "not found"
// and an empty list as the cloud's word. A token of another project shows none of our resources, and that
// must never delete a Node.
//
// An answer that lacks a field is refused by fakecloud/client before.
package doubt

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/ccm/core"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

// wrongProjectError means that an answer, or the token in use, is not of our project.
type wrongProjectError string

func (e wrongProjectError) Error() string { return "wrong project: " + string(e) }

// Cause is what core.CauseOf returns for it.
func (wrongProjectError) Cause() core.Cause { return core.Cause{Reason: contract.ReasonWrongProject} }

// errTokenChanged means that an answer may be about the project of the former token.
var errTokenChanged = errors.New("the cloud token has changed meanwhile")

// tokenPeriod is how often the stream's token is compared with the one in use.
const tokenPeriod = 2 * time.Second

// Source is the cloud whose answers are checked.
type Source interface {
	core.Cloud
	// Project returns the project of the token in use.
	Project(ctx context.Context) (*api.Project, error)
	// Follow calls fn for each event of the cloud: see client.Client.Follow.
	Follow(
		ctx context.Context, after int64, fn func(api.Event) error, onBreak func(error), only ...client.EventFilter,
	) error
}

// Cloud is a core.Cloud of definite answers. Changes are passed on: their versions and names protect them.
// Safe for concurrent use.
type Cloud struct {
	Source
	project string // ours, by name or ID
	// token tells tokens apart: the cloud is asked for its project again when it returns another value.
	token  func() string
	asking singleflight.Group
	known  atomic.Pointer[knownToken]
}

// knownToken is a token, as Cloud.token tells it apart, that belongs to our project.
type knownToken struct{ token, projectID string }

// Reject returns the cloud with definite answers about the project, which is given by name or ID. What
// token returns must change when the token in use does.
func Reject(source Source, projectNameOrID string, token func() string) *Cloud {
	return &Cloud{Source: source, project: projectNameOrID, token: token}
}

// CheckToken fails unless the token in use belongs to our project.
func (c *Cloud) CheckToken(ctx context.Context) error {
	_, err := c.projectID(ctx)
	return err
}

// projectID returns our project's ID. It fails unless the token in use belongs to the project. The cloud is asked once
// for each token.
func (c *Cloud) projectID(ctx context.Context) (string, error) {
	token := c.token()
	if known := c.known.Load(); known != nil && known.token == token {
		return known.projectID, nil
	}
	id, err, _ := c.asking.Do(token, func() (any, error) {
		found, err := c.Project(ctx)
		switch {
		case err != nil:
			return "", fmt.Errorf("asking the cloud for our project: %w", err)
		case found.Name != c.project && found.ID != c.project:
			return "", wrongProjectError(fmt.Sprintf("the cloud token belongs to project %s (%s), "+
				"but this CCM is configured for %q", found.Name, found.ID, c.project))
		case c.token() != token:
			return "", errTokenChanged
		}
		c.known.Store(&knownToken{token, found.ID})
		return found.ID, nil
	})
	return id.(string), err
}

// GetInstance fails with a client.IsNotFound error only if our project has no such instance.
func (c *Cloud) GetInstance(ctx context.Context, id string) (*api.Instance, error) {
	return one(ctx, c, id, c.Source.GetInstance)
}

// GetLoadBalancer fails with a client.IsNotFound error only if our project has no such load balancer.
func (c *Cloud) GetLoadBalancer(ctx context.Context, id string) (*api.LoadBalancer, error) {
	return one(ctx, c, id, c.Source.GetLoadBalancer)
}

// ListInstances returns instances of our project.
func (c *Cloud) ListInstances(ctx context.Context, f client.InstanceFilter) ([]api.Instance, error) {
	return list(ctx, c, f, c.Source.ListInstances)
}

// ListLoadBalancers returns load balancers of our project.
func (c *Cloud) ListLoadBalancers(ctx context.Context, f client.LoadBalancerFilter) ([]api.LoadBalancer, error) {
	return list(ctx, c, f, c.Source.ListLoadBalancers)
}

// ListAddresses returns reserved addresses of our project.
func (c *Cloud) ListAddresses(ctx context.Context, f client.AddressFilter) ([]api.ReservedAddress, error) {
	return list(ctx, c, f, c.Source.ListAddresses)
}

// ListRoutes returns routes of our project.
func (c *Cloud) ListRoutes(ctx context.Context, f client.RouteFilter) ([]api.Route, error) {
	return list(ctx, c, f, c.Source.ListRoutes)
}

// UpdateLoadBalancer fails with a client.IsNotFound error only if our project has no such load balancer.
func (c *Cloud) UpdateLoadBalancer(
	ctx context.Context, id string, u api.LoadBalancerUpdate,
) (*api.LoadBalancer, error) {
	updated, err := c.Source.UpdateLoadBalancer(ctx, id, u)
	return updated, c.checkRefusal(ctx, err)
}

// DeleteLoadBalancer fails with a client.IsNotFound error only if our project has no such load balancer.
func (c *Cloud) DeleteLoadBalancer(ctx context.Context, id string) (*api.LoadBalancer, error) {
	deleted, err := c.Source.DeleteLoadBalancer(ctx, id)
	return deleted, c.checkRefusal(ctx, err)
}

// DeleteRoute fails with a client.IsNotFound error only if our project has no such route.
func (c *Cloud) DeleteRoute(ctx context.Context, id string) error {
	return c.checkRefusal(ctx, c.Source.DeleteRoute(ctx, id))
}

// Follow ends when an event is about another project, or when the token with which it began is no longer
// in use: a stream of another project reports no change of our resources. A stream counts as open once the
// cloud has said that the token belongs to our project.
func (c *Cloud) Follow(
	ctx context.Context, after int64, fn func(api.Event) error, onBreak func(error), only ...client.EventFilter,
) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	token := c.token()
	go wait.UntilWithContext(ctx, func(context.Context) {
		if c.token() != token {
			end(errTokenChanged)
		}
	}, tokenPeriod)
	err := c.Source.Follow(ctx, after, func(event api.Event) error {
		if s := subjectOf(event); s.kind != "" {
			if err := c.checkProject(ctx, s); err != nil {
				return err
			}
		}
		return fn(event)
	}, func(err error) {
		if err == nil {
			if err = c.checkStillToken(ctx, token); err != nil {
				end(err)
			}
		}
		onBreak(err)
	}, only...)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// checkStillToken fails unless that token is still in use and belongs to our project.
func (c *Cloud) checkStillToken(ctx context.Context, token string) error {
	if err := c.CheckToken(ctx); err != nil {
		return err
	}
	if c.token() != token {
		return errTokenChanged
	}
	return nil
}

// list returns a list that began and ended with a token of our project, and shows nothing of another. An
// empty list names no project.
func list[T, Filter any](
	ctx context.Context, c *Cloud, filter Filter, ask func(context.Context, Filter) ([]T, error),
) ([]T, error) {
	token := c.token()
	found, err := ask(ctx, filter)
	if err = c.checkRefusal(ctx, err); client.IsNotFound(err) {
		// It must not be taken for the end of the resource for which somebody had the list made.
		err = fmt.Errorf("the answer is not used: a list was asked for, and the cloud said: %s", err.Error())
	}
	if err != nil {
		return nil, err
	}
	if err := c.checkStillToken(ctx, token); err != nil {
		return nil, err
	}
	for n := range found {
		if err := c.checkProject(ctx, subjectOf(&found[n])); err != nil {
			return nil, err
		}
	}
	return found, nil
}

// one returns the resource that was asked for by its ID, of our project.
func one[T any](
	ctx context.Context, c *Cloud, id string, ask func(context.Context, string) (*T, error),
) (*T, error) {
	found, err := ask(ctx, id)
	if err != nil {
		return nil, c.checkRefusal(ctx, err)
	}
	s := subjectOf(found)
	if s.id != id {
		return nil, fmt.Errorf("the cloud was asked for %s %s and answered with %q", s.kind, id, s.id)
	}
	if err := c.checkProject(ctx, s); err != nil {
		return nil, err
	}
	return found, nil
}

// subject is what an answer is about.
type subject struct{ kind, id, project string }

// subjectOf is without a kind for an event about something else.
func subjectOf(resource any) subject {
	switch r := resource.(type) {
	case *api.Instance:
		return subject{"instance", r.ID, r.Project}
	case *api.LoadBalancer:
		return subject{"load balancer", r.ID, r.Project}
	case *api.ReservedAddress:
		return subject{"address", r.ID, r.Project}
	case *api.Route:
		return subject{"route", r.ID, r.Project}
	case api.Event:
		switch {
		case r.Instance != nil:
			return subjectOf(r.Instance)
		case r.LoadBalancer != nil:
			return subjectOf(r.LoadBalancer)
		case r.Route != nil:
			return subjectOf(r.Route)
		}
	}
	return subject{}
}

func (c *Cloud) checkProject(ctx context.Context, s subject) error {
	ours, err := c.projectID(ctx)
	if err == nil && s.project != ours {
		err = wrongProjectError(fmt.Sprintf("the answer is not used: %s %s belongs to project %q, which is not ours",
			s.kind, s.id, s.project))
	}
	return err
}

// checkRefusal returns the cloud's refusal. A "not found" that is not about our project becomes an error
// for which client.IsNotFound is false.
func (c *Cloud) checkRefusal(ctx context.Context, refusal error) error {
	if !client.IsNotFound(refusal) {
		return refusal
	}
	ours, err := c.projectID(ctx)
	if err != nil {
		return err
	}
	if project := client.ProjectOf(refusal); project != ours {
		return wrongProjectError(fmt.Sprintf("the answer is not used: project %q is not ours: %v", project, refusal))
	}
	return refusal
}
