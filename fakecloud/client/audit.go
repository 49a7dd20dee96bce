package client

import (
	"context"
	"net/http"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// AuditFilter narrows what is asked of the audit; zero fields do not.
type AuditFilter struct {
	Token     string
	UserAgent string // how it begins
	Operation string
	// Resource is an ID. It, Status and Since are for the list only.
	Resource string
	Status   api.ListAuditParamsStatus
	Since    time.Time
}

// ListAudit gives the project's newest calls, newest first: so many, or all that
// are kept with 0.
func (c *Client) ListAudit(ctx context.Context, f AuditFilter, limit int) ([]api.AuditEntry, error) {
	params := api.ListAuditParams{
		Token: optional(f.Token), UserAgent: optional(f.UserAgent), Operation: optional(f.Operation),
		Resource: optional(f.Resource), Status: optional(f.Status),
	}
	if !f.Since.IsZero() {
		params.Since = &f.Since
	}
	left := limit
	return pages(func(token *string) (*api.AuditList, error) {
		params.PageToken, params.Limit = token, new(pageSize)
		if limit > 0 {
			params.Limit = new(min(left, pageSize))
		}
		return read[api.AuditList](ctx, c, func(ctx context.Context) (*http.Response, error) { return c.raw.ListAudit(ctx, &params) })
	}, func(list *api.AuditList) ([]api.AuditEntry, *string) {
		if left -= len(list.Items); limit > 0 && left <= 0 {
			return list.Items, nil
		}
		return list.Items, list.NextPageToken
	})
}

// SumAudit sums the project's calls since the cloud's data was created, by what
// is given or, without, by token, user agent and operation.
func (c *Client) SumAudit(ctx context.Context, f AuditFilter, by ...api.AuditGroup) ([]api.AuditSum, error) {
	params := api.SumAuditParams{
		Token: optional(f.Token), UserAgent: optional(f.UserAgent), Operation: optional(f.Operation), GroupBy: optionalList(by),
	}
	list, err := read[api.AuditSumList](ctx, c, func(ctx context.Context) (*http.Response, error) { return c.raw.SumAudit(ctx, &params) })
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}
