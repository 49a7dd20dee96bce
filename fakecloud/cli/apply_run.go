package cli

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

// run takes all steps, kind by kind. It continues when a step fails; steps that refer to that
// resource then fail too. At the end it waits for the changes, if --wait asks for that.
func (p *plan) run(ctx context.Context) error {
	var errs []error
	do := func(kind string, what func(context.Context, *step) error) {
		for _, s := range p.steps {
			if s.want.kind.key != kind || s.Action == unchanged || s.Action == failed {
				continue
			}
			if err := what(ctx, s); err != nil {
				s.Action = failed
				errs = append(errs, fmt.Errorf("%s: %w", s.want.position, err))
			}
		}
	}
	do("quotas", p.setQuotas)
	do("networks", p.applyNetwork)
	do("addresses", p.applyAddress)
	do("instances", p.applyInstance)
	do("instances", p.bringToState)
	do("loadBalancers", p.applyBalancer)
	do("firewalls", p.applyFirewall)
	do("routes", p.applyRoute)
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

// requestFields are the fields of a step's request, with the IDs of the resources that it
// refers to.
func (p *plan) requestFields(s *step) (map[string]any, error) {
	if s.Action != created {
		return s.patch, nil
	}
	fields := maps.Clone(s.want.given)
	for _, ref := range s.want.refs {
		id := p.ids[ref.kind+"/"+ref.name]
		if id == "" {
			return nil, fmt.Errorf("%s %q does not exist", ref.field, ref.name)
		}
		fields[ref.id] = id
	}
	return fields, nil
}

// createOrUpdate creates or updates one resource. It keeps the ID of a created one in p.ids.
func createOrUpdate[C, U, R any](
	ctx context.Context,
	p *plan,
	s *step,
	create func(context.Context, C) (*R, error),
	get func(context.Context, string) (*R, error),
	update func(context.Context, string, U) (*R, error),
) (done *R, err error) {
	fields, err := p.requestFields(s)
	if err != nil {
		return done, err
	}
	if s.Action == created {
		body, err := decodeInto[C](fields)
		if err != nil {
			return done, err
		}
		// The key lets the client repeat a create whose answer is lost.
		done, err = create(client.IdempotencyKey(ctx, "apply-"+rand.Text()), body)
		if err == nil {
			s.ID = fieldValue[string](*done, "ID")
			p.ids[s.want.kind.key+"/"+s.Name] = s.ID
		}
		return done, err
	}
	done, err = sendPatch(ctx, s, update)
	if !client.HasCode(err, api.PreconditionFailed) {
		return done, err
	}
	now, err := get(ctx, s.ID) // It has changed meanwhile: keep its new tags too.
	if err != nil {
		return done, err
	}
	has := toMap(now)
	s.version, s.patch["tags"] = versionOf(has), mergedTags(has, s.want.given)
	return sendPatch(ctx, s, update)
}

// sendPatch sends a step's patch. If it has tags, they were merged with those of a version of
// the resource, so the patch is for that version only.
func sendPatch[U, R any](
	ctx context.Context,
	s *step,
	update func(context.Context, string, U) (*R, error),
) (done *R, err error) {
	body, err := decodeInto[U](s.patch)
	if err != nil {
		return done, fmt.Errorf("%s cannot be changed: %w", strings.Join(s.Changes, ", "), err)
	}
	if s.patch["tags"] != nil {
		ctx = client.IfMatch(ctx, s.version)
	}
	return update(ctx, s.ID, body)
}

func (p *plan) setQuotas(ctx context.Context, s *step) error {
	body, err := decodeInto[api.QuotasUpdate](s.patch)
	if err == nil {
		_, err = p.client.UpdateProjectQuotas(ctx, p.project, body)
	}
	return err
}

func (p *plan) applyNetwork(ctx context.Context, s *step) error {
	_, err := createOrUpdate(ctx, p, s, p.client.CreateNetwork, p.client.GetNetwork, p.client.UpdateNetwork)
	return err
}

func (p *plan) applyAddress(ctx context.Context, s *step) error {
	_, err := createOrUpdate(ctx, p, s, p.client.ReserveAddress, p.client.GetAddress, p.client.UpdateAddress)
	return err
}

func (p *plan) applyRoute(ctx context.Context, s *step) error {
	_, err := createOrUpdate(ctx, p, s, p.client.CreateRoute, p.client.GetRoute, p.client.UpdateRoute)
	return err
}

func (p *plan) applyInstance(ctx context.Context, s *step) error {
	if s.Action == updated && len(s.patch) == 0 {
		return nil // Only its state differs.
	}
	return p.waiter.recordOperation(ctx, func(ctx context.Context) (string, error) {
		in, err := createOrUpdate(ctx, p, s, p.client.CreateInstance, p.client.GetInstance, p.client.UpdateInstance)
		if err != nil {
			return "", err
		}
		p.instances[s.Name] = in
		return in.ID, nil
	})
}

// bringToState starts or stops an instance. If the instance is in transition to another
// state, bringToState first waits until it is there.
func (p *plan) bringToState(ctx context.Context, s *step) error {
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

func (p *plan) applyBalancer(ctx context.Context, s *step) error {
	ids, err := p.instanceIDs(s, "targets")
	if err != nil {
		return err
	}
	if ids != nil {
		targets := []api.Target{}
		for _, id := range ids {
			targets = append(targets, api.Target{InstanceID: id})
		}
		s.patch["targets"], s.want.given["targets"] = targets, targets
	}
	return p.waiter.recordOperation(ctx, func(ctx context.Context) (string, error) {
		lb, err := createOrUpdate(
			ctx, p, s, p.client.CreateLoadBalancer, p.client.GetLoadBalancer, p.client.UpdateLoadBalancer,
		)
		if err != nil {
			return "", err
		}
		p.balancers = append(p.balancers, *lb)
		return lb.ID, nil
	})
}

func (p *plan) applyFirewall(ctx context.Context, s *step) error {
	ids, err := p.instanceIDs(s, "instances")
	if err != nil {
		return err
	}
	if ids != nil {
		s.patch["instanceIds"], s.want.given["instanceIds"] = ids, ids
	}
	_, err = createOrUpdate(ctx, p, s, p.client.CreateFirewall, p.client.GetFirewall, p.client.UpdateFirewall)
	return err
}

// instanceIDs gives the IDs of the instances that a resource wants in a field; nil if they are to stay as they are.
func (p *plan) instanceIDs(s *step, field string) ([]string, error) {
	if s.want.instances == nil || s.Action == updated && !slices.Contains(s.Changes, field) {
		return nil, nil
	}
	ids := []string{}
	for _, name := range s.want.instances {
		in := p.instances[name]
		if in == nil {
			return nil, fmt.Errorf("its instance %q does not exist", name)
		}
		ids = append(ids, in.ID)
	}
	return ids, nil
}
