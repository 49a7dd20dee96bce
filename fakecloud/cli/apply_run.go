package cli

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

// run takes all steps, kind by kind. It continues when a step fails; steps that refer to that
// resource then fail too. At the end it waits for the changes, if --wait asks for that.
func (p *plan) run(ctx context.Context) error {
	var errs []error
	for _, k := range manifestKinds {
		calls := []func(context.Context, *plan, *step) error{k.apply}
		if k.key == "instances" {
			calls = append(calls, bringToState)
		}
		for _, call := range calls {
			for _, s := range p.steps {
				if s.want.kind != k || s.Action == unchanged || s.Action == failed {
					continue
				}
				if err := call(ctx, p, s); err != nil {
					s.Action = failed
					errs = append(errs, fmt.Errorf("%s: %w", s.want.position, err))
				}
			}
		}
	}
	var waited []api.Instance
	for _, s := range p.steps {
		if s.want.kind.key == "instances" && (s.Action == created || s.Action == updated) {
			waited = append(waited, *p.instances[s.Name])
		}
	}
	return errors.Join(
		errors.Join(errs...), p.waiter.awaitInstances(p.cmd, p.client, waited),
		p.waiter.awaitBalancers(p.cmd, p.client, p.balancers),
	)
}

// decodeInto converts the JSON fields of a request to the type that the client takes.
func decodeInto[T any](fields any) (T, error) {
	var out T
	text, err := json.Marshal(fields)
	if err == nil {
		d := json.NewDecoder(strings.NewReader(string(text)))
		d.DisallowUnknownFields()
		err = d.Decode(&out)
	}
	return out, err
}

// manifestCalls are what a manifest needs to know of a kind, and the calls that list and change its resources.
type manifestCalls struct {
	singular       string
	create, update string // the schemas of the requests
	list           func(ctx context.Context, p *plan, add func(name, id string, one any)) error
	apply          func(context.Context, *plan, *step) error
}

// callsOf are the calls of a kind. keep, unless nil, is given each resource that there is, without a step, or that a
// step has changed, and tells whether it stays.
func callsOf[T any](kindOf func(*app) resourceKind[T], keep func(p *plan, s *step, one *T) bool) manifestCalls {
	kind := kindOf(&app{})
	return manifestCalls{
		singular: kind.name, create: kind.create.schema, update: kind.update.schema,
		list: func(ctx context.Context, p *plan, add func(name, id string, one any)) error {
			items, err := kindOf(p.app).list(ctx, p.client, nil)
			for _, one := range items {
				if keep == nil || keep(p, nil, &one) {
					add(fieldValue[string](one, "Name"), kind.idOf(one), one)
				}
			}
			return err
		},
		apply: func(ctx context.Context, p *plan, s *step) error {
			if s.Action == updated && len(s.patch) == 0 {
				return nil // Only an instance's state differs.
			}
			return p.waiter.recordOperation(ctx, func(ctx context.Context) (string, error) {
				one, err := createOrUpdate(ctx, p, s, kindOf(p.app))
				if err == nil && keep != nil {
					keep(p, s, one)
				}
				return s.ID, err
			})
		},
	}
}

var quotaCalls = manifestCalls{
	singular: "quotas", create: "QuotasUpdate", update: "QuotasUpdate",
	list: func(ctx context.Context, p *plan, add func(name, id string, one any)) error {
		project, err := p.client.Project(ctx)
		if err != nil {
			return err
		}
		quotas, err := p.client.Quotas(ctx)
		if err == nil {
			add("quotas", project.ID, *quotas)
		}
		return err
	},
	apply: func(ctx context.Context, p *plan, s *step) error {
		body, err := decodeInto[api.QuotasUpdate](s.patch)
		if err == nil {
			_, err = p.client.UpdateProjectQuotas(ctx, s.ID, body)
		}
		return err
	},
}

func (p *plan) keepInstance(s *step, in *api.Instance) bool {
	if s == nil && in.State == api.InstanceTerminating {
		return false
	}
	p.instances[in.Name] = in
	return true
}

// keepBalancer keeps those that were changed, to wait for them.
func (p *plan) keepBalancer(s *step, lb *api.LoadBalancer) bool {
	if s != nil {
		p.balancers = append(p.balancers, *lb)
	}
	return true
}

// requestFields are the fields of a step's request, with the IDs of the resources that it
// refers to.
func (p *plan) requestFields(s *step) (map[string]any, error) {
	if missing := s.want.setIDs(p.ids); len(missing) > 0 {
		return nil, fmt.Errorf("its %v does not exist", missing[0])
	}
	if s.Action == created {
		return maps.Clone(s.want.given), nil
	}
	for field := range s.patch {
		if field != "tags" { // These are merged.
			s.patch[field] = s.want.given[field]
		}
	}
	return s.patch, nil
}

// createOrUpdate creates or updates one resource. It keeps the ID of a created one in p.ids.
func createOrUpdate[T any](ctx context.Context, p *plan, s *step, k resourceKind[T]) (done *T, err error) {
	fields, err := p.requestFields(s)
	if err != nil {
		return done, err
	}
	if s.Action == created {
		// The key lets the client repeat a create whose answer is lost.
		done, err = k.create.send(client.IdempotencyKey(ctx, "apply-"+rand.Text()), p.client, "", fields)
		if err == nil {
			s.ID = k.idOf(*done)
			p.ids[s.want.kind.key+"/"+s.Name] = s.ID
		}
		return done, err
	}
	done, err = sendPatch(ctx, p, s, k)
	if !client.HasCode(err, api.PreconditionFailed) {
		return done, err
	}
	now, err := k.get(p.client, ctx, s.ID) // It has changed meanwhile: keep its new tags too.
	if err != nil {
		return done, err
	}
	has := toMap(now)
	s.version, s.patch["tags"] = versionOf(has), mergedTags(has, s.want.given)
	return sendPatch(ctx, p, s, k)
}

// sendPatch sends a step's patch. If it has tags, they were merged with those of a version of
// the resource, so the patch is for that version only.
func sendPatch[T any](ctx context.Context, p *plan, s *step, k resourceKind[T]) (*T, error) {
	if s.patch["tags"] != nil {
		ctx = client.IfMatch(ctx, s.version)
	}
	return k.update.send(ctx, p.client, s.ID, s.patch)
}

// bringToState starts or stops an instance. If the instance is in transition to another
// state, bringToState first waits until it is there.
func bringToState(ctx context.Context, p *plan, s *step) error {
	in := p.instances[s.Name]
	if s.want.state == "" || s.want.state == settledState(in.State) {
		return nil
	}
	first := waiter{wait: true, timeout: p.waiter.timeout, operations: p.waiter.operations}
	if in.State == api.InstancePending || in.State == api.InstanceStopping {
		here := []api.Instance{*in}
		if err := first.awaitInstances(p.cmd, p.client, here); err != nil {
			return err
		}
		in = &here[0]
	}
	act := p.client.StopInstance
	if s.want.state == "running" {
		act = p.client.StartInstance
	}
	return p.waiter.recordOperation(ctx, func(ctx context.Context) (string, error) {
		now, err := act(ctx, in.ID)
		if err == nil {
			p.instances[s.Name] = now
		}
		return in.ID, err
	})
}
