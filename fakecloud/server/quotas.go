package server

import (
	"context"
	"net/http"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
)

func (s *Server) getQuotas(w http.ResponseWriter, r *http.Request) {
	s.answerQuotas(w, r, callerProject(r).ID, s.cloud.ProjectQuotas)
}

func (s *Server) getProjectQuotas(w http.ResponseWriter, r *http.Request, id api.ProjectID) {
	s.answerQuotas(w, r, id, s.cloud.ProjectQuotas)
}

func (s *Server) updateProjectQuotas(w http.ResponseWriter, r *http.Request, id api.ProjectID) {
	body, ok := decodeBody[api.QuotasUpdate](s, w, r)
	if !ok {
		return
	}
	limits := map[cloud.Quota]int64{}
	for q, limit := range map[cloud.Quota]*int64{
		cloud.QuotaInstances: body.Instances, cloud.QuotaLoadBalancers: body.LoadBalancers,
		cloud.QuotaRoutes:   body.Routes,
		cloud.QuotaNetworks: body.Networks, cloud.QuotaAddresses: body.Addresses,
	} {
		if limit != nil {
			limits[q] = *limit
		}
	}
	s.answerQuotas(w, r, id, func(ctx context.Context, id string) ([]cloud.QuotaUse, error) {
		return s.cloud.SetQuotas(ctx, id, limits)
	})
}

func (s *Server) answerQuotas(
	w http.ResponseWriter,
	r *http.Request,
	id string,
	do func(context.Context, string) ([]cloud.QuotaUse, error),
) {
	uses, err := do(r.Context(), id)
	if err != nil {
		s.answerError(w, r, err)
		return
	}
	of := map[cloud.Quota]api.Quota{}
	for _, u := range uses {
		of[u.Quota] = api.Quota{Limit: u.Limit, Used: u.Used}
	}
	s.answerJSON(w, r, http.StatusOK, api.Quotas{
		Instances: of[cloud.QuotaInstances], LoadBalancers: of[cloud.QuotaLoadBalancers], Routes: of[cloud.QuotaRoutes],
		Networks: of[cloud.QuotaNetworks], Addresses: of[cloud.QuotaAddresses],
	})
}

func (s *Server) listRegions(w http.ResponseWriter, r *http.Request) {
	s.answerJSON(w, r, http.StatusOK, api.RegionList{Items: mapSlice(s.cloud.Regions(), func(name string) api.Region {
		return api.Region{Name: name}
	})})
}

func (s *Server) listZones(w http.ResponseWriter, r *http.Request) {
	zones := s.cloud.Zones()
	for i, z := range zones {
		zones[i].State = s.zoneState(callerProject(r), z.Name)
	}
	s.answerJSON(w, r, http.StatusOK, api.ZoneList{Items: zones})
}

func (s *Server) listInstanceTypes(w http.ResponseWriter, r *http.Request) {
	s.answerJSON(w, r, http.StatusOK, api.InstanceSizeList{Items: cloud.InstanceSizes})
}

func (s *Server) listLoadBalancerTypes(w http.ResponseWriter, r *http.Request) {
	s.answerJSON(w, r, http.StatusOK, api.LoadBalancerSizeList{Items: cloud.LoadBalancerSizes})
}
