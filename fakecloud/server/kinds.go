package server

import (
	"context"
	"net/http"
	"strconv"

	"github.com/gorilla/mux"

	"github.com/ccmlab/ccmlab/fakecloud/cloud"
)

// kindOperations is what a cloud.Kind does. C is the request that creates a resource, U the one that changes it.
type kindOperations[R, C, U any] interface {
	Create(context.Context, cloud.Project, C) (R, cloud.Outcome, error)
	Get(context.Context, cloud.Project, string) (R, error)
	List(context.Context, cloud.Project, cloud.Filter) ([]R, bool, error)
	Update(context.Context, cloud.Project, string, U) (R, error)
	Delete(context.Context, cloud.Project, string) error
}

// versioned is a resource. Its JSON form is the API's.
type versioned interface {
	PageKey() string // its ID
	AtVersion() int64
}

// serveKind adds the operations that are marked x-kind. The validator has checked their parameters and bodies.
func serveKind[R versioned, C, U any](s *Server, to *mux.Router, collection string, k kindOperations[R, C, U]) {
	handle := func(method, path string, do func(w http.ResponseWriter, r *http.Request, id string)) {
		to.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) { do(w, r, mux.Vars(r)["id"]) }).Methods(method)
	}
	path, idPrefix := "/v1/"+collection, pathResources[collection].idPrefix
	one := path + "/{id}"
	handle(http.MethodGet, path, func(w http.ResponseWriter, r *http.Request, _ string) {
		f, err := queryFilter(r, idPrefix)
		answerList(s, w, r, f, err, inProject(r, k.List), same)
	})
	handle(http.MethodPost, path, func(w http.ResponseWriter, r *http.Request, _ string) {
		if body, ok := decodeBody[C](s, w, r); ok {
			made, outcome, err := k.Create(r.Context(), callerProject(r), body)
			s.answerCreated(w, r, path+"/"+made.PageKey(), made.AtVersion(), made, outcome, err)
		}
	})
	handle(http.MethodGet, one, func(w http.ResponseWriter, r *http.Request, id string) {
		found, err := k.Get(r.Context(), callerProject(r), id)
		s.answerResource(w, r, http.StatusOK, found.AtVersion(), found, err)
	})
	handle(http.MethodPatch, one, func(w http.ResponseWriter, r *http.Request, id string) {
		if u, ok := decodeBody[U](s, w, r); ok {
			changed, err := k.Update(r.Context(), callerProject(r), id, u)
			s.answerResource(w, r, http.StatusOK, changed.AtVersion(), changed, err)
		}
	})
	handle(http.MethodDelete, one, func(w http.ResponseWriter, r *http.Request, id string) {
		s.answerNoContent(w, r, k.Delete(r.Context(), callerProject(r), id))
	})
}

// queryFilter reads the query parameters of lists of resources.
func queryFilter(r *http.Request, idPrefix string) (cloud.Filter, error) {
	query := r.URL.Query()
	text := func(name string) *string {
		if !query.Has(name) {
			return nil
		}
		return new(query.Get(name))
	}
	var limit *int
	if given := text("limit"); given != nil {
		n, err := strconv.Atoi(*given)
		if err != nil {
			return cloud.Filter{}, &parameterError{Name: "limit", Err: err}
		}
		limit = &n
	}
	f, err := filterOf(idPrefix, text("name"), new(query["tag"]), limit, text("pageToken"))
	f.States = query["state"]
	return f, err
}
