package server

import (
	"net/http"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
)

// ListFirewalls implements api.ServerInterface.
func (s *Server) ListFirewalls(w http.ResponseWriter, r *http.Request, params api.ListFirewallsParams) {
	f, err := filterOf("f-", params.Name, params.Tag, params.Limit, params.PageToken)
	answerList(s, w, r, f, err, inProject(r, s.cloud.ListFirewalls), toAPIFirewall)
}

// CreateFirewall implements api.ServerInterface.
func (s *Server) CreateFirewall(w http.ResponseWriter, r *http.Request) {
	body, ok := decodeBody[api.FirewallCreate](s, w, r)
	if !ok {
		return
	}
	f, outcome, err := s.cloud.CreateFirewall(r.Context(), callerProject(r), cloud.FirewallSpec{
		Name: api.ValueOf(body.Name), Instances: api.ValueOf(body.InstanceIDs),
		Rules: mapSlice(api.ValueOf(body.Rules), toFirewallRule), Records: body.Records, Tags: api.ValueOf(body.Tags),
	})
	s.answerCreated(w, r, "/v1/firewalls/"+f.ID, f.Version, toAPIFirewall(f), outcome, err)
}

// GetFirewall implements api.ServerInterface.
func (s *Server) GetFirewall(w http.ResponseWriter, r *http.Request, id api.FirewallID) {
	f, err := s.cloud.GetFirewall(r.Context(), callerProject(r), id)
	s.answerResource(w, r, http.StatusOK, f.Version, toAPIFirewall(f), err)
}

// UpdateFirewall implements api.ServerInterface.
func (s *Server) UpdateFirewall(w http.ResponseWriter, r *http.Request, id api.FirewallID) {
	body, ok := decodeBody[api.FirewallUpdate](s, w, r)
	if !ok {
		return
	}
	u := cloud.FirewallUpdate{
		ResourceUpdate: cloud.ResourceUpdate{Name: body.Name, Tags: (*map[string]string)(body.Tags)},
		Instances:      body.InstanceIDs, Records: body.Records,
	}
	if body.Rules != nil {
		u.Rules = new(mapSlice(*body.Rules, toFirewallRule))
	}
	f, err := s.cloud.UpdateFirewall(r.Context(), callerProject(r), id, u)
	s.answerResource(w, r, http.StatusOK, f.Version, toAPIFirewall(f), err)
}

// DeleteFirewall implements api.ServerInterface.
func (s *Server) DeleteFirewall(w http.ResponseWriter, r *http.Request, id api.FirewallID) {
	s.answerNoContent(w, r, s.cloud.DeleteFirewall(r.Context(), callerProject(r), id))
}

func toFirewallRule(r api.FirewallRule) cloud.FirewallRule {
	return cloud.FirewallRule{Protocol: cloud.Protocol(r.Protocol), FirstPort: r.FirstPort, LastPort: r.LastPort}
}

func toAPIFirewall(f cloud.Firewall) api.Firewall {
	return api.Firewall{
		ID: f.ID, Serial: f.Serial, Project: f.Project, Name: f.Name,
		InstanceIDs: mapSlice(f.Instances, func(id string) string { return id }),
		Rules: mapSlice(f.Rules, func(r cloud.FirewallRule) api.FirewallRule {
			return api.FirewallRule{
				Protocol: api.FirewallRuleProtocol(r.Protocol), FirstPort: r.FirstPort, LastPort: r.LastPort,
			}
		}),
		Records: f.Records, Tags: f.Tags, Version: f.Version, CreatedAt: f.CreatedAt, UpdatedAt: f.UpdatedAt,
	}
}
