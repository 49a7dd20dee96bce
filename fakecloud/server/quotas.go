package server

import (
	"context"
	"net/http"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
)

// GetQuotas implements api.ServerInterface.
func (s *Server) GetQuotas(w http.ResponseWriter, r *http.Request) {
	s.answerQuotas(w, r, callerProject(r).ID, s.cloud.ProjectQuotas)
}

// GetProjectQuotas implements api.ServerInterface.
func (s *Server) GetProjectQuotas(w http.ResponseWriter, r *http.Request, id api.ProjectID) {
	s.answerQuotas(w, r, id, s.cloud.ProjectQuotas)
}

// UpdateProjectQuotas implements api.ServerInterface.
func (s *Server) UpdateProjectQuotas(w http.ResponseWriter, r *http.Request, id api.ProjectID) {
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

// ListRegions implements api.ServerInterface.
func (s *Server) ListRegions(w http.ResponseWriter, r *http.Request) {
	s.answerJSON(w, r, http.StatusOK, api.RegionList{Items: mapSlice(s.cloud.Regions(), func(name string) api.Region {
		return api.Region{Name: name}
	})})
}

// ListZones implements api.ServerInterface.
func (s *Server) ListZones(w http.ResponseWriter, r *http.Request) {
	s.answerJSON(w, r, http.StatusOK, api.ZoneList{Items: mapSlice(s.cloud.Zones(), func(z cloud.Zone) api.Zone {
		return api.Zone{Name: z.Name, Region: z.Region, State: s.zoneState(callerProject(r), z.Name)}
	})})
}

// ListInstanceTypes implements api.ServerInterface.
func (s *Server) ListInstanceTypes(w http.ResponseWriter, r *http.Request) {
	items := mapSlice(cloud.InstanceSizes, func(i cloud.InstanceSize) api.InstanceSize {
		return api.InstanceSize{Name: api.InstanceType(i.Type), Vcpus: i.VCPUs, MemoryMiB: i.MemoryMiB}
	})
	s.answerJSON(w, r, http.StatusOK, api.InstanceSizeList{Items: items})
}

// ListLoadBalancerTypes implements api.ServerInterface.
func (s *Server) ListLoadBalancerTypes(w http.ResponseWriter, r *http.Request) {
	items := mapSlice(cloud.LoadBalancerSizes, func(size cloud.LoadBalancerSize) api.LoadBalancerSize {
		return api.LoadBalancerSize{
			Name: api.LoadBalancerType(size.Type), MaxListeners: size.Listeners, MaxTargets: size.Targets,
			MaxConnections: size.Connections,
		}
	})
	s.answerJSON(w, r, http.StatusOK, api.LoadBalancerSizeList{Items: items})
}
