package watch

import (
	"context"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/lab/follow"
	"github.com/ccmlab/ccmlab/lab/timeline"
)

// auditor is the cloud's audit.
type auditor interface {
	ListAuditUntil(ctx context.Context, f client.AuditFilter, isOld func(api.AuditEntry) bool) ([]api.AuditEntry, error)
}

// auditOverlap is how far the order of audit entries may deviate from the order of
// their times.
const auditOverlap = 5 * time.Second

// callFollower reads the audit as it grows. It lists the newest entries first, which
// the cloud finds without searching, and stops at entries that it has read before.
type callFollower struct {
	cloud auditor
	log   timeline.Log
	calls follow.Calls[api.AuditEntry]
}

// newCallFollower follows the calls since then.
func newCallFollower(cloud auditor, log timeline.Log, since time.Time) *callFollower {
	key := func(a api.AuditEntry) (string, time.Time) { return a.RequestID, a.Time }
	return &callFollower{
		cloud: cloud, log: log, calls: follow.Calls[api.AuditEntry]{Key: key, Overlap: auditOverlap, Since: since},
	}
}

// fetchNew returns the calls since the last successful fetch. A fetch that fails loses
// none: the next one returns them.
func (c *callFollower) fetchNew(ctx context.Context) (entries []timeline.Entry, err error) {
	listed, err := c.cloud.ListAuditUntil(ctx, client.AuditFilter{}, c.calls.IsOld)
	if err != nil {
		return nil, err
	}
	for _, call := range c.calls.New(listed) {
		entries = append(entries, c.log.Call(call))
	}
	return entries, nil
}
