package onfakecloud

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/lab/conformance"
)

// auditOf is a Cloud whose audit holds these calls, and how many pages of it were
// asked for.
func auditOf(t *testing.T, newestFirst []api.AuditEntry) (c *Cloud, pages *int) {
	pages = new(int)
	cloud := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		*pages++
		assert.Equal(t, "ccm", r.URL.Query().Get("token"))
		from, _ := strconv.Atoi(r.URL.Query().Get("pageToken"))
		limit, err := strconv.Atoi(r.URL.Query().Get("limit"))
		assert.NoError(t, err)
		to := min(from+limit, len(newestFirst))
		list := api.AuditList{Items: newestFirst[from:to]}
		if to < len(newestFirst) {
			next := strconv.Itoa(to)
			list.NextPageToken = &next
		}
		assert.NoError(t, json.NewEncoder(w).Encode(list))
	}))
	t.Cleanup(cloud.Close)
	token := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(token, []byte("suite"), 0o600))
	calls, err := client.New(client.Config{URL: cloud.URL, TokenFile: token})
	require.NoError(t, err)
	return &Cloud{API: calls, Token: "ccm"}, pages
}

func TestCallsSinceATime(t *testing.T) {
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	const all = 1000
	var newestFirst []api.AuditEntry
	for i := range all {
		newestFirst = append(newestFirst, api.AuditEntry{
			RequestID: strconv.Itoa(all - i), Operation: "getInstance", Status: http.StatusOK,
			Time: start.Add(time.Duration(all-i) * time.Second),
		})
	}
	for _, want := range []int{0, 1, 49, 50, 51, 400, 549, 550, 551, all - 1, all} {
		c, _ := auditOf(t, newestFirst)
		list, err := c.ListCalls(t.Context(), start.Add(time.Duration(all-want+1)*time.Second))
		require.NoError(t, err)
		got := list.Calls
		if assert.Len(t, got, want) && want > 0 {
			assert.Equal(t, strconv.Itoa(all-want+1), got[0].ID, "the oldest is the first")
			assert.Equal(t, strconv.Itoa(all), got[want-1].ID)
		}
	}
	c, pages := auditOf(t, newestFirst)
	_, err := c.ListCalls(t.Context(), start.Add((all-5)*time.Second))
	require.NoError(t, err)
	assert.Equal(t, 1, *pages, "the whole audit is not read for the last few calls")
}

func TestCallAsTheAuditHasIt(t *testing.T) {
	end := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	resource, code, fault := "i-1", "throttled", "f-1"
	for _, c := range []struct {
		entry api.AuditEntry
		want  conformance.Call
	}{
		{
			api.AuditEntry{
				RequestID: "a", Operation: "getInstance", Resource: resource, Status: 200, Time: end,
				DurationMilliseconds: 1500,
			},
			conformance.Call{
				ID: "a", Operation: "getInstance", Resource: "i-1", Answer: "200",
				Began: end.Add(-1500 * time.Millisecond), Answered: end,
			},
		},
		{
			api.AuditEntry{
				RequestID: "b", Operation: "listInstances", Status: 429, Code: code, Fault: fault, Time: end,
			},
			conformance.Call{
				ID: "b", Operation: "listInstances", Answer: "429 throttled, by fault f-1", Began: end, Answered: end,
				Failed: true,
			},
		},
		{
			api.AuditEntry{RequestID: "c", Operation: "createRoute", Time: end},
			conformance.Call{
				ID: "c", Operation: "createRoute", Answer: "broken off", Began: end, Answered: end, Failed: true,
			},
		},
		{ // Its duration is how long it streamed, after the answer began.
			api.AuditEntry{
				RequestID: "d", Operation: "streamEvents", Status: 200, Time: end, DurationMilliseconds: 60_000,
			},
			conformance.Call{ID: "d", Operation: "streamEvents", Answer: "200", Began: end, Answered: end},
		},
	} {
		assert.Equal(t, c.want, callOf(c.entry))
	}
}
