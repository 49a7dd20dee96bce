package core_test

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	cloudprovider "k8s.io/cloud-provider"
	cloudproviderapi "k8s.io/cloud-provider/api"

	"github.com/ccmlab/ccmlab/ccm/config"
	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/ccm/core"
	"github.com/ccmlab/ccmlab/ccm/doubt"
	"github.com/ccmlab/ccmlab/ccm/events"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

var updateAnswers = flag.Bool("update-answers", false, "write ANSWERS.md")

const (
	answersFile = "../ANSWERS.md"
	ours        = "p-ours"
	theirs      = "p-theirs"
	noProject   = "none"

	// What the CCM concludes about an instance.
	exists = "exists"
	gone   = "gone"

	// Reasons of Events.
	wrongProject = contract.ReasonWrongProject
	foreignID    = contract.ReasonForeignProviderID
)

// answer is one that the cloud can give about a Node's instance, and what follows. It is a row of ANSWERS.md.
type answer struct {
	answer string

	// What the Node has, and what the cloud answers: with each of the variants the same follows. One of get is an
	// api.Instance or an error, one of list an []api.Instance or an error. A call without an answer fails the test.
	providerID string
	created    time.Time // the Node: long ago, unless said
	get, list  []any
	token      string // the project of the token: ours, unless said; noProject if the cloud does not say

	concludes string // unknown, unless said
	// reason is that of the Event on a Node that waits for its initialisation. Unless said, it is CloudUnavailable if
	// nothing is known, InstanceNotFound if the instance is gone, and there is none if it exists.
	reason   string
	shutdown bool
	// hollow is an instance that is there, but of which too little is known to initialise a Node.
	hollow bool
}

func (a answer) eventReason() string {
	switch {
	case a.reason != "":
		return a.reason
	case a.concludes == gone:
		return contract.ReasonInstanceNotFound
	case a.concludes == "":
		return contract.ReasonCloudUnavailable
	}
	return ""
}

// row is the answer's row in ANSWERS.md.
func (a answer) row() string {
	node, balancer, route := "stays; a new one is initialised", "keeps the target", "stays; a missing one is made"
	event := "–"
	switch {
	case a.concludes == gone:
		node = "deleted, once it is not Ready or the event stream tells; " +
			"one of too many at once is held (see package guard)"
		balancer = "loses the target with the Node, or before, when the cloud refuses it by name"
		route = "deleted with the Node; no new one"
	case a.concludes == "":
		node = "stays as it is, asked about again; a new one keeps its taint"
		route = "stays; no new one"
	case a.hollow:
		node = "stays as it is, addresses too; a new one keeps its taint"
	case a.shutdown:
		node = "stays; gets upstream's shutdown taint when it is not Ready; a new one is initialised"
	}
	if reason := a.eventReason(); reason != "" {
		event = "`" + reason + "`"
	}
	cells := []string{a.answer, cmp.Or(a.concludes, "unknown"), node, balancer, route, event}
	return "| " + strings.Join(cells, " | ") + " |\n"
}

// changed is a running instance with that ID, but for the changes.
func changed(id string, changes ...func(*api.Instance)) api.Instance {
	i := api.Instance{
		ID: id, Project: ours, Name: "node-1", Region: "r", Zone: "r-a", Type: "small", State: api.InstanceRunning,
		Addresses: []api.Address{{Type: api.AddressInternal, IP: "127.30.16.1"}},
	}
	for _, change := range changes {
		change(&i)
	}
	return i
}

func inState(s api.InstanceState) func(*api.Instance) { return func(i *api.Instance) { i.State = s } }
func named(name string) func(*api.Instance)           { return func(i *api.Instance) { i.Name = name } }
func inProject(id string) func(*api.Instance)         { return func(i *api.Instance) { i.Project = id } }

func inCluster(name string) func(*api.Instance) {
	return func(i *api.Instance) { i.Tags = api.Tags{contract.TagCluster: name} }
}

func list(all ...api.Instance) []api.Instance { return all }

// problem is an answer of the cloud itself.
func problem(status int, code api.ProblemCode, project string) error {
	return &client.Error{Status: status, Problem: api.Problem{Status: status, Code: code, Project: &project}}
}

// problemOnTheWay is an answer of something between us and the cloud.
func problemOnTheWay(status int) error { return &client.Error{Status: status} }

func answersByID() []answer {
	notFound := problem(404, api.NotFound, ours)
	rows := []answer{
		{
			answer: "200: pending, running, stopping or terminating", concludes: exists,
			get: []any{
				changed("i-1", inState(api.InstancePending)), changed("i-1"),
				changed("i-1", inState(api.InstanceStopping)), changed("i-1", inState(api.InstanceTerminating)),
			},
		},
		{
			answer: "200, stopped", get: []any{changed("i-1", inState(api.InstanceStopped))}, concludes: exists,
			shutdown: true, reason: contract.ReasonInstanceStopped,
		},
		{
			answer: "200, error", get: []any{changed("i-1", inState(api.InstanceError))}, concludes: exists,
			reason: contract.ReasonInstanceInError,
		},
		{
			answer: "200, without an internal address", concludes: exists, hollow: true,
			get:    []any{changed("i-1", func(i *api.Instance) { i.Addresses[0].Type = api.AddressExternal })},
			reason: contract.ReasonNoInternalAddress,
		},
		{
			answer: "200, terminated, or 404: of our project", concludes: gone,
			get: []any{changed("i-1", inState(api.InstanceTerminated)), notFound},
		},
		{
			answer: "200, running or terminated, or 404: of another project", reason: wrongProject,
			get: []any{
				changed("i-1", inProject(theirs)), changed("i-1", inState(api.InstanceTerminated), inProject(theirs)),
				problem(404, api.NotFound, theirs),
			},
		},
		{
			answer: "404 of another project: the token was swapped", get: []any{problem(404, api.NotFound, theirs)},
			token: theirs, reason: wrongProject,
		},
		{
			answer: "200: about another instance, an empty object, garbage, or without a field that the API promises",
			get: []any{
				changed("i-2"), api.Instance{},
				errors.New("the cloud's answer is not what its API promises: zone of i-1 is missing"),
			},
		},
		{
			answer: "404 that names no project, or of something on the way",
			get: []any{
				&client.Error{Status: 404, Problem: api.Problem{Status: 404, Code: api.NotFound}}, problemOnTheWay(404),
			},
		},
		{
			answer: "404 of our project, which cannot be told from another as the cloud is down",
			get:    []any{notFound}, token: noProject,
		},
		{
			answer: "401 or 403", reason: contract.ReasonCloudAccessDenied,
			get: []any{problem(401, api.Unauthenticated, ""), problem(403, api.Forbidden, ours)},
		},
		{answer: "429", get: []any{problem(429, api.RateLimited, ours)}, reason: contract.ReasonCloudThrottled},
		{
			answer: "any other status, a timeout, or no connection",
			get: []any{
				problem(409, api.WrongState, ours), problemOnTheWay(410), problem(500, api.Internal, ours),
				problemOnTheWay(503), context.DeadlineExceeded, errors.New("connect: connection refused"),
			},
		},
		{answer: "none: the provider ID is another cloud's", providerID: "aws:///eu/i-1", reason: foreignID},
		{answer: "none: the provider ID names no instance", providerID: "fakecloud://", reason: foreignID},
	}
	for n := range rows {
		rows[n].providerID = cmp.Or(rows[n].providerID, "fakecloud://i-1")
	}
	return rows
}

func answersByName() []answer {
	end := time.Date(2026, 1, 2, 3, 4, 5, 600e6, time.UTC)
	running := changed("i-1")
	ended := changed("i-0", inState(api.InstanceTerminated), func(i *api.Instance) { i.UpdatedAt = end })
	timeless := changed("i-0", inState(api.InstanceTerminated))
	return []answer{
		{
			answer: "a list with one of that name, perhaps in capitals", concludes: exists,
			list: []any{list(running), list(changed("i-1", named("NODE-1")))},
		},
		{
			answer:    "a list with one of that name, and others that ended, or are tagged for another cluster",
			concludes: exists, list: []any{list(ended, running), list(running, changed("i-2", inCluster("other")))},
		},
		{
			answer: "a list with one that is tagged for this cluster, and one without a tag", concludes: exists,
			list: []any{list(changed("i-1", inCluster("lab")), changed("i-2"))},
		},
		{
			answer: "a list without the name (empty, partial, stale, too early, or of others as the filter was not " +
				"understood), or in which the one that has it is tagged for another cluster",
			list:   []any{list(), list(changed("i-9", named("other"))), list(changed("i-2", inCluster("other")))},
			reason: contract.ReasonInstanceNotFound,
		},
		{answer: "an empty list, the token was swapped", list: []any{list()}, token: theirs, reason: wrongProject},
		{
			answer: "a list with another project's, running or ended", reason: wrongProject,
			list: []any{
				list(changed("i-7", inProject(theirs))),
				list(changed("i-7", inState(api.InstanceTerminated), inProject(theirs))),
			},
		},
		{
			answer: "a list with two of that name", reason: contract.ReasonInstanceAmbiguous,
			list: []any{list(running, changed("i-2", inState(api.InstanceStopped)))},
		},
		{
			answer: "a list with only an ended one; then 200, terminated, or 404 of our project", concludes: gone,
			list: []any{list(ended)}, get: []any{ended, problem(404, api.NotFound, ours)},
		},
		{
			answer: "a list with only an ended one, and the Node came after its end or within the second of it, or " +
				"its end is not told: a stale list may hide a live namesake",
			created: end.Truncate(time.Second), list: []any{list(ended), list(timeless)},
			reason: contract.ReasonInstanceNotFound,
		},
		{
			answer: "a list with only an ended one; timeout", list: []any{list(ended)},
			get: []any{context.DeadlineExceeded},
		},
		{answer: "the list fails", list: []any{errors.New("boom")}},
		{
			answer: "the list is throttled", list: []any{problem(429, api.RateLimited, ours)},
			reason: contract.ReasonCloudThrottled,
		},
	}
}

// answeringCloud is a cloud that gives one variant of an answer, and takes any route.
type answeringCloud struct {
	doubt.Source
	answer
	variant int
	routes  int // that were created
}

// reply is the answer's variant, or the last if there are fewer.
func reply[T any](variants []any, variant int) (value T, err error) {
	if len(variants) == 0 {
		panic("unexpected call")
	}
	switch v := variants[min(variant, len(variants)-1)].(type) {
	case T:
		return v, nil
	default:
		return value, v.(error)
	}
}

func (c *answeringCloud) GetInstance(context.Context, string) (*api.Instance, error) {
	instance, err := reply[api.Instance](c.get, c.variant)
	return &instance, err
}

func (c *answeringCloud) ListInstances(context.Context, client.InstanceFilter) ([]api.Instance, error) {
	return reply[[]api.Instance](c.list, c.variant)
}

func (c *answeringCloud) Project(context.Context) (*api.Project, error) {
	if c.token == noProject {
		return nil, context.DeadlineExceeded
	}
	return &api.Project{ID: cmp.Or(c.token, ours)}, nil
}

func (c *answeringCloud) CreateRoute(context.Context, api.RouteCreate) (*api.Route, error) {
	c.routes++
	return &api.Route{}, nil
}

// What each answer of a cloud makes of a Node, its route, and what it says.
func TestAnswers(t *testing.T) {
	for _, a := range append(answersByID(), answersByName()...) {
		for variant := range max(1, len(a.get), len(a.list)) {
			t.Run(fmt.Sprint(strings.ReplaceAll(a.answer, "/", " "), " ", variant), func(t *testing.T) {
				a.check(t, variant)
			})
		}
	}
	written, err := os.ReadFile(answersFile)
	require.NoError(t, err)
	prose, _, _ := strings.Cut(string(written), "\n## ")
	doc := prose + answersTables()
	if *updateAnswers {
		require.NoError(t, os.WriteFile(answersFile, []byte(doc), 0o644))
		return
	}
	assert.Equal(t, doc, string(written), "ANSWERS.md is not of this table: go generate ./ccm/core")
}

// check asks a new CCM without a cache.
func (a answer) check(t *testing.T, variant int) {
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "node-1", UID: "u1", CreationTimestamp: metav1.NewTime(a.created)},
		Spec: corev1.NodeSpec{
			ProviderID: a.providerID, Taints: []corev1.Taint{{Key: cloudproviderapi.TaintExternalCloudProvider}},
		},
	}
	nodes := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	require.NoError(t, nodes.Add(node))
	cloud, cluster := &answeringCloud{answer: a, variant: variant}, core.NewCluster("lab")
	cluster.SetUID("cluster-uid")
	explainer, recorder := events.New(), record.NewFakeRecorder(20)
	explainer.SetRecorder(recorder)
	p := core.New(doubt.Reject(cloud, ours, func() string { return "" }), cluster,
		core.Options{Addresses: config.Default().NodeAddresses})
	p.Routes.Follow(corelisters.NewNodeLister(nodes))
	p = explainer.Explain(p)

	_, err := p.Instances.InstanceMetadata(t.Context(), node)
	assert.Equal(t, a.concludes == exists && !a.hollow, err == nil, "%v", err)
	assert.Equal(t, a.concludes == gone, errors.Is(err, cloudprovider.InstanceNotFound))
	if reason := a.eventReason(); reason == "" {
		assert.Empty(t, recorder.Events)
	} else {
		require.Len(t, recorder.Events, 1)
		event := <-recorder.Events
		assert.True(t, strings.HasPrefix(event, "Warning "+reason+" "), event)
		assert.Equal(t, err != nil, strings.Contains(event, "Node stays uninitialized: "), event)
	}

	there, err := p.Instances.InstanceExists(t.Context(), node)
	shutdown, shutdownErr := p.Instances.InstanceShutdown(t.Context(), node)
	assert.Equal(t, a.concludes == "", err != nil, "%v", err)
	assert.Equal(t, a.concludes == exists, there)
	assert.NotErrorIs(t, err, cloudprovider.InstanceNotFound)
	assert.Equal(t, a.concludes == exists, shutdownErr == nil, "%v", shutdownErr)
	assert.Equal(t, a.concludes == gone, errors.Is(shutdownErr, cloudprovider.InstanceNotFound))
	assert.Equal(t, a.shutdown, shutdown)
	route := &cloudprovider.Route{TargetNode: "node-1", DestinationCIDR: "10.244.1.0/24"}
	err = p.Routes.CreateRoute(t.Context(), "lab", "", route)
	assert.Equal(t, a.concludes == exists, err == nil, "%v", err)
	assert.Equal(t, a.concludes == exists, cloud.routes == 1)
}

// nextStep is what an Event with that reason says that people can do.
func nextStep(reason string) string {
	explainer, recorder := events.New(), record.NewFakeRecorder(1)
	explainer.SetRecorder(recorder)
	explainer.WarnOnce(&corev1.Node{}, "", reason, "", "")
	return strings.TrimPrefix(<-recorder.Events, "Warning "+reason+" ; ")
}

// answersTables is what follows the prose in ANSWERS.md.
func answersTables() string {
	var b strings.Builder
	reasons := map[string]bool{}
	for _, part := range []struct {
		title string
		rows  []answer
	}{
		{"Asked for the instance of a provider ID", answersByID()},
		{"Asked for the instance of a Node without one, by its name", answersByName()},
	} {
		fmt.Fprintf(&b, "\n## %s\n\n| the cloud's answer | the instance | the Node | its place in balancers | its route | "+
			"Event |\n|---|---|---|---|---|---|\n", part.title)
		for _, a := range part.rows {
			b.WriteString(a.row())
			reasons[a.eventReason()] = true
		}
	}
	delete(reasons, "")
	b.WriteString("\n## The reasons, and what to do\n\n| reason | what to do |\n|---|---|\n")
	for _, reason := range slices.Sorted(maps.Keys(reasons)) {
		fmt.Fprintf(&b, "| `%s` | %s |\n", reason, nextStep(reason))
	}
	return b.String()
}
