package onfakecloud

// Many instances at once: each is a call, but one look is for all of them.

import (
	"context"
	"errors"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/lab/conformance"
)

// instancesAtOnce is how many calls are under way.
const instancesAtOnce = 16

// CreateInstances implements conformance.InstanceBatcher.
func (c *Cloud) CreateInstances(ctx context.Context, specs []conformance.InstanceSpec) ([]conformance.Instance, error) {
	ids := make([]string, len(specs))
	err := conformance.Each(ctx, instancesAtOnce, len(specs), func(ctx context.Context, i int) error {
		made, err := c.requestInstance(ctx, specs[i])
		if err == nil {
			ids[i] = made.ID
		}
		return err
	})
	var made []conformance.Instance
	if err != nil { // The caller removes the created ones.
		for _, id := range ids {
			if id != "" {
				made = append(made, conformance.Instance{ID: id})
			}
		}
		return made, err
	}
	known := map[string]conformance.Instance{}
	err = pollUntil(ctx, func() (bool, error) {
		running, err := c.inState(ctx, api.InstanceRunning)
		for _, i := range running {
			known[i.ID] = c.instanceOf(&i)
		}
		made = made[:0]
		for _, id := range ids {
			if i, there := known[id]; there {
				made = append(made, i)
			}
		}
		return len(made) == len(ids), err
	})
	if err != nil {
		made = made[:0]
		for _, id := range ids {
			made = append(made, conformance.Instance{ID: id})
		}
	}
	return made, err
}

// TerminateInstances implements conformance.InstanceBatcher.
func (c *Cloud) TerminateInstances(ctx context.Context, ids []string) error {
	err := conformance.Each(ctx, instancesAtOnce, len(ids), func(ctx context.Context, i int) error {
		_, err := c.API.TerminateInstance(ctx, ids[i])
		if client.IsNotFound(err) {
			err = nil
		}
		return err
	})
	ending := map[string]bool{}
	for _, id := range ids {
		ending[id] = true
	}
	return errors.Join(err, pollUntil(ctx, func() (bool, error) {
		left, err := c.inState(ctx, api.InstanceTerminating)
		for _, i := range left {
			if ending[i.ID] {
				return false, err
			}
		}
		return true, err
	}))
}

// inState lists the cluster's instances that are in this state.
func (c *Cloud) inState(ctx context.Context, state api.InstanceState) ([]api.Instance, error) {
	return c.API.ListInstances(ctx, client.InstanceFilter{
		States: []api.InstanceState{state}, Tags: []string{c.Names.clusterTag() + "=" + c.Cluster},
	})
}
