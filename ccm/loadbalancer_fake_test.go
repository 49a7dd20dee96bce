package ccm

import (
	"context"
	"slices"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/tools/record"

	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

// fakeBalancers is fakeAPI with what only balancers ask for, and a memory.
type fakeBalancers struct {
	*fakeAPI
	get       func(id string) (*api.LoadBalancer, error)
	addresses func() ([]api.ReservedAddress, error)
	memory    []api.LoadBalancer
	events    *record.FakeRecorder
}

func (f *fakeBalancers) GetLoadBalancer(_ context.Context, id string) (*api.LoadBalancer, error) {
	require.NotNil(f.t, f.get, "unexpected GetLoadBalancer(%s)", id)
	return f.get(id)
}

func (f *fakeBalancers) ListAddresses(context.Context, client.AddressFilter) ([]api.ReservedAddress, error) {
	require.NotNil(f.t, f.addresses, "unexpected ListAddresses()")
	return f.addresses()
}

func (f *fakeBalancers) loadBalancers() *loadBalancers {
	f.events = record.NewFakeRecorder(100)
	explain := newExplainer()
	explain.use(f.events)
	return &loadBalancers{api: f, project: newProjectGuard(f, "lab"), inventory: (*fakeMemory)(f), explain: explain}
}

// said are the Events since the last call.
func (f *fakeBalancers) said() []string {
	var events []string
	for len(f.events.Events) > 0 {
		events = append(events, <-f.events.Events)
	}
	return events
}

type fakeMemory fakeBalancers

func (f *fakeMemory) LoadBalancersOf(uid string) []api.LoadBalancer {
	return slices.DeleteFunc(slices.Clone(f.memory), func(lb api.LoadBalancer) bool { return lb.Tags[contract.TagServiceUID] != uid })
}

// NoteLoadBalancer remembers as the inventory does: an older version is no news.
func (f *fakeMemory) NoteLoadBalancer(lb api.LoadBalancer) {
	i := slices.IndexFunc(f.memory, func(has api.LoadBalancer) bool { return has.ID == lb.ID })
	switch {
	case i < 0:
		f.memory = append(f.memory, lb)
	case f.memory[i].Version <= lb.Version:
		f.memory[i] = lb
	}
}
