// This file answers: how often did who call what?

package server

import (
	"cmp"
	"net/http"
	"slices"
	"sync"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// caller is whose calls of what are counted together.
type caller struct{ project, token, operation string }

// tally counts calls since the process started. It grows with tokens and
// operations, never with calls.
type tally struct {
	mu    sync.Mutex
	calls map[caller]*api.Calls
}

// add counts a call. Status 0 is one that was broken off.
func (t *tally) add(who caller, status int, fault bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.calls == nil {
		t.calls = map[caller]*api.Calls{}
	}
	n := t.calls[who]
	if n == nil {
		n = &api.Calls{Token: who.token, Operation: who.operation}
		t.calls[who] = n
	}
	n.Calls++
	if status == 0 || status >= http.StatusBadRequest {
		n.Errors++
	}
	if fault {
		n.Faults++
	}
}

// list gives a project's counts, of one token or, with "", of all.
func (t *tally) list(project, token string) []api.Calls {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := []api.Calls{}
	for who, n := range t.calls {
		if who.project == project && (token == "" || who.token == token) {
			all = append(all, *n)
		}
	}
	slices.SortFunc(all, func(a, b api.Calls) int {
		return cmp.Or(cmp.Compare(a.Token, b.Token), cmp.Compare(a.Operation, b.Operation))
	})
	return all
}

// ListCalls implements api.ServerInterface.
func (s *Server) ListCalls(w http.ResponseWriter, r *http.Request, params api.ListCallsParams) {
	s.reply(w, r, http.StatusOK, api.CallList{Items: s.calls.list(project(r).ID, value(params.Token))})
}
