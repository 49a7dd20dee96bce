package cloud

import (
	"cmp"
	"context"
	"math"
	"slices"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/store"
	"github.com/ccmlab/ccmlab/fakecloud/store/db"
)

// auditKept is how many of each project's newest calls are kept. Their sums are kept for
// ever.
const auditKept = 100_000

// AuditEntry is one call.
type AuditEntry struct {
	ID        int64 // given in the order in which calls are stored
	Time      time.Time
	RequestID string
	AuditCaller
	Wire     string // the call of a dialect that made it: dialect, method and path; or ""
	Resource string // an ID, or ""
	Status   int    // 0 when the call was broken off
	Code     string // the refusal's, or ""
	Fault    string // the ID of the rule that was applied, or ""
	Duration time.Duration
	BytesIn  int64
	BytesOut int64
}

// AuditCaller is the key by which calls are summed.
type AuditCaller struct {
	Project, Token, UserAgent, Operation string
}

// AuditSum sums calls.
type AuditSum struct {
	AuditCaller
	Calls, Errors, Faults, Throttled int64
	Duration                         time.Duration
	BytesIn, BytesOut                int64
}

// Add adds another's sums to these.
func (s *AuditSum) Add(o AuditSum) {
	s.Calls += o.Calls
	s.Errors += o.Errors
	s.Faults += o.Faults
	s.Throttled += o.Throttled
	s.Duration += o.Duration
	s.BytesIn += o.BytesIn
	s.BytesOut += o.BytesOut
}

// AuditBatch is a number of calls that are stored together.
type AuditBatch struct {
	Entries []AuditEntry
	// Amended are entries stored before whose duration and bytes out have grown since.
	Amended []AuditEntry
	// Sums are added to those stored.
	Sums []AuditSum
}

// AppendAudit stores a batch and drops each project's oldest entries beyond auditKept. It
// returns the ID of the batch's first entry; the others have the IDs that follow.
func (c *Cloud) AppendAudit(ctx context.Context, b AuditBatch) (first int64, err error) {
	err = c.store.Write(ctx, func(tx *store.Tx) error {
		last, err := tx.LastAudit(ctx)
		if err != nil {
			return err
		}
		first = last + 1
		for i, e := range b.Entries {
			if err := tx.InsertAudit(ctx, auditRow(e, first+int64(i))); err != nil {
				return err
			}
		}
		for _, e := range b.Amended {
			if err := tx.AmendAudit(ctx, db.AmendAuditParams{
				Duration: e.Duration.Microseconds(), BytesOut: e.BytesOut, ID: e.ID, RequestID: e.RequestID,
			}); err != nil {
				return err
			}
		}
		for _, s := range b.Sums {
			if err := tx.AddAuditSum(ctx, auditSumRow(s)); err != nil {
				return err
			}
		}
		return pruneAudit(ctx, tx, b.Entries)
	})
	return first, refuseIfFull(err)
}

// pruneAudit drops the oldest entries of the projects that entries were added of.
func pruneAudit(ctx context.Context, tx *store.Tx, entries []AuditEntry) error {
	added := map[string]int64{}
	for _, e := range entries {
		added[e.Project]++
	}
	for project, n := range added {
		if err := tx.PruneRows("audit", project, n, store.Kept{Rows: auditKept}, func() error {
			return tx.PruneAudit(ctx, db.PruneAuditParams{ProjectID: project, Keep: auditKept})
		}); err != nil {
			return err
		}
	}
	return nil
}

func auditRow(e AuditEntry, id int64) db.InsertAuditParams {
	return db.InsertAuditParams{
		ID: id, Time: e.Time.UnixMilli(), RequestID: e.RequestID, ProjectID: e.Project, Token: e.Token,
		UserAgent: e.UserAgent,
		Operation: e.Operation, ResourceID: e.Resource, Status: int64(e.Status), Code: e.Code, Fault: e.Fault,
		Duration: e.Duration.Microseconds(), BytesIn: e.BytesIn, BytesOut: e.BytesOut, Wire: e.Wire,
	}
}

func auditSumRow(s AuditSum) db.AddAuditSumParams {
	return db.AddAuditSumParams{
		ProjectID: s.Project, Token: s.Token, UserAgent: s.UserAgent, Operation: s.Operation,
		Calls: s.Calls, Errors: s.Errors, Faults: s.Faults, Throttled: s.Throttled,
		Duration: s.Duration.Microseconds(), BytesIn: s.BytesIn, BytesOut: s.BytesOut,
	}
}

// AuditFilter narrows a list of calls or sums; zero fields do not.
type AuditFilter struct {
	Token     string
	UserAgent string // a prefix
	Operation string
	// The following fields are for entries only, not for sums.
	Resource string
	Class    *int // the status's first digit; 0 for calls that were broken off
	Since    time.Time
	Before   int64 // the ID of the last entry of the page before
	Limit    int   // at least 1
}

// ListAudit gives one page of a project's calls, newest first, and whether there are more.
func (c *Cloud) ListAudit(ctx context.Context, p Project, f AuditFilter) (page []AuditEntry, more bool, err error) {
	params := db.ListAuditParams{
		ProjectID: p.ID, Before: cmp.Or(f.Before, math.MaxInt64), Token: f.Token, UserAgent: f.UserAgent,
		Operation:  f.Operation,
		ResourceID: f.Resource, Class: -1, Max: int64(f.Limit) + 1,
	}
	if f.Class != nil {
		params.Class = int64(*f.Class)
	}
	if !f.Since.IsZero() {
		params.Since = f.Since.UnixMilli()
	}
	return readPage(ctx, c, f.Limit, auditEntryFrom, func(tx *store.Tx) ([]db.Audit, error) {
		return tx.ListAudit(ctx, params)
	})
}

func auditEntryFrom(row db.Audit) (AuditEntry, error) {
	return AuditEntry{
		ID: row.ID, Time: fromMillis(row.Time), RequestID: row.RequestID,
		AuditCaller: AuditCaller{
			Project: row.ProjectID, Token: row.Token, UserAgent: row.UserAgent, Operation: row.Operation,
		},
		Wire: row.Wire, Resource: row.ResourceID, Status: int(row.Status), Code: row.Code, Fault: row.Fault,
		Duration: time.Duration(row.Duration) * time.Microsecond, BytesIn: row.BytesIn, BytesOut: row.BytesOut,
	}, nil
}

// SumAudit sums a project's calls, sorted. group gives the fields of a caller that sums
// are told apart by.
func (c *Cloud) SumAudit(
	ctx context.Context,
	p Project,
	f AuditFilter,
	group func(AuditCaller) AuditCaller,
) ([]AuditSum, error) {
	rows, err := readOne(ctx, c, func(tx *store.Tx) ([]db.AuditSum, error) {
		return tx.AuditSums(
			ctx, db.AuditSumsParams{ProjectID: p.ID, Token: f.Token, UserAgent: f.UserAgent, Operation: f.Operation},
		)
	})
	at := map[AuditCaller]int{}
	var sums []AuditSum
	for _, r := range rows {
		who := group(AuditCaller{Project: r.ProjectID, Token: r.Token, UserAgent: r.UserAgent, Operation: r.Operation})
		i, ok := at[who]
		if !ok {
			i = len(sums)
			at[who] = i
			sums = append(sums, AuditSum{AuditCaller: who})
		}
		sums[i].Add(AuditSum{
			Calls: r.Calls, Errors: r.Errors, Faults: r.Faults, Throttled: r.Throttled,
			Duration: time.Duration(r.Duration) * time.Microsecond, BytesIn: r.BytesIn, BytesOut: r.BytesOut,
		})
	}
	slices.SortFunc(sums, func(a, b AuditSum) int {
		return cmp.Or(
			cmp.Compare(a.Token, b.Token), cmp.Compare(a.UserAgent, b.UserAgent), cmp.Compare(a.Operation, b.Operation),
		)
	})
	return sums, err
}

// AuditAgents gives the user agents that have sums of their own. Only Project, Token and
// UserAgent of each caller are set.
func (c *Cloud) AuditAgents(ctx context.Context) ([]AuditCaller, error) {
	return readOne(ctx, c, func(tx *store.Tx) (all []AuditCaller, err error) {
		rows, err := tx.AuditAgents(ctx)
		for _, r := range rows {
			all = append(all, AuditCaller{Project: r.ProjectID, Token: r.Token, UserAgent: r.UserAgent})
		}
		return all, err
	})
}
