package ccm

import (
	"errors"
	"net/http"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// swapped is a guard whose token belongs to the project of that name; the test
// swaps both.
type swapped struct {
	guard          *projectGuard
	token, project string
	asked          int
}

func newSwapped(t *testing.T) *swapped {
	s := &swapped{token: "a", project: "lab"}
	s.guard = newProjectGuard(&fakeAPI{t: t, project: func() (*api.Project, error) {
		s.asked++
		if s.project == "" {
			return nil, errors.New("no answer")
		}
		return &api.Project{ID: "p-" + s.project, Name: s.project}, nil
	}}, "lab")
	s.guard.token = func() string { return s.token }
	return s
}

func TestTokenSwappedToAnotherProject(t *testing.T) {
	s := newSwapped(t)
	notFound := problem(http.StatusNotFound, api.NotFound, "p-lab")
	gone, err := s.guard.isDefiniteNotFound(t.Context(), notFound)
	require.NoError(t, err)
	assert.True(t, gone)
	require.NoError(t, s.guard.checkToken(t.Context()))
	assert.Equal(t, 1, s.asked, "once for a token")

	s.token, s.project = "b", "other"
	for range 2 {
		// Even one that names our project: whoever answers is not believed.
		gone, err = s.guard.isDefiniteNotFound(t.Context(), notFound)
		require.ErrorContains(
			t, err, `the cloud token belongs to project other (p-other), but this CCM is configured for "lab"`,
		)
		assert.False(t, gone)
	}
	require.ErrorContains(t, s.guard.checkToken(t.Context()), "belongs to project other", "no list is believed")
	assert.Equal(t, 4, s.asked, "again and again, for as long as it is not ours")

	s.token, s.project = "a", "lab"
	require.NoError(t, s.guard.checkToken(t.Context()))
}

func TestTokenSwappedWithinTheProject(t *testing.T) {
	s := newSwapped(t)
	require.NoError(t, s.guard.checkToken(t.Context()))
	s.token = "b"
	for range 3 {
		ours, err := s.guard.ownsProject(t.Context(), "p-lab")
		require.NoError(t, err)
		assert.True(t, ours)
	}
	assert.Equal(t, 2, s.asked, "one call more")
}

func TestTokenSwappedToOneThatNobodyAnswersFor(t *testing.T) {
	s := newSwapped(t)
	require.NoError(t, s.guard.checkToken(t.Context()))
	s.token, s.project = "b", ""
	gone, err := s.guard.isDefiniteNotFound(t.Context(), problem(http.StatusNotFound, api.NotFound, "p-lab"))
	require.ErrorContains(t, err, "asking the cloud for our project: no answer")
	assert.False(t, gone)
}

// The answer may be about either token.
func TestTokenSwappedWhileTheCloudIsAsked(t *testing.T) {
	s := newSwapped(t)
	ask := s.guard.api.(*fakeAPI).project
	s.guard.api.(*fakeAPI).project = func() (*api.Project, error) {
		p, err := ask()
		if s.asked == 1 {
			s.token = "b"
		}
		return p, err
	}
	require.ErrorContains(t, s.guard.checkToken(t.Context()), "changed while its project was looked up")
	require.NoError(t, s.guard.checkToken(t.Context()))
	assert.Equal(t, 2, s.asked)
}

// All workers notice a new token at once, and the cloud is asked once.
func TestOneQuestionForAllWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSwapped(t)
		ask, answer := s.guard.api.(*fakeAPI).project, make(chan struct{})
		s.guard.api.(*fakeAPI).project = func() (*api.Project, error) { <-answer; return ask() }
		for range 30 {
			go func() { assert.NoError(t, s.guard.checkToken(t.Context())) }()
		}
		synctest.Wait()
		close(answer)
		synctest.Wait()
		assert.Equal(t, 1, s.asked)
	})
}
