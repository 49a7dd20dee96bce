package ccm

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"
	cloudprovider "k8s.io/cloud-provider"
	cloudproviderapi "k8s.io/cloud-provider/api"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

func node(providerID string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", UID: "u1"}, Spec: corev1.NodeSpec{ProviderID: providerID}}
	if providerID == "" {
		n.Spec.Taints = []corev1.Taint{{Key: cloudproviderapi.TaintExternalCloudProvider}}
	}
	return n
}

func newInstances(f *fakeAPI) *instances {
	return &instances{api: f, project: newProjectGuard(f, "lab"), explain: newExplainer()}
}

// What each possible answer to "get this one instance" says about a Node.
func TestExistenceByProviderID(t *testing.T) {
	got := func(s api.InstanceState) func(string) (*api.Instance, error) {
		return func(string) (*api.Instance, error) { i := instance(s); return &i, nil }
	}
	fails := func(err error) func(string) (*api.Instance, error) {
		return func(string) (*api.Instance, error) { return nil, err }
	}
	foreign := instance(api.InstanceTerminated)
	foreign.Project = "p-other"
	other := instance(api.InstanceRunning)
	other.ID = "i-2"

	const yes, no, unknown = "exists", "does not exist", "unknown"
	for name, tc := range map[string]struct {
		get        func(string) (*api.Instance, error)
		providerID string
		want       string
		shutdown   bool
	}{
		"pending":                         {get: got(api.InstancePending), want: yes},
		"running":                         {get: got(api.InstanceRunning), want: yes},
		"stopping":                        {get: got(api.InstanceStopping), want: yes},
		"stopped":                         {get: got(api.InstanceStopped), want: yes, shutdown: true},
		"error":                           {get: got(api.InstanceError), want: yes},
		"terminating":                     {get: got(api.InstanceTerminating), want: yes},
		"terminated":                      {get: got(api.InstanceTerminated), want: no},
		"404 of our project":              {get: fails(problem(404, api.NotFound, ourProject)), want: no},
		"404 of another project":          {get: fails(problem(404, api.NotFound, "p-other")), want: unknown},
		"404 without a project":           {get: fails(problem(404, api.NotFound, "")), want: unknown},
		"404 of something else":           {get: fails(&client.Error{Status: 404, Problem: api.Problem{Detail: "nginx"}}), want: unknown},
		"401":                             {get: fails(problem(401, api.Unauthenticated, "")), want: unknown},
		"429":                             {get: fails(&client.Error{Status: 429}), want: unknown},
		"500":                             {get: fails(problem(500, api.Internal, ourProject)), want: unknown},
		"timeout":                         {get: fails(context.DeadlineExceeded), want: unknown},
		"refused":                         {get: fails(errors.New("connection refused")), want: unknown},
		"terminated, of another project":  {get: func(string) (*api.Instance, error) { return &foreign, nil }, want: unknown},
		"another instance than asked for": {get: func(string) (*api.Instance, error) { return &other, nil }, want: unknown},
		"empty object":                    {get: func(string) (*api.Instance, error) { return &api.Instance{}, nil }, want: unknown},
		"another cloud's provider ID":     {providerID: "aws:///eu/i-1", want: unknown},
		"provider ID without an ID":       {providerID: "fakecloud://", want: unknown},
	} {
		t.Run(name, func(t *testing.T) {
			id := tc.providerID
			if id == "" {
				id = "fakecloud://i-1"
			}
			i := newInstances(&fakeAPI{t: t, getInstance: tc.get, project: ours})
			exists, err := i.InstanceExists(t.Context(), node(id))
			switch tc.want {
			case unknown:
				assert.Error(t, err)
				assert.False(t, errors.Is(err, cloudprovider.InstanceNotFound))
			case yes:
				require.NoError(t, err)
				assert.True(t, exists)
				shutdown, err := i.InstanceShutdown(t.Context(), node(id))
				require.NoError(t, err)
				assert.Equal(t, tc.shutdown, shutdown)
			case no:
				require.NoError(t, err)
				assert.False(t, exists)
			}
		})
	}
}

// The token was swapped to another project: nothing it says counts.
func TestSwappedTokenNeverMeansGone(t *testing.T) {
	f := &fakeAPI{t: t,
		getInstance:   func(string) (*api.Instance, error) { return nil, problem(404, api.NotFound, "p-other") },
		listInstances: func(client.InstanceFilter) ([]api.Instance, error) { return nil, nil },
		project:       func() (*api.Project, error) { return &api.Project{ID: "p-other", Name: "other"}, nil },
	}
	_, err := newInstances(f).InstanceExists(t.Context(), node("fakecloud://i-1"))
	require.ErrorContains(t, err, `configured for "lab"`)
	_, err = newInstances(f).InstanceExists(t.Context(), node(""))
	require.ErrorIs(t, err, errNoSuchName)
}

func TestLookupByName(t *testing.T) {
	second := instance(api.InstanceStopped)
	second.ID = "i-2"
	ended := instance(api.InstanceTerminated)
	ended.ID = "i-0"
	strange := ended
	strange.Project = "p-other"
	const gone = "instance not found"
	for name, tc := range map[string]struct {
		list    []api.Instance
		listErr error
		wantID  string
		wantErr string
	}{
		"one":                           {list: []api.Instance{instance(api.InstanceRunning)}, wantID: "i-1"},
		"one beside an ended namesake":  {list: []api.Instance{ended, instance(api.InstanceRunning)}, wantID: "i-1"},
		"none":                          {wantErr: "no instance has that name"},
		"only an ended one":             {list: []api.Instance{ended}, wantErr: gone},
		"an ended one of a stranger":    {list: []api.Instance{strange}, wantErr: "not ours"},
		"two":                           {list: []api.Instance{instance(api.InstanceRunning), second}, wantErr: "2 instances are named"},
		"the list fails":                {listErr: errors.New("boom"), wantErr: "boom"},
		"the filter was not understood": {list: []api.Instance{{ID: "i-9", Name: "other", Project: ourProject, State: api.InstanceRunning}}, wantErr: "no instance has that name"},
	} {
		t.Run(name, func(t *testing.T) {
			i := newInstances(&fakeAPI{t: t, project: ours, listInstances: func(f client.InstanceFilter) ([]api.Instance, error) {
				assert.Equal(t, "node-1", f.Name)
				return tc.list, tc.listErr
			}})
			found, err := i.find(t.Context(), node(""))
			if tc.wantErr != "" {
				require.ErrorContains(t, err, tc.wantErr)
				exists, err := i.InstanceExists(t.Context(), node(""))
				assert.False(t, exists)
				assert.Equal(t, tc.wantErr == gone, err == nil, "only an ended instance of ours is known to be gone: %v", err)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, tc.wantID, found.ID)
		})
	}
}

func TestInstanceMetadata(t *testing.T) {
	i := newInstances(&fakeAPI{t: t, project: ours, getInstance: func(string) (*api.Instance, error) {
		got := instance(api.InstanceRunning)
		return &got, nil
	}})
	meta, err := i.InstanceMetadata(t.Context(), node("fakecloud://i-1"))
	require.NoError(t, err)
	assert.Equal(t, &cloudprovider.InstanceMetadata{
		ProviderID: "fakecloud://i-1", InstanceType: "small", Zone: "r-a", Region: "r",
		NodeAddresses: []corev1.NodeAddress{
			{Type: corev1.NodeHostName, Address: "node-1"},
			{Type: corev1.NodeInternalIP, Address: "127.30.16.1"},
			{Type: corev1.NodeExternalIP, Address: "192.0.2.1"},
		},
	}, meta)
}

// One Event per cause, not per retry; a new cause, or the old one after it
// was gone, is told again.
func TestNodeEvents(t *testing.T) {
	recorder := record.NewFakeRecorder(10)
	var list []api.Instance
	var listErr error
	i := newInstances(&fakeAPI{t: t, project: ours, listInstances: func(client.InstanceFilter) ([]api.Instance, error) { return list, listErr }})
	i.explain.use(recorder)
	ask := func() { _, _ = i.InstanceMetadata(t.Context(), node("")) }

	ask()
	ask()
	listErr = errors.New("boom")
	ask()
	listErr = nil
	list = []api.Instance{instance(api.InstanceRunning), instance(api.InstanceRunning)}
	ask()
	list = list[:1]
	ask()
	list = nil
	ask()
	close(recorder.Events)
	var reasons []string
	for e := range recorder.Events {
		reasons = append(reasons, e)
	}
	require.Len(t, reasons, 4)
	for n, want := range []string{reasonInstanceNotFound, reasonCloudUnavailable, reasonInstanceAmbiguous, reasonInstanceNotFound} {
		assert.Contains(t, reasons[n], "Warning "+want)
	}
}
