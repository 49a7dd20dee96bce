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
	byID        = "fakecloud://i-1"

	// What the CCM concludes about an instance.
	exists = "exists"
	gone   = "gone"

	// Reasons of Events.
	notFound     = contract.ReasonInstanceNotFound
	wrongProject = contract.ReasonWrongProject
	foreignID    = contract.ReasonForeignProviderID
	accessDenied = contract.ReasonCloudAccessDenied
	throttled    = contract.ReasonCloudThrottled
)

// answer is one that the cloud can give about a Node's instance, and what follows. It is a row of ANSWERS.md.
type answer struct {
	answer string

	// What the Node has, and what the cloud answers; a call without an answer fails the test.
	providerID string
	created    time.Time // the Node: long ago, unless said
	get        func() (*api.Instance, error)
	list       func() ([]api.Instance, error)
	token      func() (*api.Project, error) // our project's, unless said

	concludes string // unknown, unless said
	// reason is that of the Event on a Node that waits for its initialisation. Unless said, it is CloudUnavailable if
	// nothing is known, InstanceNotFound if the instance is gone, and there is none if it exists.
	reason   string
	shutdown bool
	// hollow is an instance that is there, but of which too little is known to initialise a Node.
	hollow bool
}

// waitingNode is the Node that the row is about, which waits for its initialisation.
func (a answer) waitingNode() *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "node-1", UID: "u1", CreationTimestamp: metav1.NewTime(a.created)},
		Spec: corev1.NodeSpec{
			ProviderID: a.providerID, Taints: []corev1.Taint{{Key: cloudproviderapi.TaintExternalCloudProvider}},
		},
	}
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

func runningInstance() api.Instance {
	return api.Instance{
		ID: "i-1", Project: ours, Name: "node-1", Region: "r", Zone: "r-a", Type: "small", State: api.InstanceRunning,
		Addresses: []api.Address{
			{Type: api.AddressInternal, IP: "127.30.16.1"}, {Type: api.AddressExternal, IP: "192.0.2.1"},
		},
	}
}

// changed is an instance with that ID, which runs but for the changes.
func changed(id string, changes ...func(*api.Instance)) api.Instance {
	i := runningInstance()
	i.ID = id
	for _, change := range changes {
		change(&i)
	}
	return i
}

func inState(s api.InstanceState) func(*api.Instance) { return func(i *api.Instance) { i.State = s } }
func inProject(id string) func(*api.Instance)         { return func(i *api.Instance) { i.Project = id } }

func inCluster(name string) func(*api.Instance) {
	return func(i *api.Instance) { i.Tags = api.Tags{contract.TagCluster: name} }
}

func shows(i api.Instance) func() (*api.Instance, error) {
	return func() (*api.Instance, error) { return &i, nil }
}

func fails(err error) func() (*api.Instance, error) {
	return func() (*api.Instance, error) { return nil, err }
}

func lists(list ...api.Instance) func() ([]api.Instance, error) {
	return func() ([]api.Instance, error) { return list, nil }
}

func failsToList(err error) func() ([]api.Instance, error) {
	return func() ([]api.Instance, error) { return nil, err }
}

// problem is an answer of the cloud itself.
func problem(status int, code api.ProblemCode, project string) error {
	return &client.Error{Status: status, Problem: api.Problem{Status: status, Code: code, Project: &project}}
}

// problemOnTheWay is an answer of something between us and the cloud.
func problemOnTheWay(status int) error { return &client.Error{Status: status} }

func theirToken() (*api.Project, error) { return &api.Project{ID: theirs, Name: "other"}, nil }
func noProject() (*api.Project, error)  { return nil, context.DeadlineExceeded }

func answersByID() []answer {
	rows := []answer{
		{answer: "200, pending", get: shows(changed("i-1", inState(api.InstancePending))), concludes: exists},
		{answer: "200, running", get: shows(runningInstance()), concludes: exists},
		{answer: "200, stopping", get: shows(changed("i-1", inState(api.InstanceStopping))), concludes: exists},
		{
			answer: "200, stopped", get: shows(changed("i-1", inState(api.InstanceStopped))), concludes: exists,
			shutdown: true, reason: contract.ReasonInstanceStopped,
		},
		{
			answer: "200, error", get: shows(changed("i-1", inState(api.InstanceError))), concludes: exists,
			reason: contract.ReasonInstanceInError,
		},
		{answer: "200, terminating", get: shows(changed("i-1", inState(api.InstanceTerminating))), concludes: exists},
		{answer: "200, terminated", get: shows(changed("i-1", inState(api.InstanceTerminated))), concludes: gone},
		{
			answer: "200, terminated, of another project",
			get:    shows(changed("i-1", inState(api.InstanceTerminated), inProject(theirs))), reason: wrongProject,
		},
		{
			answer: "200, running, of another project", get: shows(changed("i-1", inProject(theirs))),
			reason: wrongProject,
		},
		{answer: "200, about another instance", get: shows(changed("i-2"))},
		{answer: "200, an empty object", get: shows(api.Instance{})},
		{
			answer: "200, garbage, or without a field that the API promises",
			get:    fails(errors.New("the cloud's answer is not what its API promises: zone of i-1 is missing")),
		},
		{
			answer: "200, without an internal address",
			get:    shows(changed("i-1", func(i *api.Instance) { i.Addresses = i.Addresses[1:] })), concludes: exists,
			hollow: true, reason: contract.ReasonCloudUnavailable,
		},
		{answer: "404 of our project", get: fails(problem(404, api.NotFound, ours)), concludes: gone},
		{
			answer: "404 of another project: the token was swapped", get: fails(problem(404, api.NotFound, theirs)),
			token: theirToken, reason: wrongProject,
		},
		{
			answer: "404 of another project, our token is back", get: fails(problem(404, api.NotFound, theirs)),
			reason: wrongProject,
		},
		{
			answer: "404 that names no project",
			get:    fails(&client.Error{Status: 404, Problem: api.Problem{Status: 404, Code: api.NotFound}}),
		},
		{answer: "404 of something on the way", get: fails(problemOnTheWay(404))},
		{answer: "401", get: fails(problem(401, api.Unauthenticated, "")), reason: accessDenied},
		{answer: "403", get: fails(problem(403, api.Forbidden, ours)), reason: accessDenied},
		{answer: "409", get: fails(problem(409, api.WrongState, ours))},
		{answer: "410", get: fails(problemOnTheWay(410))},
		{answer: "429", get: fails(problem(429, api.RateLimited, ours)), reason: throttled},
		{answer: "500", get: fails(problem(500, api.Internal, ours))},
		{answer: "502, 503 or 504 of something on the way", get: fails(problemOnTheWay(503))},
		{answer: "timeout", get: fails(context.DeadlineExceeded)},
		{answer: "connection refused", get: fails(errors.New("connect: connection refused"))},
		{
			answer: "404 of our project, which cannot be told from another as the cloud is down",
			get:    fails(problem(404, api.NotFound, ours)), token: noProject,
		},
		{answer: "none: the provider ID is another cloud's", providerID: "aws:///eu/i-1", reason: foreignID},
		{answer: "none: the provider ID names no instance", providerID: "fakecloud://", reason: foreignID},
	}
	for n := range rows {
		if rows[n].providerID == "" {
			rows[n].providerID = byID
		}
	}
	return rows
}

func answersByName() []answer {
	end := time.Date(2026, 1, 2, 3, 4, 5, 600e6, time.UTC)
	running := runningInstance()
	ended := changed("i-0", inState(api.InstanceTerminated), func(i *api.Instance) { i.UpdatedAt = end })
	timeless := changed("i-0", inState(api.InstanceTerminated))
	return []answer{
		{answer: "a list with one of that name", list: lists(running), concludes: exists},
		{
			answer: "a list with one of that name in capitals", concludes: exists,
			list: lists(changed("i-1", func(i *api.Instance) { i.Name = "NODE-1" })),
		},
		{answer: "a list with one of that name and an ended namesake", list: lists(ended, running), concludes: exists},
		{
			answer: "a list with one of that name, and one that is tagged for another cluster", concludes: exists,
			list: lists(running, changed("i-2", inCluster("other"))),
		},
		{
			answer: "a list with one that is tagged for this cluster, and one without a tag", concludes: exists,
			list: lists(changed("i-1", inCluster("lab")), changed("i-2")),
		},
		{
			answer: "a list with one that is tagged for another cluster",
			list:   lists(changed("i-2", inCluster("other"))), reason: notFound,
		},
		{answer: "a list without the name: empty, partial, stale, or too early", list: lists(), reason: notFound},
		{
			answer: "a list of others: the filter was not understood",
			list:   lists(changed("i-9", func(i *api.Instance) { i.Name = "other" })), reason: notFound,
		},
		{answer: "an empty list, the token was swapped", list: lists(), token: theirToken, reason: wrongProject},
		{answer: "a list of another project's", list: lists(changed("i-7", inProject(theirs))), reason: wrongProject},
		{
			answer: "a list with another project's ended one",
			list:   lists(changed("i-7", inState(api.InstanceTerminated), inProject(theirs))), reason: wrongProject,
		},
		{
			answer: "a list with two of that name", list: lists(running, changed("i-2", inState(api.InstanceStopped))),
			reason: contract.ReasonInstanceAmbiguous,
		},
		{
			answer: "a list with only an ended one; 200, terminated", list: lists(ended), get: shows(ended),
			concludes: gone,
		},
		{
			answer: "a list with only an ended one; 404 of our project", list: lists(ended),
			get: fails(problem(404, api.NotFound, ours)), concludes: gone,
		},
		{
			answer:  "a list with only an ended one, and the Node came after its end: a stale list hides a live namesake",
			created: end.Add(time.Minute).Truncate(time.Second), list: lists(ended), reason: notFound,
		},
		{
			answer:  "a list with only an ended one, and the Node came within the second of its end",
			created: end.Truncate(time.Second), list: lists(ended), reason: notFound,
		},
		{
			answer: "a list with only an ended one, which does not say when it ended", created: end,
			list: lists(timeless), reason: notFound,
		},
		{answer: "a list with only an ended one; timeout", list: lists(ended), get: fails(context.DeadlineExceeded)},
		{answer: "the list fails", list: failsToList(errors.New("boom"))},
		{answer: "the list is throttled", list: failsToList(problem(429, api.RateLimited, ours)), reason: throttled},
	}
}

// answeringCloud is a cloud that gives one answer, and takes any route.
type answeringCloud struct {
	doubt.Source
	t      *testing.T
	answer answer
	routes int // that were created
}

func (c *answeringCloud) GetInstance(_ context.Context, id string) (*api.Instance, error) {
	require.NotNil(c.t, c.answer.get, "unexpected GetInstance(%s)", id)
	return c.answer.get()
}

func (c *answeringCloud) ListInstances(context.Context, client.InstanceFilter) ([]api.Instance, error) {
	require.NotNil(c.t, c.answer.list, "unexpected ListInstances")
	return c.answer.list()
}

func (c *answeringCloud) Project(context.Context) (*api.Project, error) {
	if c.answer.token != nil {
		return c.answer.token()
	}
	return &api.Project{ID: ours, Name: "lab"}, nil
}

func (c *answeringCloud) CreateRoute(context.Context, api.RouteCreate) (*api.Route, error) {
	c.routes++
	return &api.Route{}, nil
}

// newProvider is what a new CCM without a cache makes of the answer.
func (a answer) newProvider(t *testing.T) (core.Provider, *answeringCloud, *record.FakeRecorder) {
	cloud, cluster := &answeringCloud{t: t, answer: a}, core.NewCluster("lab")
	explainer, recorder := events.New(), record.NewFakeRecorder(20)
	cluster.SetUID("cluster-uid")
	explainer.SetRecorder(recorder)
	p := core.New(doubt.Reject(cloud, "lab", func() string { return "" }), cluster,
		core.Options{Addresses: config.Default().NodeAddresses})
	nodes := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	require.NoError(t, nodes.Add(a.waitingNode()))
	p.Routes.Follow(corelisters.NewNodeLister(nodes))
	return explainer.Explain(p), cloud, recorder
}

// What each answer of a cloud makes of a Node, its route, and what it says.
func TestAnswers(t *testing.T) {
	for _, a := range append(answersByID(), answersByName()...) {
		t.Run(strings.ReplaceAll(a.answer, "/", " "), func(t *testing.T) {
			a.testExistence(t)
			a.testInitialisation(t)
			p, cloud, _ := a.newProvider(t)
			err := p.Routes.CreateRoute(t.Context(), "lab", "", &cloudprovider.Route{
				TargetNode: "node-1", DestinationCIDR: "10.244.1.0/24",
			})
			assert.Equal(t, a.concludes == exists, err == nil, "%v", err)
			assert.Equal(t, a.concludes == exists, cloud.routes == 1)
		})
	}
	doc := answersDoc()
	if *updateAnswers {
		require.NoError(t, os.WriteFile(answersFile, []byte(doc), 0o644))
	}
	written, err := os.ReadFile(answersFile)
	require.NoError(t, err)
	assert.Equal(t, doc, string(written), "ANSWERS.md is not of this table: go generate ./ccm/core")
}

func (a answer) testExistence(t *testing.T) {
	p, _, _ := a.newProvider(t)
	there, err := p.Instances.InstanceExists(t.Context(), a.waitingNode())
	shutdown, shutdownErr := p.Instances.InstanceShutdown(t.Context(), a.waitingNode())
	switch a.concludes {
	case exists:
		require.NoError(t, errors.Join(err, shutdownErr))
		assert.True(t, there)
		assert.Equal(t, a.shutdown, shutdown)
	case gone:
		require.NoError(t, err)
		assert.False(t, there)
		assert.ErrorIs(t, shutdownErr, cloudprovider.InstanceNotFound)
	default:
		require.Error(t, err)
		require.Error(t, shutdownErr)
		assert.NotErrorIs(t, err, cloudprovider.InstanceNotFound)
	}
}

func (a answer) testInitialisation(t *testing.T) {
	p, _, recorder := a.newProvider(t)
	var err error
	for range 3 {
		_, err = p.Instances.InstanceMetadata(t.Context(), a.waitingNode())
	}
	assert.Equal(t, a.concludes == exists && !a.hollow, err == nil, "%v", err)
	assert.Equal(t, a.concludes == gone, errors.Is(err, cloudprovider.InstanceNotFound))
	reason := a.eventReason()
	if reason == "" {
		assert.Empty(t, recorder.Events)
		return
	}
	require.Len(t, recorder.Events, 1, "one Event per cause")
	event := <-recorder.Events
	assert.True(t, strings.HasPrefix(event, "Warning "+reason+" "), event)
	assert.Equal(t, err != nil, strings.Contains(event, "Node stays uninitialized: "), event)
}

// nextStep is what an Event with that reason says that people can do.
func nextStep(reason string) string {
	explainer, recorder := events.New(), record.NewFakeRecorder(1)
	explainer.SetRecorder(recorder)
	explainer.WarnOnce(&corev1.Node{}, "", reason, "", "")
	return strings.TrimPrefix(<-recorder.Events, "Warning "+reason+" ; ")
}

func answersDoc() string {
	var b strings.Builder
	b.WriteString(`# The cloud's answers, and what follows

<!-- Made by "go generate ./ccm/core" of the table that TestAnswers runs (core/existence_test.go). -->

What the CCM concludes about the instance of a Node from each answer that a cloud
can give. A Node is deleted on "gone" only, and that takes the cloud's own and
fresh word about that one instance, for the project that the CCM is configured
for. Which one that is, the Node's provider ID says. A Node that has none yet is
taken for that of an ended instance only if it has its name, no list shows another
of that name, and the Node was created before that instance ended, by the clocks
of the API server and the cloud; so a list that hides the Node's own instance
deletes no Node that came after its namesake's end. The Event is the one on a Node
that waits to be initialised; it comes once, not at every retry.
`)
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
