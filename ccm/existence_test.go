package ccm

import (
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
	"k8s.io/client-go/tools/record"
	cloudprovider "k8s.io/cloud-provider"
	cloudproviderapi "k8s.io/cloud-provider/api"

	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

var updateAnswers = flag.Bool("update-answers", false, "write ANSWERS.md")

// What a cloud's answer says of the instance.
const (
	exists  = "exists"
	gone    = "gone"
	unknown = "unknown"
)

// answer is one that the cloud can give about a Node's instance, and what
// follows. It is a row of ANSWERS.md.
type answer struct {
	answer string

	// What the Node has, and what the cloud answers; a call without an answer fails the test.
	providerID string
	get        func(string) (*api.Instance, error)
	list       func(client.InstanceFilter) ([]api.Instance, error)
	token      func() (*api.Project, error) // our project's, unless said

	concludes string
	reason    string // of the Event on a Node that waits for its initialisation
	shutdown  bool
	// hollow is an instance that is there, but of which too little is known to
	// initialise a Node.
	hollow bool
	// came is when the Node was created: long ago, unless said.
	came time.Time
}

// asked is the Node that the row is about.
func (a answer) asked() *corev1.Node {
	n := node(a.providerID)
	n.CreationTimestamp = metav1.NewTime(a.came)
	return n
}

func (a answer) node() string {
	switch {
	case a.concludes == gone:
		return "deleted, once it is not Ready or the event stream tells; one of too many at once is held (see package guard)"
	case a.concludes == unknown:
		return "stays as it is, asked about again; a new one keeps its taint"
	case a.hollow:
		return "stays as it is, addresses too; a new one keeps its taint"
	case a.shutdown:
		return "stays; gets upstream's shutdown taint when it is not Ready; a new one is initialised"
	}
	return "stays; a new one is initialised"
}

func (a answer) balancer() string {
	if a.concludes == gone {
		return "loses the target with the Node, or before, when the cloud refuses it by name"
	}
	return "keeps the target"
}

func (a answer) route() string {
	switch a.concludes {
	case gone:
		return "deleted with the Node; no new one"
	case unknown:
		return "stays; no new one"
	}
	return "stays; a missing one is made"
}

func with(change func(*api.Instance)) func(string) (*api.Instance, error) {
	return func(string) (*api.Instance, error) {
		i := instance(api.InstanceRunning)
		change(&i)
		return &i, nil
	}
}

func inState(s api.InstanceState) func(string) (*api.Instance, error) {
	return with(func(i *api.Instance) { i.State = s })
}

func failsWith(err error) func(string) (*api.Instance, error) {
	return func(string) (*api.Instance, error) { return nil, err }
}

func lists(list ...api.Instance) func(client.InstanceFilter) ([]api.Instance, error) {
	return func(client.InstanceFilter) ([]api.Instance, error) { return list, nil }
}

func changed(s api.InstanceState, id, project string) api.Instance {
	i := instance(s)
	i.ID, i.Project = id, project
	return i
}

func othersToken() (*api.Project, error) { return &api.Project{ID: "p-other", Name: "other"}, nil }

const byID = "fakecloud://i-1"

func answersByID() []answer {
	hollow := with
	rows := []answer{
		{answer: "200, pending", get: inState(api.InstancePending), concludes: exists},
		{answer: "200, running", get: inState(api.InstanceRunning), concludes: exists},
		{answer: "200, stopping", get: inState(api.InstanceStopping), concludes: exists},
		{
			answer: "200, stopped", get: inState(api.InstanceStopped), concludes: exists, shutdown: true,
			reason: contract.ReasonInstanceStopped,
		},
		{
			answer: "200, error", get: inState(api.InstanceError), concludes: exists,
			reason: contract.ReasonInstanceInError,
		},
		{answer: "200, terminating", get: inState(api.InstanceTerminating), concludes: exists},
		{
			answer: "200, terminated", get: inState(api.InstanceTerminated), concludes: gone,
			reason: contract.ReasonInstanceNotFound,
		},
		{answer: "200, terminated, of another project", get: with(func(i *api.Instance) {
			i.State, i.Project = api.InstanceTerminated, "p-other"
		}), concludes: unknown, reason: contract.ReasonWrongProject},
		{answer: "200, running, of another project", get: with(func(i *api.Instance) {
			i.Project = "p-other"
		}), concludes: unknown, reason: contract.ReasonWrongProject},
		{answer: "200, about another instance", get: with(func(i *api.Instance) {
			i.ID = "i-2"
		}), concludes: unknown, reason: contract.ReasonCloudUnavailable},
		{answer: "200, an empty object", get: func(string) (*api.Instance, error) {
			return &api.Instance{}, nil
		}, concludes: unknown, reason: contract.ReasonCloudUnavailable},
		{
			answer:    "200, garbage, or without a field that the API promises",
			get:       failsWith(errors.New("the cloud's answer is not what its API promises: zone of i-1 is missing")),
			concludes: unknown, reason: contract.ReasonCloudUnavailable,
		},
		{answer: "200, without an internal address", get: hollow(func(i *api.Instance) {
			i.Addresses = i.Addresses[1:]
		}), concludes: exists, hollow: true, reason: contract.ReasonCloudUnavailable},
		{
			answer: "404 of our project", get: failsWith(problem(404, api.NotFound, ourProject)), concludes: gone,
			reason: contract.ReasonInstanceNotFound,
		},
		{
			answer: "404 of another project: the token was swapped",
			get:    failsWith(problem(404, api.NotFound, "p-other")), token: othersToken, concludes: unknown,
			reason: contract.ReasonWrongProject,
		},
		{
			answer: "404 of another project, our token is back", get: failsWith(problem(404, api.NotFound, "p-other")),
			concludes: unknown, reason: contract.ReasonWrongProject,
		},
		{
			answer:    "404 that names no project",
			get:       failsWith(&client.Error{Status: 404, Problem: api.Problem{Status: 404, Code: api.NotFound}}),
			concludes: unknown, reason: contract.ReasonCloudUnavailable,
		},
		{
			answer: "404 of something on the way",
			get:    failsWith(&client.Error{Status: 404, Problem: api.Problem{Detail: "nginx"}}), concludes: unknown,
			reason: contract.ReasonCloudUnavailable,
		},
		{
			answer: "401", get: failsWith(problem(401, api.Unauthenticated, "")), concludes: unknown,
			reason: contract.ReasonCloudAccessDenied,
		},
		{
			answer: "403", get: failsWith(problem(403, api.Forbidden, ourProject)), concludes: unknown,
			reason: contract.ReasonCloudAccessDenied,
		},
		{
			answer: "409", get: failsWith(problem(409, api.WrongState, ourProject)), concludes: unknown,
			reason: contract.ReasonCloudUnavailable,
		},
		{
			answer: "410", get: failsWith(&client.Error{Status: 410}), concludes: unknown,
			reason: contract.ReasonCloudUnavailable,
		},
		{
			answer: "429", get: failsWith(problem(429, api.RateLimited, ourProject)), concludes: unknown,
			reason: contract.ReasonCloudThrottled,
		},
		{
			answer: "500", get: failsWith(problem(500, api.Internal, ourProject)), concludes: unknown,
			reason: contract.ReasonCloudUnavailable,
		},
		{
			answer: "502, 503 or 504 of something on the way", get: failsWith(&client.Error{Status: 503}),
			concludes: unknown, reason: contract.ReasonCloudUnavailable,
		},
		{
			answer: "timeout", get: failsWith(context.DeadlineExceeded), concludes: unknown,
			reason: contract.ReasonCloudUnavailable,
		},
		{
			answer: "connection refused", get: failsWith(errors.New("connect: connection refused")), concludes: unknown,
			reason: contract.ReasonCloudUnavailable,
		},
		{answer: "404 of our project, which cannot be told from another as the cloud is down", get: failsWith(
			problem(404, api.NotFound, ourProject),
		),
			token: func() (*api.Project, error) {
				return nil, context.DeadlineExceeded
			}, concludes: unknown, reason: contract.ReasonCloudUnavailable},
		{
			answer: "none: the provider ID is another cloud's", providerID: "aws:///eu/i-1", concludes: unknown,
			reason: contract.ReasonForeignProviderID,
		},
		{
			answer: "none: the provider ID names no instance", providerID: "fakecloud://", concludes: unknown,
			reason: contract.ReasonForeignProviderID,
		},
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
	running, ended := instance(api.InstanceRunning), changed(api.InstanceTerminated, "i-0", ourProject)
	ended.UpdatedAt = end
	capitals := running
	capitals.Name = strings.ToUpper(running.Name)
	timeless := ended
	timeless.UpdatedAt = time.Time{}
	tagged := func(cluster, id string) api.Instance {
		i := changed(api.InstanceRunning, id, ourProject)
		i.Tags = api.Tags{contract.TagCluster: cluster}
		return i
	}
	return []answer{
		{answer: "a list with one of that name", list: lists(running), concludes: exists},
		{answer: "a list with one of that name in capitals", list: lists(capitals), concludes: exists},
		{answer: "a list with one of that name and an ended namesake", list: lists(ended, running), concludes: exists},
		{
			answer: "a list with one of that name, and one that is tagged for another cluster",
			list:   lists(running, tagged("other", "i-2")), concludes: exists,
		},
		{
			answer: "a list with one that is tagged for this cluster, and one without a tag",
			list:   lists(tagged(clusterName, "i-1"), changed(api.InstanceRunning, "i-2", ourProject)), concludes: exists,
		},
		{
			answer: "a list with one that is tagged for another cluster", list: lists(tagged("other", "i-2")),
			concludes: unknown, reason: contract.ReasonInstanceNotFound,
		},
		{
			answer: "a list without the name: empty, partial, stale, or too early", list: lists(), concludes: unknown,
			reason: contract.ReasonInstanceNotFound,
		},
		{
			answer:    "a list of others: the filter was not understood",
			list:      lists(api.Instance{ID: "i-9", Name: "other", Project: ourProject, State: api.InstanceRunning}),
			concludes: unknown, reason: contract.ReasonInstanceNotFound,
		},
		{
			answer: "an empty list, the token was swapped", list: lists(), token: othersToken, concludes: unknown,
			reason: contract.ReasonWrongProject,
		},
		{
			answer: "a list of another project's", list: lists(changed(api.InstanceRunning, "i-7", "p-other")),
			concludes: unknown, reason: contract.ReasonWrongProject,
		},
		{
			answer: "a list with another project's ended one",
			list:   lists(changed(api.InstanceTerminated, "i-7", "p-other")), concludes: unknown,
			reason: contract.ReasonWrongProject,
		},
		{
			answer: "a list with two of that name",
			list:   lists(running, changed(api.InstanceStopped, "i-2", ourProject)), concludes: unknown,
			reason: contract.ReasonInstanceAmbiguous,
		},
		{answer: "a list with only an ended one; 200, terminated", list: lists(ended), get: with(func(i *api.Instance) {
			*i = ended
		}), concludes: gone, reason: contract.ReasonInstanceNotFound},
		{
			answer: "a list with only an ended one; 404 of our project", list: lists(ended),
			get: failsWith(problem(404, api.NotFound, ourProject)), concludes: gone,
			reason: contract.ReasonInstanceNotFound,
		},
		{
			answer: "a list with only an ended one, and the Node came after its end: a stale list hides a live namesake",
			came:   end.Add(time.Minute).Truncate(time.Second), list: lists(ended), concludes: unknown,
			reason: contract.ReasonInstanceNotFound,
		},
		{
			answer: "a list with only an ended one, and the Node came within the second of its end",
			came:   end.Truncate(time.Second), list: lists(ended), concludes: unknown,
			reason: contract.ReasonInstanceNotFound,
		},
		{
			answer: "a list with only an ended one, which does not say when it ended", came: end, list: lists(timeless),
			concludes: unknown, reason: contract.ReasonInstanceNotFound,
		},
		{
			answer: "a list with only an ended one; timeout", list: lists(ended),
			get: failsWith(context.DeadlineExceeded), concludes: unknown, reason: contract.ReasonCloudUnavailable,
		},
		{answer: "the list fails", list: func(client.InstanceFilter) ([]api.Instance, error) {
			return nil, errors.New("boom")
		}, concludes: unknown, reason: contract.ReasonCloudUnavailable},
		{answer: "the list is throttled", list: func(client.InstanceFilter) ([]api.Instance, error) {
			return nil, problem(429, api.RateLimited, ourProject)
		}, concludes: unknown, reason: contract.ReasonCloudThrottled},
	}
}

// cloud is one that gives this answer, seen by a new CCM.
func (a answer) cloud(t *testing.T) (*fakeAPI, *instances, *record.FakeRecorder) {
	f := &fakeAPI{t: t, getInstance: a.get, listInstances: a.list}
	if a.token != nil {
		f.project = a.token
	}
	i := newInstances(f)
	recorder := record.NewFakeRecorder(20)
	i.explain.setRecorder(recorder)
	return f, i, recorder
}

// What each answer of a cloud makes of a Node, its route, and what it says.
func TestAnswers(t *testing.T) {
	for _, a := range append(answersByID(), answersByName()...) {
		t.Run(strings.ReplaceAll(a.answer, "/", " "), func(t *testing.T) {
			_, i, _ := a.cloud(t)
			a.testExistence(t, i)
			_, i, recorder := a.cloud(t)
			a.testInitialisation(t, i, recorder)
			f, i, _ := a.cloud(t)
			a.testRoute(t, f, i)
		})
	}
	doc := answersDoc()
	if *updateAnswers {
		require.NoError(t, os.WriteFile("ANSWERS.md", []byte(doc), 0o644))
	}
	written, err := os.ReadFile("ANSWERS.md")
	require.NoError(t, err)
	assert.Equal(t, doc, string(written), "ANSWERS.md is not of this table: go generate ./ccm")
}

func (a answer) testExistence(t *testing.T, i *instances) {
	there, err := i.InstanceExists(t.Context(), a.asked())
	shutdown, shutdownErr := i.InstanceShutdown(t.Context(), a.asked())
	switch a.concludes {
	case exists:
		require.NoError(t, err)
		require.NoError(t, shutdownErr)
		assert.True(t, there)
		assert.Equal(t, a.shutdown, shutdown)
	case gone:
		require.NoError(t, err)
		assert.False(t, there)
		assert.ErrorIs(t, shutdownErr, cloudprovider.InstanceNotFound)
	case unknown:
		require.Error(t, err)
		require.Error(t, shutdownErr)
		assert.NotErrorIs(t, err, cloudprovider.InstanceNotFound)
	default:
		require.Fail(t, "no conclusion", a.concludes)
	}
}

func (a answer) testInitialisation(t *testing.T, i *instances, recorder *record.FakeRecorder) {
	fresh := a.asked()
	fresh.Spec.Taints = []corev1.Taint{{Key: cloudproviderapi.TaintExternalCloudProvider}}
	var err error
	for range 3 {
		_, err = i.InstanceMetadata(t.Context(), fresh)
	}
	assert.Equal(t, a.concludes == exists && !a.hollow, err == nil, "%v", err)
	assert.Equal(t, a.concludes == gone, errors.Is(err, cloudprovider.InstanceNotFound))
	if a.reason == "" {
		assert.Empty(t, recorder.Events)
		return
	}
	require.Len(t, recorder.Events, 1, "one Event per cause")
	event := <-recorder.Events
	assert.True(t, strings.HasPrefix(event, "Warning "+a.reason+" "), event)
	assert.True(t, strings.HasSuffix(event, "; "+nextStep(a.reason)), event)
	assert.Equal(t, err != nil, strings.Contains(event, "Node stays uninitialized: "), event)
}

func (a answer) testRoute(t *testing.T, f *fakeAPI, i *instances) {
	made := 0
	f.createRoute = func(api.RouteCreate) (*api.Route, error) { made++; r := route(); return &r, nil }
	r := newRoutes(t, f, a.asked())
	r.instances = i
	err := r.CreateRoute(t.Context(), clusterName, "", wanted())
	assert.Equal(t, a.concludes == exists, err == nil, "%v", err)
	assert.Equal(t, a.concludes == exists, made == 1)
}

func answersDoc() string {
	var b strings.Builder
	b.WriteString(`# The cloud's answers, and what follows

<!-- Made by "go generate ./ccm" of the table that TestAnswers runs (existence_test.go). -->

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
	for _, part := range []struct {
		title string
		rows  []answer
	}{
		{"Asked for the instance of a provider ID", answersByID()},
		{"Asked for the instance of a Node without one, by its name", answersByName()},
	} {
		fmt.Fprintf(
			&b,
			"\n## %s\n\n| the cloud's answer | the instance | the Node | its place in balancers | its route | Event |\n|---|---|---|---|---|---|\n",
			part.title,
		)
		for _, a := range part.rows {
			reason := "–"
			if a.reason != "" {
				reason = "`" + a.reason + "`"
			}
			fmt.Fprintf(
				&b, "| %s | %s | %s | %s | %s | %s |\n", a.answer, a.concludes, a.node(), a.balancer(), a.route(),
				reason,
			)
		}
	}
	b.WriteString("\n## The reasons, and what to do\n\n| reason | what to do |\n|---|---|\n")
	reasons := map[string]bool{}
	for _, a := range append(answersByID(), answersByName()...) {
		reasons[a.reason] = true
	}
	delete(reasons, "")
	for _, reason := range slices.Sorted(maps.Keys(reasons)) {
		fmt.Fprintf(&b, "| `%s` | %s |\n", reason, nextStep(reason))
	}
	return b.String()
}
