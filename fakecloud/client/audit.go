package client

import (
	"context"
	"net/http"
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

// listParams are the parameters of a list with this filter.
func (f AuditFilter) listParams() api.ListAuditParams {
	params := api.ListAuditParams{
		Token: optionalParam(f.Token), UserAgent: optionalParam(f.UserAgent), Operation: optionalParam(f.Operation),
		Resource: optionalParam(f.Resource), Status: optionalParam(f.Status),
	}
	if !f.Since.IsZero() {
		params.Since = &f.Since
	}
	return params
}

// ListAudit lists the project's newest calls, newest first. It returns at most
// limit of them; with 0, all that the cloud keeps.
func (c *Client) ListAudit(ctx context.Context, f AuditFilter, limit int) ([]api.AuditEntry, error) {
	params := f.listParams()
	left := limit
	return readAllPages(func(token *string) (*api.AuditList, error) {
		params.PageToken, params.Limit = token, new(pageSize)
		if limit > 0 {
			params.Limit = new(min(left, pageSize))
		}
		return readWithRetries[api.AuditList](ctx, c, func(ctx context.Context) (*http.Response, error) {
			return c.raw.ListAudit(ctx, &params)
		})
	}, func(list *api.AuditList) ([]api.AuditEntry, *string) {
		if left -= len(list.Items); limit > 0 && left <= 0 {
			return list.Items, nil
		}
		return list.Items, list.NextPageToken
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
	params := f.listParams()
	params.Limit = new(firstAuditPage)
	return readAllPages(func(token *string) (*api.AuditList, error) {
		if token != nil {
			params.PageToken, params.Limit = token, new(pageSize)
		}
		return readWithRetries[api.AuditList](ctx, c, func(ctx context.Context) (*http.Response, error) {
			return c.raw.ListAudit(ctx, &params)
		})
	}, func(list *api.AuditList) ([]api.AuditEntry, *string) {
		if n := len(list.Items); n > 0 && isOld(list.Items[n-1]) {
			return list.Items, nil
		}
		return list.Items, list.NextPageToken
	})
}

// SumAudit sums the project's calls since the cloud's data was created: by the given groups
// or, if none is given, by token, user agent and operation.
func (c *Client) SumAudit(ctx context.Context, f AuditFilter, by ...api.AuditGroup) ([]api.AuditSum, error) {
	params := api.SumAuditParams{
		Token: optionalParam(f.Token), UserAgent: optionalParam(f.UserAgent), Operation: optionalParam(f.Operation),
		GroupBy: optionalListParam(by),
	}
	list, err := readWithRetries[api.AuditSumList](ctx, c, func(ctx context.Context) (*http.Response, error) {
		return c.raw.SumAudit(ctx, &params)
	})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}
