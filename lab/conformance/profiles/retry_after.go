package profiles

// A cloud that refuses calls says with Retry-After when to ask again.

import (
	"context"
	"fmt"
	"time"

	"github.com/ccmlab/ccmlab/lab/conformance"
)

const fromRetryAfter = "RFC 9110, 10.2.3 (Retry-After) and 15.6.4 (503); RFC 6585, 4 (429: \"how long to wait before " +
	"making a new request\")"

var retryAfterTests = []conformance.Test{
	{
		ID: "node-retry-after", Capability: conformance.CapabilityRetryAfter, Source: fromRetryAfter,
		Requires: "A CCM that is refused with 429 or 503 and Retry-After makes no such call again before that time has " +
			"passed, not even for a Node that joins meanwhile; afterwards its work goes on.",
		Needs: faultFeatures(conformance.FaultThrottledFor, conformance.FaultUnavailableFor), Alone: true,
		Run: func(t *conformance.T) {
			// Too many calls are those of the account. What is not there for the moment may be a part of the cloud.
			testRetryAfter(t, conformance.FaultThrottledFor)
			testRetryAfter(t, conformance.FaultUnavailableFor, conformance.Instances)
		},
	},
}

func testRetryAfter(t *conformance.T, kind conformance.FaultKind, on ...conformance.Thing) {
	restart := stopCCM(t) // One that has just started has to ask.
	fault := injectFault(t, "injecting "+string(kind), kind, on...)
	waits := newJoiningWorker(t)
	watch := &retryAfterWatch{t: t, fault: fault, polled: time.Now()}
	restart()
	t.Await("the CCM to have stayed away for as long as it was asked to", watch.check)
	liftFault(t, fault)
	t.AwaitInitialized(waits.Name)
}

const (
	// underWay is how long calls may still come that the CCM made before it had the refusal: on a busy machine, too.
	underWay = 2 * time.Second
	// provokeBefore is when the watch must have begun to look, so that a CCM that does not wait has its chance to show it.
	provokeBefore = conformance.RetryAfter / 2
	// watchUntil leaves out the end, at which a CCM that waits calls again.
	watchUntil = conformance.RetryAfter * 5 / 6
)

// retryAfterWatch looks whether calls that are refused with Retry-After come again too early. It knows the time of a
// refusal only as that of two polls between which it was: a call is too early only if that is so for all of them.
// What a slow machine leaves unclear is looked at once more, with the next refusal.
type retryAfterWatch struct {
	t     *conformance.T
	fault conformance.Injection

	hits     int
	polled   time.Time // when hits was last asked for
	earliest time.Time // the first awaited refusal was not before this
	latest   time.Time // nor was it after this; zero until there is one
	provoked bool      // a Node has joined since
}

// check returns an error until the CCM has stayed away, though a Node joined. It ends the test at a call that came too
// early.
func (w *retryAfterWatch) check(ctx context.Context) error {
	before := w.polled
	w.polled = time.Now()
	hits, err := w.fault.Hits(ctx)
	if err != nil {
		return err
	}
	now, more := time.Now(), hits > w.hits
	w.hits = hits
	isOver := w.latest.IsZero() || !now.Before(w.earliest.Add(conformance.RetryAfter))
	switch {
	case more && !isOver && before.After(w.latest.Add(underWay)):
		w.t.Fatalf("a call came between %s and %s after one that was refused with Retry-After: %.0f",
			before.Sub(w.latest).Round(time.Millisecond), now.Sub(w.earliest).Round(time.Millisecond),
			conformance.RetryAfter.Seconds())
	case more && isOver:
		w.earliest, w.latest, w.provoked = before, now, false
	case w.latest.IsZero():
		return fmt.Errorf("it has made no call that was refused")
	case !w.provoked && now.After(w.latest.Add(underWay)) && now.Before(w.earliest.Add(provokeBefore)):
		w.provoked = true
		w.t.NewNode(conformance.NodeSpec{Name: w.t.Name("nobody")})
	case w.provoked && !now.Before(w.earliest.Add(watchUntil)):
		return nil
	}
	return fmt.Errorf("calls that were refused: %d", hits)
}
