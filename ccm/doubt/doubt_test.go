package doubt_test

import (
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

// source answers about the project of its token, whose ID is "p-" and its name. Calls that it does not have panic.
type source struct {
	doubt.Source
	mu             sync.Mutex
	token, project string // no project for a cloud that does not answer
	asked          int    // how often somebody asked for the project

	whileAsked func(*source)
	found      []api.Instance
	refusal    error
	follow     func(ctx context.Context, fn func(api.Event) error, onBreak func(error)) error
}

// newSource has a token of project lab.
func newSource() (*source, *doubt.Cloud) {
	s := &source{token: "a", project: "lab", whileAsked: nothing}
	return s, doubt.Reject(s, "lab", func() string {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.token
	})
}

func (s *source) use(token, project string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.token, s.project = token, project
}

func nothing(*source)                 {}
func useOthers(s *source)             { s.use("b", "other") }
func useAnother(s *source)            { s.use("b", "lab") }
func useNobodys(s *source)            { s.use("b", "") }
func inProject(p string) api.Instance { return api.Instance{ID: "i-1", Project: p} }

func (s *source) Project(context.Context) (*api.Project, error) {
	s.mu.Lock()
	s.asked++
	name := s.project
	s.mu.Unlock()
	s.whileAsked(s)
	if name == "" {
		return nil, errors.New("no answer")
	}
	return &api.Project{ID: "p-" + name, Name: name}, nil
}

func (s *source) GetInstance(context.Context, string) (*api.Instance, error) {
	return &s.found[0], s.refusal
}

func (s *source) ListInstances(context.Context, client.InstanceFilter) ([]api.Instance, error) {
	s.whileAsked(s)
	return s.found, s.refusal
}

func (s *source) DeleteRoute(context.Context, string) error { return s.refusal }

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
		found   api.Instance
		refusal error
		token   func(*source) // in use; nil for ours
		want    string        // the error; "" for none
	}{
		"it is there":                         {found: inProject("p-lab")},
		"not found":                           {refusal: notFoundIn("p-lab"), want: "not-found"},
		"not found in another project":        {refusal: notFoundIn("p-other"), want: `project "p-other" is not ours`},
		"not found, by another's token":       {refusal: notFoundIn("p-lab"), token: useOthers, want: "to project other"},
		"not found, and nobody knows whose":   {refusal: notFoundIn("p-lab"), token: useNobodys, want: "no answer"},
		"another refusal":                     {refusal: errors.New("boom"), want: "boom"},
		"another instance":                    {found: api.Instance{ID: "i-2", Project: "p-lab"}, want: `i-1 and answered with "i-2"`},
		"that instance, of another project":   {found: inProject("p-other"), want: `i-1 belongs to project "p-other"`},
		"that instance, and by another token": {found: inProject("p-lab"), token: useOthers, want: "to project other"},
	} {
		t.Run(name, func(t *testing.T) {
			s, c := newSource()
			s.found, s.refusal = []api.Instance{tc.found}, tc.refusal
			if tc.token != nil {
				tc.token(s)
			}
			_, err := c.GetInstance(t.Context(), "i-1")
			assert.Equal(t, tc.want == "not-found", client.IsNotFound(err))
			if tc.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, tc.want)
			if tc.refusal != nil {
				err = c.DeleteRoute(t.Context(), "r-1")
				require.ErrorContains(t, err, tc.want, "nor is a deletion believed")
				assert.Equal(t, tc.want == "not-found", client.IsNotFound(err))
			}
		})
	}
}

func TestLists(t *testing.T) {
	ours, theirs := inProject("p-lab"), inProject("p-other")
	for name, tc := range map[string]struct {
		found         []api.Instance
		refusal       error
		before, while func(*source)
		want          string
	}{
		"ours":                                    {found: []api.Instance{ours, ours}},
		"none of ours":                            {},
		"one of another project":                  {found: []api.Instance{ours, theirs}, want: `"p-other", which is not ours`},
		"not found":                               {refusal: notFoundIn("p-lab"), want: "a list was asked for"},
		"not found in another project":            {refusal: notFoundIn("p-other"), want: "is not ours"},
		"none, and the token is another's":        {before: useOthers, want: "to project other"},
		"none, and the token was swapped":         {while: useOthers, want: "to project other"},
		"none, and the token was swapped by ours": {while: useAnother, want: "token has changed"},
	} {
		t.Run(name, func(t *testing.T) {
			s, c := newSource()
			require.NoError(t, c.CheckToken(t.Context()))
			if tc.before != nil {
				tc.before(s)
			}
			s.found, s.refusal = tc.found, tc.refusal
			if tc.while != nil {
				s.whileAsked = tc.while
			}
			found, err := c.ListInstances(t.Context(), client.InstanceFilter{})
			if tc.want == "" {
				require.NoError(t, err)
				assert.Equal(t, tc.found, found)
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
	check := func(want string, asked int) {
		t.Helper()
		for range 3 {
			if err := c.CheckToken(t.Context()); want == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, want)
			}
		}
		require.Equal(t, asked, s.asked)
	}
	check("", 1)
	useAnother(s)
	check("", 2)
	s.use("c", "other")
	const theirs = `the cloud token belongs to project other (p-other), but this CCM is configured for "lab"`
	check(theirs, 5) // again and again, for as long as it is not ours
	assert.Equal(t, contract.ReasonWrongProject, core.CauseOf(c.CheckToken(t.Context())).Reason)
	s.use("c", "lab")
	check("", 7)
	s.use("d", "lab")
	s.whileAsked = func(s *source) { s.use(s.token+"d", "lab") }
	check("token has changed", 10) // The answer may be about either token.
}

// All workers notice a new token at once, and the cloud is asked once.
func TestOneQuestionForAllWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, c := newSource()
		s.whileAsked = func(*source) { time.Sleep(time.Second) }
		var workers sync.WaitGroup
		for range 30 {
			workers.Go(func() { assert.NoError(t, c.CheckToken(t.Context())) })
		}
		workers.Wait()
		assert.Equal(t, 1, s.asked)
	})
}

func TestStreams(t *testing.T) {
	ours := api.Event{Instance: &api.Instance{Project: "p-lab"}}
	theirs := api.Event{LoadBalancer: &api.LoadBalancer{Metadata: api.Metadata{ID: "lb-1", Project: "p-other"}}}
	for name, tc := range map[string]struct {
		before, later func(*source) // before the stream opens, and a minute later
		event         api.Event
		want          string // why it ends
		applied       int
	}{
		"of ours":                       {nothing, nothing, ours, "the test ended it", 1},
		"an event without a resource":   {nothing, nothing, api.Event{}, "the test ended it", 1},
		"an event of another project":   {nothing, nothing, theirs, `lb-1 belongs to project "p-other"`, 0},
		"opened with another's token":   {useOthers, nothing, ours, "belongs to project other", 0},
		"its token is not in use later": {nothing, useOthers, ours, "token has changed", 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, c := newSource()
				s.follow = func(ctx context.Context, fn func(api.Event) error, onBreak func(error)) error {
					tc.before(s)
					onBreak(nil)
					tc.later(s)
					time.Sleep(time.Minute)
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
				assert.Equal(t, name != "opened with another's token", opened == 1)
			})
		})
	}
}
