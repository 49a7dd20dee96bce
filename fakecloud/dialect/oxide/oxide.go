// Package oxide speaks the API of an Oxide rack, as narrow as oxide-cloud-controller-manager's own
// calls: instances with their network interfaces, external and floating IPs, and IP pools. What a call
// means is in Oxide's public reference (docs.oxide.computer/api); its wire types are those of oxide.go.
// Begin with Dialect.
//
// A floating IP is a reserved address of this cloud. IDs are UUIDs that hold serial numbers.
package oxide

import (
	"context"
	"net/http"
	"regexp"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/oxidecomputer/oxide.go/oxide"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
	"github.com/ccmlab/ccmlab/fakecloud/dialect"
	"github.com/ccmlab/ccmlab/fakecloud/identity"
)

// Dialect is Oxide's API.
var Dialect = dialect.Dialect{
	Name:    "oxide",
	Summary: "the API of an Oxide rack, as its cloud controller manager calls it",
	Limits: []string{
		"a project is the token's; there are no silos, and one IP pool, \"default\", with IPv4 addresses",
		"an instance has one network interface, and no external IPs but the floating IPs that are attached to it",
		"an instance sees a floating IP, and not the client, as the source of what comes to it by that IP",
		"each API-Version is taken for the one that this was written after, 2026060800.0.0",
		"instances are made, started and stopped by fakecloud's own API",
	},
	Calls: []dialect.Call{
		versionedCall(http.MethodGet, "/v1/instances/{id}", inProject, viewInstance),
		versionedCall(http.MethodGet, "/v1/network-interfaces", []string{"instance", "project"}, listNetworkInterfaces),
		versionedCall(http.MethodGet, "/v1/instances/{id}/external-ips", inProject, listExternalIPs),
		versionedCall(http.MethodGet, "/v1/floating-ips/{id}", inProject, dialect.Show(toFloatingIP, findAddress)),
		versionedCall(http.MethodPost, "/v1/floating-ips", inProject, dialect.Show(toFloatingIP, createFloatingIP)).Answers(http.StatusCreated),
		versionedCall(
			http.MethodPost, "/v1/floating-ips/{id}/attach", inProject, dialect.Show(toFloatingIP, attachFloatingIP),
		).Answers(http.StatusAccepted),
		versionedCall(
			http.MethodPost, "/v1/floating-ips/{id}/detach", inProject, dialect.Show(toFloatingIP, detachFloatingIP),
		).Answers(http.StatusAccepted),
		versionedCall(http.MethodDelete, "/v1/floating-ips/{id}", inProject, deleteFloatingIP).Answers(http.StatusNoContent),
		versionedCall(http.MethodGet, "/v1/ip-pools/{id}", nil, viewIPPool),
	},
	Refusals: refusals,
	Other:    dialect.Refusal{Status: http.StatusBadRequest, Code: "InvalidRequest"},
	Refuse:   refuse,
}

// inProject are the query parameters of a call that takes names in a project.
var inProject = []string{"project"}

// apiVersion is the form of the header API-Version, as Oxide's server (dropshot) reads it.
var apiVersion = regexp.MustCompile(`^[0-9]+\.[0-9]+\.[0-9]+$`)

// versionedCall makes a call that takes any API-Version that is one.
func versionedCall[B, T any](method, path string, query []string, do dialect.Handler[B, T]) dialect.Call {
	return dialect.Handle(method, path, query, func(ctx context.Context, r *dialect.Request, body B) (none T, _ error) {
		if v := r.HTTP.Header.Get("API-Version"); v != "" && !apiVersion.MatchString(v) {
			return none, dialect.Invalid("API-Version", "%q is no version such as 2026060800.0.0", v)
		}
		return do(ctx, r, body)
	})
}

// refusals are Oxide's statuses and codes for this cloud's own codes. See Error in omicron's
// common/src/api/external/error.rs.
var refusals = map[api.ProblemCode]dialect.Refusal{
	api.Unauthenticated:                         {Status: http.StatusUnauthorized, Code: "Unauthorized"},
	api.Forbidden:                               {Status: http.StatusForbidden, Code: "Forbidden"},
	api.NotFound:                                {Status: http.StatusNotFound, Code: "ObjectNotFound"},
	api.ProblemCode(cloud.UnknownInstance):      {Status: http.StatusNotFound, Code: "ObjectNotFound"},
	api.ProblemCode(cloud.NameTaken):            {Status: http.StatusBadRequest, Code: "ObjectAlreadyExists"},
	api.ProblemCode(cloud.QuotaExceeded):        {Status: http.StatusInsufficientStorage, Code: "InsufficientCapacity"},
	api.ProblemCode(cloud.AddressPoolExhausted): {Status: http.StatusInsufficientStorage, Code: "InsufficientCapacity"},
	api.Internal:                                {Status: http.StatusInternalServerError, Code: "Internal"},
	api.Unavailable:                             {Status: http.StatusServiceUnavailable, Code: "ServiceNotAvailable"},
	api.RateLimited:                             {Status: http.StatusTooManyRequests, Code: ""},
	api.MethodNotAllowed:                        {Status: http.StatusMethodNotAllowed, Code: ""},
}

// refuse gives the error that a rack would answer with.
func refuse(p api.Problem, refusal dialect.Refusal) any {
	return struct {
		ErrorCode string `json:"error_code,omitempty"`
		Message   string `json:"message"`
		RequestID string `json:"request_id"`
	}{refusal.Code, p.Detail, p.RequestID}
}

// checkProject refuses to look for a name in no project, or in another than the token's.
func checkProject(r *dialect.Request) error {
	switch given := r.HTTP.URL.Query().Get("project"); given {
	case "":
		return dialect.Invalid("project", "must be given with a name")
	case r.Project.Name, projectID(r):
		return nil
	default:
		return dialect.NotFound("not found: project with name %q", given)
	}
}

func projectID(r *dialect.Request) string {
	return uuid.NewSHA1(uuid.NameSpaceOID, []byte(r.Project.ID)).String()
}

// findResource reads what a request refers to: by its UUID, or by its name in the project.
func findResource[T any](
	ctx context.Context,
	r *dialect.Request,
	kind cloud.Resource,
	reference string,
	get func(ctx context.Context, id string) (*T, error),
	list func(ctx context.Context, name string) ([]T, error),
) (*T, error) {
	if u, err := uuid.Parse(reference); err == nil {
		serial, ok := identity.SerialOf(u)
		if !ok {
			return nil, dialect.NotFound("not found: %s with id %q", kind, reference)
		}
		id, err := r.ResourceID(ctx, kind, serial)
		if err != nil {
			return nil, err
		}
		return get(ctx, id)
	}
	if err := checkProject(r); err != nil {
		return nil, err
	}
	all, err := list(ctx, reference)
	if err != nil {
		return nil, err
	}
	if len(all) == 0 {
		return nil, dialect.NotFound("not found: %s with name %q", kind, reference)
	}
	return &all[0], nil
}

// poolName is the name of the one IP pool.
const poolName = "default"

// poolID is the UUID of the one IP pool, which is no resource and has no serial number.
var poolID = identity.UUID(0).String()

func viewIPPool(_ context.Context, r *dialect.Request, _ struct{}) (any, error) {
	if pool := dialect.InPath(r); !isPool(pool) {
		return nil, dialect.NotFound("not found: ip-pool with name or id %q", pool)
	}
	return oxide.SiloIpPool{
		Id: poolID, Name: poolName, Description: "fakecloud's addresses for load balancers",
		IpVersion: oxide.IpVersionV4, IsDefault: new(true), PoolType: oxide.IpPoolTypeUnicast,
		TimeCreated: &time.Time{}, TimeModified: &time.Time{},
	}, nil
}

func isPool(nameOrID string) bool { return nameOrID == poolName || strings.EqualFold(nameOrID, poolID) }
