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

func (s *Server) listOperations(w http.ResponseWriter, r *http.Request, params api.ListOperationsParams) {
	f, err := filterOf("op-", nil, nil, params.Limit, params.PageToken)
	list := func(ctx context.Context, f cloud.Filter) ([]cloud.Operation, bool, error) {
		return s.cloud.ListOperations(ctx, callerProject(r), cloud.OperationFilter{
			Resource: api.ValueOf(params.Resource), Types: api.ValueOf(params.Type),
			States:  mapSlice(api.ValueOf(params.State), func(v api.OperationState) string { return string(v) }),
			Serials: api.ValueOf(params.Serial), After: f.After, Limit: f.Limit,
		})
	}
	answerList(s, w, r, f, err, list, same)
}

func (s *Server) getOperation(
	w http.ResponseWriter,
	r *http.Request,
	id api.OperationID,
	params api.GetOperationParams,
) {
	until, cancel := s.waitContext(w, r, time.Duration(api.ValueOf(params.Wait))*time.Second)
	defer cancel()
	op, err := s.cloud.AwaitOperation(r.Context(), callerProject(r), id, until.Done())
	s.answerResult(w, r, http.StatusOK, op, err)
}

// waitContext ends after a time, when the caller goes away and when the server stops. The
// connection's deadlines are put off by that time.
func (s *Server) waitContext(
	w http.ResponseWriter,
	r *http.Request,
	wait time.Duration,
) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(r.Context(), wait)
	unhook := context.AfterFunc(s.stopping, cancel)
	if wait > 0 {
		control := http.NewResponseController(w)
		// The body has been read: the deadline for that would end the call.
		err := errors.Join(control.SetReadDeadline(time.Time{}), control.SetWriteDeadline(time.Now().
			Add(wait+writeTimeout)))
		if err != nil && !errors.Is(err, http.ErrNotSupported) {
			s.log.Warn("cannot put off the deadlines of a call that waits", "requestId", recordOf(r).id, "err", err)
		}
	}
	return ctx, func() { unhook(); cancel() }
}

// awaitOperation names the operation that a change began in the answer's headers, unless the change failed with err.
// If the call asks for it, awaitOperation waits until the operation has ended, and
// gives the resource as it is then. A resource that is gone by then is given as
// it last was.
func awaitOperation[T any](
	s *Server,
	w http.ResponseWriter,
	r *http.Request,
	changed T,
	outcome cloud.Outcome,
	err error,
	id string,
	read func(context.Context, cloud.Project, string) (T, error),
) (T, error) {
	op := outcome.Operation
	if op == "" || err != nil {
		return changed, err
	}
	w.Header().Set("Operation-Location", "/v1/operations/"+op)
	wait, err := strconv.Atoi(r.URL.Query().Get("wait"))
	if err != nil || wait == 0 {
		return changed, nil // No wait is given. The validator has checked its form.
	}
	until, cancel := s.waitContext(w, r, time.Duration(wait)*time.Second)
	defer cancel()
	var refused *cloud.Error
	if _, err := s.cloud.AwaitOperation(r.Context(), callerProject(r), op, until.Done()); err != nil &&
		!errors.As(err, &refused) {
		return changed, err
	}
	now, err := read(r.Context(), callerProject(r), id)
	if errors.As(err, &refused) && refused.Code == cloud.NotFound {
		return changed, nil
	}
	return now, err
}
