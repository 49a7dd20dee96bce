// Package brightbox speaks Brightbox's API, as narrow as brightbox-cloud-controller-manager's own calls:
// tokens, servers, load balancers, cloud IPs, server groups, firewall policies and their rules. What a call
// means is in Brightbox's public reference (api.gb1.brightbox.com/1.0). Begin with Dialect.
//
// A cloud IP is a reserved address, a server group with its firewall policy one firewall, and IDs hold serial
// numbers. Names, which need not be unique at Brightbox, are tags.
package brightbox

import (
	"context"
	"net/http"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
	"github.com/ccmlab/ccmlab/fakecloud/dialect"
)

const name = "brightbox"

// Dialect is Brightbox's API.
var Dialect = dialect.Dialect{
	Name:    name,
	Summary: "Brightbox's API, as its cloud controller manager calls it",
	Limits: []string{
		"an account is the token's project, and there is one",
		"a server is found by its name, too, which at Brightbox is its ID",
		"a load balancer answers on an address of its own as well, which is not shown",
		"listeners of protocol https are refused: there are no certificates",
		"of a firewall rule, ports and protocol filter what load balancers send; its other fields are recorded, and " +
			"so are policies without a server group",
		"IPv6 addresses are made up, of the range for documentation (RFC 3849), and lead nowhere",
		"servers are made, started and stopped by fakecloud's own API",
	},
	Calls: []dialect.Call{
		dialect.GrantToken("/token/"),
		get("/1.0/accounts", listAccounts),
		get("/1.0/servers/{id}", getServer),
		get("/1.0/load_balancers", listLoadBalancers),
		accepted(http.MethodPost, "/1.0/load_balancers", dialect.Show(toLoadBalancer, createLoadBalancer)),
		get("/1.0/load_balancers/{id}", getLoadBalancer),
		accepted(http.MethodPut, "/1.0/load_balancers/{id}", dialect.Show(toLoadBalancer, updateLoadBalancer)),
		accepted(http.MethodDelete, "/1.0/load_balancers/{id}", dialect.Show(toLoadBalancer, deleteLoadBalancer)),
		get("/1.0/cloud_ips", listCloudIPs),
		created("/1.0/cloud_ips", dialect.Show(showCloudIP, createCloudIP)),
		get("/1.0/cloud_ips/{id}", dialect.Show(showCloudIP, readAddress)),
		accepted(http.MethodPost, "/1.0/cloud_ips/{id}/map", dialect.Show(showCloudIP, mapCloudIP)),
		accepted(http.MethodPost, "/1.0/cloud_ips/{id}/unmap", dialect.Show(showCloudIP, unmapCloudIP)),
		dialect.Handle(http.MethodDelete, "/1.0/cloud_ips/{id}", nil, deleteCloudIP),
		get("/1.0/server_groups", listServerGroups),
		created("/1.0/server_groups", createServerGroup),
		accepted(http.MethodPost, "/1.0/server_groups/{id}/add_servers", addServers),
		accepted(http.MethodPost, "/1.0/server_groups/{id}/remove_servers", removeServers),
		accepted(http.MethodDelete, "/1.0/server_groups/{id}", deleteServerGroup),
		get("/1.0/firewall_policies", listFirewallPolicies),
		created("/1.0/firewall_policies", createFirewallPolicy),
		accepted(http.MethodDelete, "/1.0/firewall_policies/{id}", deleteFirewallPolicy),
		created("/1.0/firewall_rules", createFirewallRule),
		accepted(http.MethodPut, "/1.0/firewall_rules/{id}", updateFirewallRule),
	},
	Refusals: refusals,
	// What Brightbox has no name for is a request that does not validate.
	Other:  dialect.Refusal{Status: http.StatusUnprocessableEntity, Code: "validation_failed"},
	Refuse: refuse,
}

// refusals are Brightbox's statuses and error names for this cloud's codes.
var refusals = map[api.ProblemCode]dialect.Refusal{
	api.Unauthenticated:                         {Status: http.StatusUnauthorized, Code: ""},
	api.Forbidden:                               {Status: http.StatusForbidden, Code: "forbidden"},
	api.NotFound:                                {Status: http.StatusNotFound, Code: "missing_resource"},
	api.ProblemCode(cloud.WrongState):           {Status: http.StatusConflict, Code: "conflict"},
	api.ProblemCode(cloud.InUse):                {Status: http.StatusConflict, Code: "conflict"},
	api.ProblemCode(cloud.Protected):            {Status: http.StatusConflict, Code: "resource_locked"},
	api.ProblemCode(cloud.PreconditionFailed):   {Status: http.StatusConflict, Code: "conflict"},
	api.ProblemCode(cloud.QuotaExceeded):        {Status: http.StatusForbidden, Code: "account_limit_reached"},
	api.ProblemCode(cloud.AddressPoolExhausted): {Status: http.StatusServiceUnavailable, Code: "no_available_cloud_ips"},
	api.RateLimited:                             {Status: http.StatusTooManyRequests, Code: "too_many_requests"},
	api.TooLarge:                                {Status: http.StatusRequestEntityTooLarge, Code: "request_too_large"},
	api.Internal:                                {Status: http.StatusInternalServerError, Code: "internal_error"},
	api.Unavailable:                             {Status: http.StatusServiceUnavailable, Code: "service_unavailable"},
}

func get[T any](path string, do dialect.Handler[struct{}, T]) dialect.Call {
	return dialect.Handle(http.MethodGet, path, nil, do)
}

// created and accepted make calls that answer with the status of that name.
func created[B, T any](path string, do dialect.Handler[B, T]) dialect.Call {
	return dialect.Handle(http.MethodPost, path, nil, do).Answers(http.StatusCreated)
}

func accepted[B, T any](method, path string, do dialect.Handler[B, T]) dialect.Call {
	return dialect.Handle(method, path, nil, do).Answers(http.StatusAccepted)
}

// refuse gives the error that Brightbox would answer with.
func refuse(p api.Problem, refusal dialect.Refusal) any {
	if p.Code == api.Unauthenticated { // As OAuth 2 says it.
		return struct {
			Error       string `json:"error"`
			Description string `json:"error_description"`
		}{"invalid_client", p.Detail}
	}
	return struct {
		ErrorName string   `json:"error_name"`
		Errors    []string `json:"errors"`
	}{refusal.Code, []string{p.Detail}}
}

// resource is what all resources have, and all that is shown of one within another.
type resource struct {
	ID           string     `json:"id"`
	ResourceType string     `json:"resource_type"`
	URL          string     `json:"url"`
	Name         string     `json:"name"`
	Status       string     `json:"status,omitempty"`
	CreatedAt    *time.Time `json:"created_at,omitempty"`
	DeletedAt    *time.Time `json:"deleted_at,omitempty"`
}

// kind is a kind of resources, and what all of them are in a URL.
type kind struct {
	dialect.Kind
	collection string
}

var (
	serverKind       = kind{dialect.CodeKind("server", api.ResourceInstance, "srv-"), "servers"}
	loadBalancerKind = kind{dialect.CodeKind("load_balancer", api.ResourceLoadBalancer, "lba-"), "load_balancers"}
	cloudIPKind      = kind{dialect.CodeKind("cloud_ip", api.ResourceAddress, "cip-"), "cloud_ips"}
	groupKind        = kind{dialect.CodeKind("server_group", api.ResourceFirewall, "grp-"), "server_groups"}
	policyKind       = kind{dialect.CodeKind("firewall_policy", api.ResourceFirewall, "fwp-"), "firewall_policies"}
	ruleKind         = kind{dialect.CodeKind("firewall_rule", "", "fwr-"), "firewall_rules"} // within its policy
	accountKind      = kind{dialect.CodeKind("account", "", "acc-"), "accounts"}
)

func (k kind) newResource(r *dialect.Request, serial int64, name string) resource {
	scheme := "http"
	if r.HTTP.TLS != nil {
		scheme = "https"
	}
	return resource{
		ID: k.Write(serial), ResourceType: k.Name, Name: name,
		URL: scheme + "://" + r.HTTP.Host + "/1.0/" + k.collection + "/" + k.Write(serial),
	}
}

func listAccounts(_ context.Context, r *dialect.Request, _ struct{}) ([]resource, error) {
	account := accountKind.newResource(r, 1, r.Project.Name)
	account.Status = "active"
	return []resource{account}, nil
}
