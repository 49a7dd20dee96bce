package watch

import (
	"context"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
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
	floor time.Time // older calls are known or of no interest
	known map[string]bool
}

// fetchNew returns the calls since the last successful fetch. A fetch that fails loses
// none: the next one returns them.
func (f *callFollower) fetchNew(ctx context.Context) ([]timeline.Entry, error) {
	calls, err := f.cloud.ListAuditUntil(ctx, client.AuditFilter{}, f.isKnown)
	if err != nil {
		return nil, err
	}
	known := map[string]bool{}
	var entries []timeline.Entry
	fresh := true
	for _, c := range calls {
		known[c.RequestID] = true
		if fresh = fresh && !f.isKnown(c); fresh {
			entries = append(entries, f.log.Call(c))
		}
	}
	if len(calls) > 0 {
		if overlap := calls[0].Time.Add(-auditOverlap); overlap.After(f.floor) {
			f.floor = overlap
		}
		f.known = known
	}
	return entries, nil
}

func (f *callFollower) isKnown(c api.AuditEntry) bool {
	return f.known[c.RequestID] || c.Time.Before(f.floor)
}
