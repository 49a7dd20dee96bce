package server

import (
	"net/http"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// maxSnapshotting bounds how long saving a snapshot may take.
const maxSnapshotting = time.Hour

func (s *Server) listSnapshots(w http.ResponseWriter, r *http.Request) {
	all, err := s.cloud.ListSnapshots(r.Context())
	s.answerResult(w, r, http.StatusOK, api.SnapshotList{Items: all}, err)
}

func (s *Server) createSnapshot(w http.ResponseWriter, r *http.Request) {
	body, ok := decodeBody[api.SnapshotCreate](s, w, r)
	if !ok {
		return
	}
	ctx, cancel := s.waitContext(w, r, maxSnapshotting)
	defer cancel()
	snap, err := s.cloud.SaveSnapshot(ctx, body.Name)
	if err == nil {
		w.Header().Set("Location", "/v1/snapshots/"+body.Name)
	}
	s.answerResult(w, r, http.StatusCreated, snap, err)
}

func (s *Server) getSnapshot(w http.ResponseWriter, r *http.Request, name api.SnapshotName) {
	snap, err := s.cloud.GetSnapshot(r.Context(), name)
	s.answerResult(w, r, http.StatusOK, snap, err)
}

func (s *Server) deleteSnapshot(w http.ResponseWriter, r *http.Request, name api.SnapshotName) {
	s.answerNoContent(w, r, s.cloud.DeleteSnapshot(r.Context(), name))
}

func (s *Server) getSnapshotContent(w http.ResponseWriter, r *http.Request, name api.SnapshotName) {
	f, err := s.cloud.OpenSnapshot(r.Context(), name)
	if err != nil {
		s.answerError(w, r, err)
		return
	}
	defer func() { _ = f.Close() }() // Only read.
	info, err := f.Stat()
	if err != nil {
		s.answerError(w, r, err)
		return
	}
	w.Header().Set("Content-Type", "application/vnd.sqlite3")
	w.Header().Set("Content-Disposition", `attachment; filename="`+name+`.db"`)
	http.ServeContent(&patientWriter{w, s}, r, "", info.ModTime(), f)
}

// patientWriter gives each write as much time as a whole answer has otherwise.
type patientWriter struct {
	http.ResponseWriter
	server *Server
}

func (p *patientWriter) Write(b []byte) (int, error) {
	p.server.logDeadlineErrors(http.NewResponseController(p.ResponseWriter).SetWriteDeadline(time.Now().
		Add(writeTimeout)))
	return p.ResponseWriter.Write(b)
}
