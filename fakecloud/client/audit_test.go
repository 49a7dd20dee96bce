package client_test

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
)

// auditServer serves total calls, newest first, numbered from total down to 1. It
// refuses the page that begins after failAfter calls, unless that is 0.
func auditServer(t *testing.T, total, failAfter int) (c *client.Client, limits *[]string) {
	t.Helper()
	limits = new([]string)
	c, _ = newClient(t, func(w http.ResponseWriter, r *http.Request) {
		query := r.URL.Query()
		assert.Equal(t, "ccm", query.Get("token"))
		*limits = append(*limits, query.Get("limit"))
		limit, _ := strconv.Atoi(query.Get("limit"))
		begin, _ := strconv.Atoi(query.Get("pageToken"))
		if begin > 0 && begin == failAfter {
			problem(w, http.StatusForbidden, api.Unauthenticated)
			return
		}
		end := min(begin+limit, total)
		list := api.AuditList{Items: []api.AuditEntry{}}
		for i := begin; i < end; i++ {
			list.Items = append(list.Items, api.AuditEntry{RequestID: fmt.Sprint(total - i)})
		}
		if end < total {
			list.NextPageToken = new(fmt.Sprint(end))
		}
		answer(w, list)
	})
	return c, limits
}

func TestListAuditUntil(t *testing.T) {
	const total = 1200
	for name, tc := range map[string]struct {
		total, newestOld int
		want             int
		limits           []string
	}{
		"no call":                     {0, 0, 0, []string{"50"}},
		"fewer than a page":           {49, 0, 49, []string{"50"}},
		"exactly one page":            {50, 0, 50, []string{"50"}},
		"the first page ends old":     {total, total - 49, 50, []string{"50"}},
		"the first page is all new":   {total, total - 50, 550, []string{"50", "500"}},
		"the second page ends old":    {total, total - 549, 550, []string{"50", "500"}},
		"the second page is all new":  {total, total - 550, 1050, []string{"50", "500", "500"}},
		"nothing is old":              {total, 0, total, []string{"50", "500", "500", "500"}},
		"everything is old, one page": {total, total, 50, []string{"50"}},
	} {
		t.Run(name, func(t *testing.T) {
			c, limits := auditServer(t, tc.total, 0)
			got := must.Do(c.ListAuditUntil(t.Context(), client.AuditFilter{Token: "ccm"}, func(e api.AuditEntry) bool {
				n, err := strconv.Atoi(e.RequestID)
				require.NoError(t, err)
				return n <= tc.newestOld
			}))(t)
			require.Len(t, got, tc.want)
			assert.Equal(t, tc.limits, *limits)
			for i, e := range got {
				require.Equal(t, fmt.Sprint(tc.total-i), e.RequestID, "newest first, none twice, none missing")
			}
		})
	}
	c, _ := auditServer(t, total, 550)
	got, err := c.ListAuditUntil(t.Context(), client.AuditFilter{Token: "ccm"}, func(api.AuditEntry) bool {
		return false
	})
	require.ErrorContains(t, err, "said so")
	assert.Nil(t, got, "half a list is none")
}

func TestListAuditLimit(t *testing.T) {
	for limit, want := range map[int][]string{
		0: {"500", "500", "500"}, 7: {"7"}, 500: {"500"}, 503: {"500", "3"},
	} {
		c, limits := auditServer(t, 1200, 0)
		got := must.Do(c.ListAudit(t.Context(), client.AuditFilter{Token: "ccm"}, limit))(t)
		assert.True(t, slices.Equal(want, *limits), "%d: %v", limit, *limits)
		if limit == 0 {
			limit = 1200
		}
		assert.Len(t, got, limit)
	}
}
