package conformance

// Another CCM in a test's hands: what the test does to it is in the test's timeline.

import (
	"context"
	"fmt"

	"github.com/ccmlab/ccmlab/lab/conformance/record"
)

// traceAction does something and records it.
func traceAction(trace *record.Trace, what string, do func() error) error {
	ended := trace.Begin(what)
	err := do()
	ended(err, "")
	return err
}

// tracingReplica is another CCM in a test's hands.
type tracingReplica struct {
	Replica
	trace  *record.Trace
	number int
}

func (r tracingReplica) traceAction(what string, do func() error) error {
	return traceAction(r.trace, fmt.Sprintf("%s replica %d of the CCM", what, r.number), do)
}

func (r tracingReplica) Start(ctx context.Context) error {
	return r.traceAction("starting", func() error { return r.Replica.Start(ctx) })
}

func (r tracingReplica) Stop(ctx context.Context) error {
	return r.traceAction("stopping", func() error { return r.Replica.Stop(ctx) })
}

func (r tracingReplica) Kill(ctx context.Context) error {
	return r.traceAction("killing", func() error { return r.Replica.Kill(ctx) })
}

func (r tracingReplica) Freeze() error { return r.traceAction("freezing", r.Replica.Freeze) }

func (r tracingReplica) Thaw() error { return r.traceAction("thawing", r.Replica.Thaw) }
