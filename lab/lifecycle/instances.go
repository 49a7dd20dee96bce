package lifecycle

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

func (u *upRun) createInstances(ctx context.Context, _ func(string)) (string, error) {
	have, err := u.listLiveInstances(ctx)
	if err != nil {
		return "", err
	}
	// Their names are taken. One that crashed is for a person to start, one that ends for the next up to make anew.
	ill, err := u.listInstances(ctx, api.InstanceError, api.InstanceTerminating)
	if err != nil {
		return "", err
	}
	zones, err := u.cloud.ListZones(ctx)
	if err != nil {
		return "", err
	}
	made, err := u.registerPresentMachines(ctx, have, zones)
	if err != nil {
		return "", err
	}
	for i := range u.State.Nodes {
		name := fmt.Sprintf("node-%d", i+1)
		if instanceNamed(have, name) != nil || instanceNamed(ill, name) != nil {
			continue
		}
		created, err := u.createInstance(ctx, api.InstanceCreate{Name: name, Zone: zones[i%len(zones)].Name})
		if err != nil {
			return "", err
		}
		made = append(made, name+" in "+created.Zone)
	}
	if err := startAgent(u.Lab, u.hold); err != nil {
		return "", err
	}
	u.agentStarted = true
	if len(made) > 0 {
		u.addChange("created " + strings.Join(made, ", "))
	}
	if len(made) == 0 {
		return fmt.Sprintf("%d there already", len(have)), nil
	}
	return strings.Join(made, ", "), nil
}

// registerPresentMachines makes instances of the machines that are there without the
// cloud's doing.
func (u *upRun) registerPresentMachines(
	ctx context.Context,
	have []api.Instance,
	zones []api.Zone,
) (made []string, err error) {
	present, err := u.Cluster.Present(ctx)
	if err != nil {
		return nil, err
	}
	for i, m := range present {
		instance := instanceNamed(have, m.Name)
		if instance == nil {
			instance, err = u.createInstance(ctx, api.InstanceCreate{
				Name: m.Name, Zone: zones[i%len(zones)].Name,
				Address: m.Address, // A node's may be the CCM's to set; then it is empty, and the cloud chooses one.
			})
			if err != nil {
				return made, err
			}
			made = append(made, m.Name+" in "+instance.Zone)
		}
		// A stopped control plane could be asked nothing, not even by this run.
		if instance.State == api.InstanceStopped {
			if _, err := u.cloud.StartInstance(ctx, instance.ID); err != nil {
				return made, err
			}
		}
		m.ID = instance.ID
		if err := u.Cluster.Adopt(m); err != nil {
			return made, err
		}
	}
	return made, nil
}

func (u *upRun) createInstance(ctx context.Context, spec api.InstanceCreate) (*api.Instance, error) {
	spec.Tags = api.Tags{contract.TagCluster: u.State.Name}
	created, err := u.cloud.CreateInstance(ctx, spec)
	if err != nil {
		return nil, fmt.Errorf("creating instance %s: %w", spec.Name, err)
	}
	return created, nil
}

func instanceNamed(all []api.Instance, name string) *api.Instance {
	if i := slices.IndexFunc(all, func(i api.Instance) bool { return i.Name == name }); i >= 0 {
		return &all[i]
	}
	return nil
}

func (u *upRun) listLiveInstances(ctx context.Context) ([]api.Instance, error) {
	return u.listInstances(ctx, api.InstancePending, api.InstanceRunning, api.InstanceStopping, api.InstanceStopped)
}

func (u *upRun) listInstances(ctx context.Context, states ...api.InstanceState) ([]api.Instance, error) {
	return u.cloud.ListInstances(ctx, client.InstanceFilter{Tags: []string{u.Tag()}, States: states})
}
