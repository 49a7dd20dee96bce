package server

import (
	"encoding/base64"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
)

func (s *Server) listAudit(w http.ResponseWriter, r *http.Request, params api.ListAuditParams) {
	f := cloud.AuditFilter{
		Token: api.ValueOf(params.Token), UserAgent: api.ValueOf(params.UserAgent),
		Operation: api.ValueOf(params.Operation), Resource: api.ValueOf(params.Resource),
		Since: api.ValueOf(params.Since), Limit: defaultLimit,
	}
	if params.Limit != nil {
		f.Limit = *params.Limit
	}
	if params.Status != nil {
		class, _ := strconv.Atoi((string)(*params.Status)[:1]) // "none" is no digit: 0.
		f.Class = &class
	}
	if params.PageToken != nil {
		var err error
		if f.Before, err = auditPosition(*params.PageToken); err != nil {
			s.answerError(w, r, err)
			return
		}
	}
	if err := s.journal.flush(r.Context()); err != nil {
		s.answerError(w, r, err)
		return
	}
	items, more, err := s.cloud.ListAudit(r.Context(), callerProject(r), f)
	next := nextPage(items, more, func(last cloud.AuditEntry) string {
		return "audit-" + strconv.FormatInt(last.ID, 10)
	})
	s.answerResult(
		w, r, http.StatusOK, api.AuditList{Items: mapSlice(items, toAPIAuditEntry), NextPageToken: next}, err,
	)
}

// auditPosition reads the ID of an audit entry from a page token.
func auditPosition(token string) (int64, error) {
	text, err := base64.RawURLEncoding.DecodeString(token)
	number, isAudit := strings.CutPrefix(string(text), "audit-")
	id, invalid := strconv.ParseInt(number, 10, 64)
	if err != nil || !isAudit || invalid != nil || id < 1 {
		return 0, badPageToken()
	}
	return id, nil
}

func (s *Server) sumAudit(w http.ResponseWriter, r *http.Request, params api.SumAuditParams) {
	if err := s.journal.flush(r.Context()); err != nil {
		s.answerError(w, r, err)
		return
	}
	by := func(g api.AuditGroup) bool { return params.GroupBy == nil || slices.Contains(*params.GroupBy, g) }
	keep := func(g api.AuditGroup, v string) string {
		if by(g) {
			return v
		}
		return ""
	}
	f := cloud.AuditFilter{
		Token: api.ValueOf(params.Token), UserAgent: api.ValueOf(params.UserAgent),
		Operation: api.ValueOf(params.Operation),
	}
	sums, err := s.cloud.SumAudit(r.Context(), callerProject(r), f, func(c cloud.AuditCaller) cloud.AuditCaller {
		return cloud.AuditCaller{
			Token: keep(api.AuditByToken, c.Token), UserAgent: keep(api.AuditByUserAgent, c.UserAgent),
			Operation: keep(api.AuditByOperation, c.Operation),
		}
	})
	s.answerResult(w, r, http.StatusOK, api.AuditSumList{Items: mapSlice(sums, toAPIAuditSum)}, err)
}

func toAPIAuditEntry(e cloud.AuditEntry) api.AuditEntry {
	return api.AuditEntry{
		Time: e.Time, RequestID: e.RequestID, Token: e.Token, UserAgent: e.UserAgent, Operation: e.Operation,
		Wire: e.Wire, Resource: e.Resource, Status: e.Status, Code: e.Code,
		Fault:                e.Fault,
		DurationMilliseconds: toMilliseconds(e.Duration), BytesIn: e.BytesIn, BytesOut: e.BytesOut,
	}
}

func toAPIAuditSum(s cloud.AuditSum) api.AuditSum {
	return api.AuditSum{
		Token: s.Token, UserAgent: s.UserAgent, Operation: s.Operation,
		Calls: s.Calls, Errors: s.Errors, Faults: s.Faults, Throttled: s.Throttled,
		BytesIn: s.BytesIn, BytesOut: s.BytesOut, DurationMilliseconds: toMilliseconds(s.Duration),
	}
}

func toMilliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
