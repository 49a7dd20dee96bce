package server

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
)

// ListOperations implements api.ServerInterface.
func (s *Server) ListOperations(w http.ResponseWriter, r *http.Request, params api.ListOperationsParams) {
	page, err := filter("op-", nil, nil, params.Limit, params.PageToken)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	items, more, err := s.cloud.ListOperations(r.Context(), project(r), cloud.OperationFilter{
		Resource: value(params.Resource), Types: value(params.Type),
		States: each(value(params.State), func(v api.OperationState) string { return string(v) }),
		After:  page.After, Limit: page.Limit,
	})
	next := nextPage(items, more, func(last cloud.Operation) string { return last.ID })
	s.result(w, r, http.StatusOK, api.OperationList{Items: each(items, operationOf), NextPageToken: next}, err)
}

// GetOperation implements api.ServerInterface.
func (s *Server) GetOperation(w http.ResponseWriter, r *http.Request, id api.OperationID, params api.GetOperationParams) {
	until, cancel := s.patience(w, r, time.Duration(value(params.Wait))*time.Second)
	defer cancel()
	op, err := s.cloud.AwaitOperation(r.Context(), project(r), id, until.Done())
	s.result(w, r, http.StatusOK, operationOf(op), err)
}

// patience ends after so long, when the caller goes away, and when the server
// stops. The connection's deadlines are put off by as much.
func (s *Server) patience(w http.ResponseWriter, r *http.Request, wait time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(r.Context(), wait)
	unhook := context.AfterFunc(s.stopping, cancel)
	if wait > 0 {
		control := http.NewResponseController(w)
		// The body has been read: the deadline for that would end the call.
		err := errors.Join(control.SetReadDeadline(time.Time{}), control.SetWriteDeadline(time.Now().Add(wait+writeTimeout)))
		if err != nil && !errors.Is(err, http.ErrNotSupported) {
			s.log.Warn("cannot put off the deadlines of a call that waits", "requestId", callOf(r).id, "err", err)
		}
	}
	return ctx, func() { unhook(); cancel() }
}

// awaited gives what was changed as it is when the change's operation has
// ended, if the call asks for that, and names the operation. What is gone by
// then is shown as it last was.
func awaited[T any](s *Server, w http.ResponseWriter, r *http.Request, changed T, id string, read func(context.Context, cloud.Project, string) (T, error)) (T, error) {
	op := callOf(r).request.Operation
	if op == "" {
		return changed, nil
	}
	w.Header().Set("Operation-Location", "/v1/operations/"+op)
	wait, err := strconv.Atoi(r.URL.Query().Get("wait"))
	if err != nil || wait == 0 {
		return changed, nil // None is given: the validator has seen to its form.
	}
	until, cancel := s.patience(w, r, time.Duration(wait)*time.Second)
	defer cancel()
	var refused *cloud.Error
	if _, err := s.cloud.AwaitOperation(r.Context(), project(r), op, until.Done()); err != nil && !errors.As(err, &refused) {
		return changed, err
	}
	now, err := read(r.Context(), project(r), id)
	if errors.As(err, &refused) && refused.Code == cloud.NotFound {
		return changed, nil
	}
	return now, err
}

func operationOf(op cloud.Operation) api.Operation {
	out := api.Operation{
		ID: op.ID, Project: op.Project, Type: string(op.Type), Resource: api.OperationResource(op.Resource), ResourceID: op.ResourceID,
		State: api.OperationState(op.State), Error: text(op.Error), Token: text(op.Token), CreatedAt: op.CreatedAt,
	}
	if !op.EndedAt.IsZero() {
		out.EndedAt = &op.EndedAt
	}
	return out
}
