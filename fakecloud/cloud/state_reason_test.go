package cloud

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
)

func TestStateReasonCodeFollowsTheFailure(t *testing.T) {
	c, p, plane := newCloudWithPlane(t)
	sentence := errors.New("cannot listen on 127.30.64.1:80")
	plane.broken = &ListenError{Err: sentence}
	lb := createBalancer(t, c, p, api.LoadBalancerCreate{Name: "web", Listeners: oneListener})
	assert.Empty(t, lb.StateReasonCode)
	advance(t, c, time.Second)
	broken := balancerNow(t, c, p, lb)
	assert.Equal(t, api.LoadBalancerError, broken.State)
	assert.Equal(t, sentence.Error(), broken.StateReason)
	assert.Equal(t, api.ReasonCannotListen, broken.StateReasonCode)
	events := must.First(c.Events(t.Context(), p, Oldest))(t)
	assert.Equal(t, api.ReasonCannotListen, events[len(events)-1].LoadBalancer.StateReasonCode)

	// As in a database of a release that had no codes: the sentence is the same.
	plane.broken = sentence
	advance(t, c, time.Minute)
	uncoded := balancerNow(t, c, p, lb)
	assert.Equal(t, sentence.Error(), uncoded.StateReason)
	assert.Empty(t, uncoded.StateReasonCode)
	assert.Equal(t, broken.Version+1, uncoded.Version)
	plane.broken = &ListenError{Err: sentence}
	advance(t, c, time.Minute)
	again := balancerNow(t, c, p, lb)
	assert.Equal(t, api.ReasonCannotListen, again.StateReasonCode)
	assert.Equal(t, uncoded.Version+1, again.Version, "whoever follows the events hears of the code")

	updated := updateBalancer(t, c, p, lb.ID, listenOn(81))
	assert.Empty(t, updated.StateReasonCode)
	advance(t, c, time.Minute)
	assert.Equal(t, api.ReasonCannotListen, balancerNow(t, c, p, lb).StateReasonCode)
	plane.broken = nil
	advance(t, c, time.Minute)
	healed := balancerNow(t, c, p, lb)
	assert.Equal(t, api.LoadBalancerActive, healed.State)
	assert.Empty(t, healed.StateReasonCode)
}
