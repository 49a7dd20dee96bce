package onfakecloud

// A zone that is lost, with all that runs there.

import (
	"context"
	"errors"
	"slices"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/lab/conformance"
)

// ListZones implements conformance.ZoneOutageInjector.
func (c *Cloud) ListZones(ctx context.Context) ([]string, error) {
	all, err := c.API.ListZones(ctx)
	var names []string
	for _, z := range all {
		names = append(names, z.Name)
	}
	return names, err
}

// InjectZoneOutage implements conformance.ZoneOutageInjector.
func (c *Cloud) InjectZoneOutage(ctx context.Context, zone string) (conformance.Injection, error) {
	there, err := c.idsIn(ctx, zone, api.InstanceRunning, api.InstancePending)
	if err != nil {
		return nil, err
	}
	rule, err := c.API.CreateFault(ctx, api.FaultCreate{Effect: api.FaultEffect{ZoneOutage: zone}})
	if err != nil {
		return nil, err
	}
	lost := zoneOutage{injection{api: c.API, id: rule.ID}, c, zone, there}
	if err := lost.awaitState(ctx, api.InstanceError); err != nil {
		return nil, errors.Join(err, lost.Lift(context.WithoutCancel(ctx)))
	}
	return lost, nil
}

// zoneOutage is the rule that took these instances.
type zoneOutage struct {
	injection
	c     *Cloud
	name  string
	taken []string
}

func (z zoneOutage) Lift(ctx context.Context) error {
	if err := z.injection.Lift(ctx); err != nil {
		return err
	}
	return z.awaitState(ctx, api.InstanceRunning)
}

// awaitState waits until those taken are in that state, or in one that somebody else
// has brought them to.
func (z zoneOutage) awaitState(ctx context.Context, want api.InstanceState) error {
	notYet := slices.DeleteFunc([]api.InstanceState{api.InstanceRunning, api.InstancePending, api.InstanceError},
		func(s api.InstanceState) bool { return s == want })
	return pollUntil(ctx, func() (bool, error) {
		left, err := z.c.idsIn(ctx, z.name, notYet...)
		return !slices.ContainsFunc(z.taken, func(id string) bool { return slices.Contains(left, id) }), err
	})
}

// idsIn are the instances of a zone that are in one of these states.
func (c *Cloud) idsIn(ctx context.Context, zone string, states ...api.InstanceState) ([]string, error) {
	all, err := c.API.ListInstances(ctx, client.InstanceFilter{Zone: zone, States: states})
	var ids []string
	for _, i := range all {
		ids = append(ids, i.ID)
	}
	return ids, err
}
