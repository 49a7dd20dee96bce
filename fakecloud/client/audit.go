package client

import (
	"context"
	"math"
	"net/url"
	"strconv"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// AuditFilter filters the calls of the audit. Zero fields match everything.
type AuditFilter struct {
	Token     string
	UserAgent string // its beginning
	Operation string
	// Resource is an ID. Resource, Status and Since are for lists only, not for sums.
	Resource string
	Status   api.ListAuditParamsStatus
	Since    time.Time
}

// listParameters are the parameters of a list with this filter.
func (f AuditFilter) listParameters() url.Values {
	query := f.sumParameters()
	query["resource"], query["status"] = textOf(f.Resource), textOf(f.Status)
	if !f.Since.IsZero() {
		query.Set("since", f.Since.Format(time.RFC3339Nano))
	}
	return query
}

// sumParameters are the parameters of a sum with this filter.
func (f AuditFilter) sumParameters() url.Values {
	return url.Values{
		"token": textOf(f.Token), "userAgent": textOf(f.UserAgent), "operation": textOf(f.Operation),
	}
}

// ListAudit lists the project's newest calls, newest first. It returns at most
// limit of them; with 0, all that the cloud keeps.
func (c *Client) ListAudit(ctx context.Context, f AuditFilter, limit int) ([]api.AuditEntry, error) {
	query := f.listParameters()
	left := limit
	if limit <= 0 {
		left = math.MaxInt
	}
	query.Set("limit", strconv.Itoa(min(left, pageSize)))
	return readPagesWhile(ctx, c, "/v1/audit", query, func(page []api.AuditEntry) bool {
		left -= len(page)
		query.Set("limit", strconv.Itoa(min(left, pageSize)))
		return left > 0
	})
}

// firstAuditPage is the size of the first page that ListAuditUntil reads. A caller who
// follows the audit mostly finds a few new calls, all of them on this page.
const firstAuditPage = 50

// ListAuditUntil lists the project's calls, newest first, in whole pages: 50
// calls, then 500 at a time. It stops after a page whose last call isOld, or at
// the oldest call that the cloud keeps, so the list may end with calls that are
// old. An error on any page is an error: a partial list is never returned.
//
// A caller who wants the calls since some time asks so rather than with
// AuditFilter.Since: the cloud has the newest calls at hand, but searches its
// whole audit for those since a time.
func (c *Client) ListAuditUntil(
	ctx context.Context,
	f AuditFilter,
	isOld func(api.AuditEntry) bool,
) ([]api.AuditEntry, error) {
	query := f.listParameters()
	query.Set("limit", strconv.Itoa(firstAuditPage))
	return readPagesWhile(ctx, c, "/v1/audit", query, func(page []api.AuditEntry) bool {
		query.Set("limit", largestPage)
		return len(page) == 0 || !isOld(page[len(page)-1])
	})
}

// SumAudit sums the project's calls since the cloud's data was created: by the given groups
// or, if none is given, by token, user agent and operation.
func (c *Client) SumAudit(ctx context.Context, f AuditFilter, by ...api.AuditGroup) ([]api.AuditSum, error) {
	query := f.sumParameters()
	query["groupBy"] = textsOf(by)
	return readItems[api.AuditSum](ctx, c, "/v1/audit/summary", query)
}
