package onfakecloud

// Many instances at once: each is a call, but one look is for all of them.

import (
	"context"
	"errors"
	"slices"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/lab/conformance"
	"github.com/ccmlab/ccmlab/lab/conformance/driver/protocol"
)

// instancesAtOnce is how many calls are under way.
const instancesAtOnce = 16

// CreateInstances implements protocol.Operations.
func (c *Cloud) CreateInstances(ctx context.Context, body protocol.InstanceSpecs) (protocol.InstanceBatch, error) {
	made, err := c.createAll(ctx, body.Instances)
	batch := protocol.InstanceBatch{Instances: made}
	if err != nil { // What was made comes with it.
		batch.Problem = &protocol.Problem{Detail: err.Error()}
	}
	return batch, nil
}

func (c *Cloud) createAll(ctx context.Context, specs []conformance.InstanceSpec) ([]conformance.Instance, error) {
	requested := make([]*api.Instance, len(specs))
	err := conformance.Each(ctx, instancesAtOnce, len(specs), func(ctx context.Context, i int) error {
		made, err := c.requestInstance(ctx, specs[i])
		if err == nil {
			requested[i] = made
		}
		return err
	})
	var all []conformance.Instance // The caller removes these if not all of them run.
	for _, i := range requested {
		if i != nil {
			all = append(all, c.instanceOf(i))
		}
	}
	if err != nil {
		return all, err
	}
	var made []conformance.Instance
	known := map[string]conformance.Instance{}
	err = pollUntil(ctx, func() (bool, error) {
		running, err := c.inState(ctx, api.InstanceRunning)
		for _, i := range running {
			known[i.ID] = c.instanceOf(&i)
		}
		made = made[:0]
		for _, i := range all {
			if running, there := known[i.ID]; there {
				made = append(made, running)
			}
		}
		return len(made) == len(all), err
	})
	if err != nil {
		return all, err
	}
	return made, nil
}

// TerminateInstances implements protocol.Operations.
func (c *Cloud) TerminateInstances(ctx context.Context, body protocol.IDs) error {
	ids := body.IDs
	err := conformance.Each(ctx, instancesAtOnce, len(ids), func(ctx context.Context, i int) error {
		_, err := c.API.TerminateInstance(ctx, ids[i])
		return unlessNotFound(err)
	})
	ending := sets.New(ids...)
	return errors.Join(err, pollUntil(ctx, func() (bool, error) {
		left, err := c.inState(ctx, api.InstanceTerminating)
		return !slices.ContainsFunc(left, func(i api.Instance) bool { return ending.Has(i.ID) }), err
	}))
}

// inState lists the cluster's instances that are in this state.
func (c *Cloud) inState(ctx context.Context, state api.InstanceState) ([]api.Instance, error) {
	return c.API.ListInstances(ctx, client.InstanceFilter{
		States: []api.InstanceState{state}, Tags: []string{c.Names.clusterTag() + "=" + c.Cluster},
	})
}
