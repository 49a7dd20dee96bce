// Package hcloud speaks Hetzner Cloud's API, as narrow as hcloud-cloud-controller-manager's own
// calls: locations, servers, networks with their routes, load balancers, and actions. What a call
// means is in Hetzner's public reference (docs.hetzner.cloud); its wire types are those of
// hcloud-go. Begin with Dialect.
//
// A location is one of this cloud's zones, and its network zone the region. IDs are serial
// numbers, labels are tags, and an action is an operation.
package hcloud

import (
	"cmp"
	"encoding/json"
	"net/http"
	"strconv"

	"github.com/hetznercloud/hcloud-go/v2/hcloud/schema"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
	"github.com/ccmlab/ccmlab/fakecloud/dialect"
	"github.com/ccmlab/ccmlab/fakecloud/server"
)

const name = "hcloud"

// Dialect is Hetzner Cloud's API.
var Dialect = dialect.Dialect{
	Name:    name,
	Summary: "Hetzner Cloud's API, as its cloud controller manager calls it",
	Limits: []string{
		"a location is a zone of this cloud, and its network zone the region",
		"an instance has a public address only while a reserved address is attached to it",
		"services of protocol http and https carry tcp: what is sent for HTTP is recorded and read back, " +
			"no certificate is served and no cookie set",
		"a private address of a balancer is a record: only its public address carries traffic",
		"reverse DNS is recorded and answers no query",
		"targets by IP and by label selector are refused",
	},
	Calls: []dialect.Call{
		dialect.Handle(http.MethodGet, "/v1/locations", []string{"name", "page", "per_page"}, listLocations),
		dialect.Handle(http.MethodGet, "/v1/locations/{id}", nil, getLocation),
		dialect.Handle(
			http.MethodGet, "/v1/servers", []string{"name", "label_selector", "status", "page", "per_page"},
			listServers,
		),
		dialect.Handle(http.MethodGet, "/v1/servers/{id}", nil, getServer),
		dialect.Handle(
			http.MethodGet, "/v1/networks", []string{"name", "label_selector", "page", "per_page"}, listNetworks,
		),
		dialect.Handle(http.MethodGet, "/v1/networks/{id}", nil, getNetwork),
		dialect.Handle(http.MethodPost, "/v1/networks/{id}/actions/add_route", nil, addRoute),
		dialect.Handle(http.MethodPost, "/v1/networks/{id}/actions/delete_route", nil, deleteRoute),
		dialect.Handle(
			http.MethodGet, "/v1/load_balancer_types", []string{"name", "page", "per_page"}, listLoadBalancerTypes,
		),
		dialect.Handle(http.MethodGet, "/v1/load_balancer_types/{id}", nil, getLoadBalancerType),
		dialect.Handle(
			http.MethodGet, "/v1/load_balancers", []string{"name", "label_selector", "page", "per_page"},
			listLoadBalancers,
		),
		dialect.Handle(http.MethodPost, "/v1/load_balancers", nil, createLoadBalancer),
		dialect.Handle(http.MethodGet, "/v1/load_balancers/{id}", nil, getLoadBalancer),
		dialect.Handle(http.MethodPut, "/v1/load_balancers/{id}", nil, updateLoadBalancer),
		dialect.Handle(http.MethodDelete, "/v1/load_balancers/{id}", nil, deleteLoadBalancer),
		loadBalancerAction("add_service", addService),
		loadBalancerAction("update_service", updateService),
		loadBalancerAction("delete_service", deleteService),
		loadBalancerAction("add_target", addTarget),
		loadBalancerAction("remove_target", removeTarget),
		loadBalancerAction("change_algorithm", changeAlgorithm),
		loadBalancerAction("change_type", changeType),
		loadBalancerAction("change_dns_ptr", changeDNSPtr),
		loadBalancerAction("attach_to_network", attachToNetwork),
		loadBalancerAction("detach_from_network", detachFromNetwork),
		loadBalancerAction("enable_public_interface", setPublicInterface(true)),
		loadBalancerAction("disable_public_interface", setPublicInterface(false)),
		dialect.Handle(
			http.MethodGet, "/v1/actions", []string{"id", "status", "sort", "page", "per_page"}, listActions,
		),
		dialect.Handle(http.MethodGet, "/v1/actions/{id}", nil, getAction),
	},
	Refuse:        refuse,
	AnnounceLimit: announceLimit,
}

// Refusals that only this dialect has. statuses has their HTTP statuses.
const (
	locked          cloud.Code = "locked"
	missingIPv4     cloud.Code = "missing_ipv4"
	targetDefined   cloud.Code = "target_already_defined"
	notAttached     cloud.Code = "load_balancer_not_attached_to_network"
	alreadyAttached cloud.Code = "load_balancer_already_attached"
	portUsed        cloud.Code = "source_port_already_used"
	unsupported     cloud.Code = "unsupported_error"
)

// statuses are the HTTP statuses of error codes; 422 is that of the others.
// See docs.hetzner.cloud, "Errors".
var statuses = map[string]int{
	"json_error":              http.StatusBadRequest,
	"unauthorized":            http.StatusUnauthorized,
	"forbidden":               http.StatusForbidden,
	"token_readonly":          http.StatusForbidden,
	"resource_limit_exceeded": http.StatusForbidden,
	"not_found":               http.StatusNotFound,
	"conflict":                http.StatusConflict,
	"uniqueness_error":        http.StatusConflict,
	string(targetDefined):     http.StatusConflict,
	string(portUsed):          http.StatusConflict,
	"resource_unavailable":    http.StatusPreconditionFailed,
	string(locked):            http.StatusLocked,
	"protected":               http.StatusLocked,
	"rate_limit_exceeded":     http.StatusTooManyRequests,
	"server_error":            http.StatusInternalServerError,
	"bad_gateway":             http.StatusBadGateway,
	"unavailable":             http.StatusServiceUnavailable,
	"timeout":                 http.StatusGatewayTimeout,
}

// errorCodes are Hetzner's codes for this cloud's own.
var errorCodes = map[api.ProblemCode]string{
	api.InvalidRequest:                          "invalid_input",
	api.TooLarge:                                "invalid_input",
	api.Unauthenticated:                         "unauthorized",
	api.Forbidden:                               "token_readonly",
	api.NotFound:                                "not_found",
	api.ProblemCode(cloud.UnknownInstance):      "not_found",
	api.ProblemCode(cloud.NameTaken):            "uniqueness_error",
	api.ProblemCode(cloud.WrongState):           string(locked),
	api.ProblemCode(cloud.InUse):                "conflict",
	api.ProblemCode(cloud.RouteConflict):        "conflict",
	api.ProblemCode(cloud.PreconditionFailed):   "conflict",
	api.ProblemCode(cloud.QuotaExceeded):        "resource_limit_exceeded",
	api.ProblemCode(cloud.ListenerConflict):     string(portUsed),
	api.ProblemCode(cloud.AddressPoolExhausted): "resource_unavailable",
	api.RateLimited:                             "rate_limit_exceeded",
	api.ProblemCode(cloud.Protected):            "protected",
	api.Internal:                                "server_error",
	api.Unavailable:                             "unavailable",
}

// refuse gives the error that Hetzner Cloud would answer with.
func refuse(p api.Problem) (int, any) {
	code, known := errorCodes[p.Code]
	if !known {
		code = string(p.Code) // One of this dialect's.
	}
	switch p.Status { // A fault's status, whose code says less.
	case http.StatusBadGateway:
		code = "bad_gateway"
	case http.StatusGatewayTimeout:
		code = "timeout"
	}
	status, known := statuses[code]
	if !known {
		status = http.StatusUnprocessableEntity
	}
	if p.Status >= http.StatusInternalServerError {
		status = p.Status
	}
	e := schema.Error{Code: code, Message: p.Detail}
	if code == "invalid_input" && p.Fields != nil {
		e.DetailsRaw = detailsOf(*p.Fields)
	}
	return status, schema.ErrorResponse{Error: e}
}

func detailsOf(fields []api.ProblemField) json.RawMessage {
	type field struct {
		Name     string   `json:"name"`
		Messages []string `json:"messages"`
	}
	var details struct {
		Fields []field `json:"fields"`
	}
	for _, f := range fields {
		details.Fields = append(details.Fields, field{f.Field, []string{f.Message}})
	}
	raw, _ := json.Marshal(details) // Texts can be encoded.
	return raw
}

func announceLimit(h http.Header, l server.RateLimit) {
	h.Set("RateLimit-Limit", strconv.Itoa(l.Burst))
	h.Set("RateLimit-Remaining", strconv.Itoa(l.Remaining))
	h.Set("RateLimit-Reset", strconv.FormatInt(l.Rested.Unix(), 10))
}

const (
	defaultPerPage = 25
	maxPerPage     = 50
)

// page gives the page of all that a request asks for, and its five numbers.
func page[T any](r *dialect.Request, all []T) ([]T, schema.Meta, error) {
	number, err := queryNumber(r, "page", 1)
	if err != nil {
		return nil, schema.Meta{}, err
	}
	per, err := queryNumber(r, "per_page", defaultPerPage)
	if err != nil {
		return nil, schema.Meta{}, err
	}
	per = min(per, maxPerPage)
	last := max((len(all)+per-1)/per, 1)
	numbers := &schema.MetaPagination{Page: number, PerPage: per, LastPage: last, TotalEntries: len(all)}
	if number > 1 {
		numbers.PreviousPage = number - 1
	}
	if number < last {
		numbers.NextPage = number + 1
	}
	from := min((number-1)*per, len(all))
	return all[from:min(from+per, len(all))], schema.Meta{Pagination: numbers}, nil
}

func queryNumber(r *dialect.Request, name string, none int) (int, error) {
	text := r.HTTP.URL.Query().Get(name)
	number, err := strconv.Atoi(cmp.Or(text, strconv.Itoa(none)))
	if err != nil || number < 1 || number > 1<<20 {
		return 0, dialect.Invalid(name, "must be a number of at least 1")
	}
	return number, nil
}
