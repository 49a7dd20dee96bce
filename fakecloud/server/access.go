package server

import (
	"context"
	"fmt"
	"net/http"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
)

// requireRole refuses callers whose role does not allow the operation. Callers without a
// token were refused before.
func (s *Server) requireRole(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := recordOf(r)
		who, need := c.principal, c.op.role
		if who != nil && !c.op.public && !who.Role.Allows(need) {
			detail := fmt.Sprintf(
				"this needs the role %s, and token %q has the role %s: use another token, or ask an admin of this cloud for one",
				need, who.Token, who.Role,
			)
			s.answerProblem(w, r, http.StatusForbidden, api.Forbidden, detail, nil)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func (s *Server) getProject(w http.ResponseWriter, r *http.Request) {
	who := recordOf(r).principal
	p := who.Project
	p.Token = &who.Details
	s.answerJSON(w, r, http.StatusOK, p)
}

func (s *Server) listProjects(w http.ResponseWriter, r *http.Request, params api.ListProjectsParams) {
	f, err := filterOf("p-", params.Name, nil, params.Limit, params.PageToken)
	answerList(s, w, r, f, err, s.cloud.ListProjects, same)
}

func (s *Server) createProject(w http.ResponseWriter, r *http.Request) {
	body, ok := decodeBody[api.ProjectCreate](s, w, r)
	if !ok {
		return
	}
	p, outcome, err := s.cloud.CreateProject(r.Context(), callerProject(r), body)
	s.answerCreated(w, r, "/v1/projects/"+p.ID, p.Version, p, outcome, err)
}

func (s *Server) getProjectByID(w http.ResponseWriter, r *http.Request, id api.ProjectID) {
	p, err := s.cloud.ProjectByID(r.Context(), id)
	s.answerResource(w, r, http.StatusOK, p.Version, p, err)
}

func (s *Server) updateProject(w http.ResponseWriter, r *http.Request, id api.ProjectID) {
	body, ok := decodeBody[api.ProjectUpdate](s, w, r)
	if !ok {
		return
	}
	p, err := s.cloud.UpdateProject(r.Context(), id, body)
	s.answerResource(w, r, http.StatusOK, p.Version, p, err)
}

func (s *Server) deleteProject(w http.ResponseWriter, r *http.Request, id api.ProjectID) {
	s.answerNoContent(w, r, s.cloud.DeleteProject(r.Context(), callerProject(r), id))
}

func (s *Server) listTokens(w http.ResponseWriter, r *http.Request, id api.ProjectID, params api.ListTokensParams) {
	f, err := filterOf("", params.Name, nil, params.Limit, params.PageToken)
	list := func(ctx context.Context, f cloud.Filter) ([]cloud.Token, bool, error) {
		return s.cloud.ListTokens(ctx, id, f)
	}
	answerList(s, w, r, f, err, list, same)
}

func (s *Server) createToken(w http.ResponseWriter, r *http.Request, id api.ProjectID) {
	body, ok := decodeBody[api.TokenCreate](s, w, r)
	if !ok {
		return
	}
	t, secret, err := s.cloud.CreateToken(r.Context(), id, body)
	if err == nil {
		w.Header().Set("Location", "/v1/projects/"+t.Project+"/tokens/"+t.Name)
	}
	s.answerResult(w, r, http.StatusCreated, api.TokenWithSecret{Token: t, Secret: secret}, err)
}

func (s *Server) getToken(w http.ResponseWriter, r *http.Request, id api.ProjectID, name api.TokenName) {
	t, err := s.cloud.GetToken(r.Context(), id, name)
	s.answerResult(w, r, http.StatusOK, t, err)
}

func (s *Server) deleteToken(w http.ResponseWriter, r *http.Request, id api.ProjectID, name api.TokenName) {
	s.answerNoContent(w, r, s.cloud.DeleteToken(r.Context(), id, name))
}

func (s *Server) rotateToken(w http.ResponseWriter, r *http.Request, id api.ProjectID, name api.TokenName) {
	body, ok := decodeBody[api.TokenRotate](s, w, r)
	if !ok {
		return
	}
	t, secret, err := s.cloud.RotateToken(r.Context(), id, name, api.Seconds(body.GraceSeconds).Duration())
	s.answerResult(w, r, http.StatusOK, api.TokenWithSecret{Token: t, Secret: secret}, err)
}

func (s *Server) listTokenKeys(w http.ResponseWriter, r *http.Request, id api.ProjectID, name api.TokenName) {
	keys, err := s.cloud.ListTokenKeys(r.Context(), id, name)
	s.answerResult(w, r, http.StatusOK, api.TokenKeyList{Items: keys}, err)
}

func (s *Server) addTokenKey(w http.ResponseWriter, r *http.Request, id api.ProjectID, name api.TokenName) {
	body, ok := decodeBody[api.TokenKeyCreate](s, w, r)
	if !ok {
		return
	}
	k, err := s.cloud.AddTokenKey(r.Context(), id, name, body.PublicKey)
	s.answerResult(w, r, http.StatusCreated, k, err)
}

func (s *Server) deleteTokenKey(
	w http.ResponseWriter,
	r *http.Request,
	id api.ProjectID,
	name api.TokenName,
	fingerprint string,
) {
	s.answerNoContent(w, r, s.cloud.DeleteTokenKey(r.Context(), id, name, fingerprint))
}
