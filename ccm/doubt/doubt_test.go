package doubt_test

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/ccm/core"
	"github.com/ccmlab/ccmlab/ccm/doubt"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

// source answers about project "p-" + its project, whose name is that of its token. Calls that it does not
// have panic.
type source struct {
	doubt.Source
	mu      sync.Mutex
	token   string
	project string // "nobody's" for a cloud that does not answer
	asked   int    // how often somebody asked for the project

	whileAsked func()
	instance   func(id string) (*api.Instance, error)
	instances  func() ([]api.Instance, error)
	follow     func(ctx context.Context, fn func(api.Event) error, onBreak func(error)) error
}

func newSource() (*source, *doubt.Cloud) {
	s := &source{token: "a", project: "lab"}
	return s, doubt.Reject(s, "lab", s.currentToken)
}

func (s *source) currentToken() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.token
}

// use swaps the token, and with it the project.
func (s *source) use(token, project string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.token, s.project = token, project
}

func (s *source) Project(context.Context) (*api.Project, error) {
	s.mu.Lock()
	s.asked++
	name, meanwhile := s.project, s.whileAsked
	s.mu.Unlock()
	if meanwhile != nil {
		meanwhile()
	}
	if name == "nobody's" {
		return nil, errors.New("no answer")
	}
	return &api.Project{ID: "p-" + name, Name: name}, nil
}

func (s *source) GetInstance(_ context.Context, id string) (*api.Instance, error) {
	return s.instance(id)
}

func (s *source) ListInstances(context.Context, client.InstanceFilter) ([]api.Instance, error) {
	return s.instances()
}

func (s *source) DeleteRoute(context.Context, string) error { return notFoundIn("p-other") }

func (s *source) Follow(
	ctx context.Context, _ int64, fn func(api.Event) error, onBreak func(error), _ ...client.EventFilter,
) error {
	return s.follow(ctx, fn, onBreak)
}

func notFoundIn(project string) error {
	return &client.Error{Status: http.StatusNotFound, Problem: api.Problem{Code: api.NotFound, Project: &project}}
}

func TestOneResource(t *testing.T) {
	for name, tc := range map[string]struct {
		answer   *api.Instance
		refusal  error
		project  string // "lab" unless it is set
		want     string // the error; "" for none
		notFound bool
	}{
		"it is there":                         {answer: &api.Instance{ID: "i-1", Project: "p-lab"}},
		"not found":                           {refusal: notFoundIn("p-lab"), want: "not-found", notFound: true},
		"not found in another project":        {refusal: notFoundIn("p-other"), want: `project "p-other" is not ours`},
		"not found, by another's token":       {refusal: notFoundIn("p-lab"), project: "other", want: "belongs to project other"},
		"not found, and nobody knows whose":   {refusal: notFoundIn("p-lab"), project: "nobody's", want: "no answer"},
		"another refusal":                     {refusal: errors.New("boom"), want: "boom"},
		"another instance":                    {answer: &api.Instance{ID: "i-2", Project: "p-lab"}, want: `instance i-1 and answered with "i-2"`},
		"that instance, of another project":   {answer: &api.Instance{ID: "i-1", Project: "p-other"}, want: `i-1 belongs to project "p-other"`},
		"that instance, and by another token": {answer: &api.Instance{ID: "i-1", Project: "p-lab"}, project: "other", want: "belongs to project other"},
	} {
		t.Run(name, func(t *testing.T) {
			s, c := newSource()
			s.project = cmp.Or(tc.project, s.project)
			s.instance = func(string) (*api.Instance, error) { return tc.answer, tc.refusal }
			_, err := c.GetInstance(t.Context(), "i-1")
			assert.Equal(t, tc.notFound, client.IsNotFound(err))
			if tc.want == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, tc.want)
			}
		})
	}
}

func TestDeletionsAreOfOurProject(t *testing.T) {
	_, c := newSource()
	err := c.DeleteRoute(t.Context(), "r-1")
	assert.Equal(t, contract.ReasonWrongProject, core.CauseOf(err).Reason)
	assert.False(t, client.IsNotFound(err))
}

func TestLists(t *testing.T) {
	const ours, theirs = "p-lab", "p-other"
	swap := func(s *source) { s.use("b", "other") }
	for name, tc := range map[string]struct {
		shows         []string // projects
		before, while func(*source)
		refusal       error
		want          string
	}{
		"ours":                                    {shows: []string{ours, ours}},
		"none of ours":                            {},
		"one of another project":                  {shows: []string{ours, theirs}, want: `project "p-other", which is not ours`},
		"not found":                               {refusal: notFoundIn(ours), want: "a list was asked for"},
		"not found in another project":            {refusal: notFoundIn(theirs), want: "is not ours"},
		"none, and the token is another's":        {before: swap, want: "belongs to project other"},
		"none, and the token was swapped":         {while: swap, want: "belongs to project other"},
		"none, and the token was swapped by ours": {while: func(s *source) { s.use("b", "lab") }, want: "token has changed"},
	} {
		t.Run(name, func(t *testing.T) {
			s, c := newSource()
			require.NoError(t, c.CheckToken(t.Context()))
			if tc.before != nil {
				tc.before(s)
			}
			s.instances = func() (found []api.Instance, err error) {
				if tc.while != nil {
					tc.while(s)
				}
				for _, project := range tc.shows {
					found = append(found, api.Instance{Project: project})
				}
				return found, tc.refusal
			}
			found, err := c.ListInstances(t.Context(), client.InstanceFilter{})
			if tc.want == "" {
				require.NoError(t, err)
				assert.Len(t, found, len(tc.shows))
				return
			}
			require.ErrorContains(t, err, tc.want)
			assert.False(t, client.IsNotFound(err), "nothing is said of any resource")
			assert.Empty(t, found)
		})
	}
}

func TestTheProjectIsAskedForOncePerToken(t *testing.T) {
	s, c := newSource()
	for _, token := range []string{"a", "b"} {
		s.use(token, "lab")
		for range 3 {
			require.NoError(t, c.CheckToken(t.Context()))
		}
	}
	assert.Equal(t, 2, s.asked)
	s.use("c", "other")
	for range 3 {
		require.ErrorContains(t, c.CheckToken(t.Context()),
			`the cloud token belongs to project other (p-other), but this CCM is configured for "lab"`)
	}
	assert.Equal(t, 5, s.asked, "again and again, for as long as it is not ours")
	s.use("c", "lab")
	require.NoError(t, c.CheckToken(t.Context()))
}

// The answer may be about either token.
func TestTokenSwappedWhileTheProjectIsAskedFor(t *testing.T) {
	s, c := newSource()
	s.whileAsked = func() { s.use("b", "lab") }
	require.ErrorContains(t, c.CheckToken(t.Context()), "token has changed")
	require.NoError(t, c.CheckToken(t.Context()))
	assert.Equal(t, 2, s.asked)
}

// All workers notice a new token at once, and the cloud is asked once.
func TestOneQuestionForAllWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, c := newSource()
		answer := make(chan struct{})
		s.whileAsked = func() { <-answer }
		for range 30 {
			go func() { assert.NoError(t, c.CheckToken(t.Context())) }()
		}
		synctest.Wait()
		close(answer)
		synctest.Wait()
		assert.Equal(t, 1, s.asked)
	})
}

func TestStreams(t *testing.T) {
	swap := func(s *source) { s.use("b", "other") }
	ours := api.Event{Instance: &api.Instance{ID: "i-1", Project: "p-lab"}}
	theirs := api.Event{LoadBalancer: &api.LoadBalancer{ID: "lb-1", Project: "p-other"}}
	for name, tc := range map[string]struct {
		before, later func(*source) // before the stream opens, and a minute later
		event         api.Event
		want          string // why it ends
		applied       int
	}{
		"of ours":                       {event: ours, want: "the test ended it", applied: 1},
		"an event without a resource":   {want: "the test ended it", applied: 1},
		"an event of another project":   {event: theirs, want: `lb-1 belongs to project "p-other"`},
		"opened with another's token":   {before: swap, want: "belongs to project other"},
		"its token is not in use later": {later: swap, event: ours, want: "token has changed"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, c := newSource()
				require.NoError(t, c.CheckToken(t.Context()))
				s.follow = func(ctx context.Context, fn func(api.Event) error, onBreak func(error)) error {
					if tc.before != nil {
						tc.before(s)
					}
					onBreak(nil)
					time.Sleep(time.Minute)
					if tc.later != nil {
						tc.later(s)
						time.Sleep(time.Minute)
					}
					if ctx.Err() != nil {
						return ctx.Err()
					}
					if err := fn(tc.event); err != nil {
						return err
					}
					return errors.New("the test ended it")
				}
				applied, opened := 0, 0
				err := c.Follow(t.Context(), 0, func(api.Event) error { applied++; return nil }, func(err error) {
					if err == nil {
						opened++
					}
				})
				require.ErrorContains(t, err, tc.want)
				assert.Equal(t, tc.applied, applied)
				assert.Equal(t, tc.before == nil, opened == 1)
			})
		})
	}
}
