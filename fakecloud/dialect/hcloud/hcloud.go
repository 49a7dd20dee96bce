// Package hcloud speaks Hetzner Cloud's API, as its cloud controller manager and the programs that make what the CCM
// needs call it: servers, networks, addresses, load balancers, actions. What a call means is in Hetzner's public
// reference (docs.hetzner.cloud); its wire types are those of hcloud-go. Begin with Dialect.
//
// A location is one of this cloud's zones, and its network zone the region. IDs are serial numbers, labels are tags,
// and an action is an operation.
package hcloud

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

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
		"a primary IP is a reserved address; an instance that was made otherwise has a public address only while one is " +
			"attached to it",
		"primary IPs of IPv6 are records, and lead nowhere; so is the IPv6 address of a balancer where the cloud " +
			"has no addresses of IPv6 left (--load-balancer-cidr6): it begins with 2001:db8:",
		"images, SSH keys and changes of type are recorded, and no machine has them; user data can be read from the " +
			"metadata service alone",
		"ISOs, rescue systems, rebuilds, backups, passwords, firewalls, placement groups and floating IPs are refused or " +
			"not there",
		"a server is in one network, which is chosen when it is created, and starts at once; one that is detached keeps its " +
			"address in it",
		"a network has a range from /16 to /30 that overlaps with no other; it can be extended, which is recorded; one with " +
			"servers is not deleted",
		"a route via what is no server of the network is recorded, and leads nowhere; as vSwitches do not exist, none is found",
		"all prices are 0, and types of servers and images are a few of Hetzner's",
		"a managed certificate is issued at once, for any domain, signs itself, and is not renewed",
		"a service of https needs a certificate: TLS is not passed through",
		"reverse DNS is recorded and answers no query",
		"a target by IP is an address of the ranges of targets (--target-range) that no server has: it stands for a Robot " +
			"server's",
		"targets by label selector are the servers that match when the balancer is changed: labels that change later, " +
			"and servers that come later, count from the next change of it on",
		"no metrics are kept",
	},
	Calls: slices.Concat(
		actionCalls, certificates.actionCalls(), balancers.actionCalls(), networks.actionCalls(), primaryIPs.actionCalls(),
		servers.actionCalls(), locations.calls(), datacenters.calls(), serverTypes.calls(), images.calls(), isos.calls(),
		pricingCalls, sshKeys.calls(), sshKeyCalls, servers.calls(), serverCalls, primaryIPs.calls(), primaryIPCalls,
		networks.calls(), networkActions, balancerTypes.calls(), balancers.calls(), balancerCalls,
		certificates.calls(), certificateCalls, metadataCalls,
	),
	Refusals:        refusals,
	Codes:           codes,
	RequestIDHeader: "X-Correlation-Id",
	Other:           dialect.Refusal{Status: http.StatusUnprocessableEntity},
	Refuse:          refuse,
	AnnounceLimit:   announceLimit,
}

// Refusals that only this dialect has.
const (
	locked            cloud.Code = "locked"
	missingIPv4       cloud.Code = "missing_ipv4"
	targetDefined     cloud.Code = "target_already_defined"
	notAttached       cloud.Code = "load_balancer_not_attached_to_network"
	alreadyAttached   cloud.Code = "load_balancer_already_attached"
	portUsed          cloud.Code = "source_port_already_used"
	unsupported       cloud.Code = "unsupported_error"
	publicTargets     cloud.Code = "targets_without_use_private_ip"
	noPublicInterface cloud.Code = "load_balancer_public_interface_disabled"
	serverNotAttached cloud.Code = "server_not_attached_to_network"
	cloudIP           cloud.Code = "cloud_resource_ip_not_allowed"
	foreignIP         cloud.Code = "ip_not_owned"
	unfitType         cloud.Code = "invalid_load_balancer_type"
)

// refusals are Hetzner's statuses and codes for this cloud's own codes. See docs.hetzner.cloud, "Errors".
var refusals = map[api.ProblemCode]dialect.Refusal{
	api.InvalidRequest:                          {Status: http.StatusUnprocessableEntity, Code: invalidInput},
	dialect.UnreadableBody:                      {Status: http.StatusBadRequest, Code: "json_error"},
	api.TooLarge:                                {Status: http.StatusUnprocessableEntity, Code: invalidInput},
	api.Unauthenticated:                         {Status: http.StatusUnauthorized, Code: "unauthorized"},
	api.Forbidden:                               {Status: http.StatusForbidden, Code: "token_readonly"},
	api.NotFound:                                {Status: http.StatusNotFound, Code: "not_found"},
	api.ProblemCode(cloud.UnknownInstance):      {Status: http.StatusNotFound, Code: "not_found"},
	api.ProblemCode(cloud.UnknownCertificate):   {Status: http.StatusUnprocessableEntity, Code: invalidInput},
	api.ProblemCode(cloud.NameTaken):            {Status: http.StatusConflict, Code: "uniqueness_error"},
	api.ProblemCode(cloud.WrongState):           {Status: http.StatusLocked, Code: string(locked)},
	api.ProblemCode(cloud.InUse):                {Status: http.StatusConflict, Code: "conflict"},
	api.ProblemCode(cloud.RouteConflict):        {Status: http.StatusConflict, Code: "conflict"},
	api.ProblemCode(cloud.NetworkConflict):      {Status: http.StatusUnprocessableEntity, Code: string(unsupported)},
	api.ProblemCode(cloud.PreconditionFailed):   {Status: http.StatusConflict, Code: "conflict"},
	api.ProblemCode(cloud.QuotaExceeded):        {Status: http.StatusForbidden, Code: "resource_limit_exceeded"},
	api.ProblemCode(cloud.ListenerConflict):     {Status: http.StatusConflict, Code: string(portUsed)},
	api.ProblemCode(cloud.AddressPoolExhausted): {Status: http.StatusPreconditionFailed, Code: "resource_unavailable"},
	api.RateLimited:                             {Status: http.StatusTooManyRequests, Code: "rate_limit_exceeded"},
	api.ProblemCode(cloud.Protected):            {Status: http.StatusLocked, Code: "protected"},
	api.Internal:                                {Status: http.StatusInternalServerError, Code: "server_error"},
	api.Unavailable:                             {Status: http.StatusServiceUnavailable, Code: "unavailable"},
	api.ProblemCode(locked):                     {Status: http.StatusLocked, Code: string(locked)},
	api.ProblemCode(targetDefined):              {Status: http.StatusConflict, Code: string(targetDefined)},
	api.ProblemCode(portUsed):                   {Status: http.StatusConflict, Code: string(portUsed)},
}

// codes are Hetzner's codes that faults alone answer with here. Hetzner documents the statuses of the last ones, and
// those of the others are what their meaning suggests.
var codes = map[string]int{
	"json_error":          http.StatusBadRequest,
	"forbidden":           http.StatusForbidden,
	"maintenance":         http.StatusServiceUnavailable,
	"service_error":       http.StatusInternalServerError,
	"bad_gateway":         http.StatusBadGateway,
	"timeout":             http.StatusGatewayTimeout,
	"robot_unavailable":   http.StatusServiceUnavailable,
	"resource_locked":     http.StatusLocked,
	"placement_error":     http.StatusPreconditionFailed,
	"ip_not_available":    http.StatusUnprocessableEntity,
	"no_subnet_available": http.StatusUnprocessableEntity,
	"networks_overlap":    http.StatusUnprocessableEntity,
	"server_not_stopped":  http.StatusUnprocessableEntity,
	"resource_in_use":     http.StatusUnprocessableEntity,
}

const invalidInput = "invalid_input"

// refuse gives the error that Hetzner Cloud would answer with. A code that it has no other for is one of this
// dialect's.
func refuse(p api.Problem, refusal dialect.Refusal) any {
	e := schema.Error{Code: cmp.Or(refusal.Code, string(p.Code)), Message: p.Detail}
	switch p.Status { // A fault's status, whose code says less.
	case http.StatusBadGateway:
		e.Code = "bad_gateway"
	case http.StatusGatewayTimeout:
		e.Code = "timeout"
	}
	if p.Code == api.ProblemCode(cloud.NameTaken) && p.Fields != nil {
		e.Message = "name is already used"
	}
	if e.Code == invalidInput && p.Fields != nil {
		e.Message, e.DetailsRaw = describeFields(*p.Fields), detailsOf(*p.Fields)
	}
	return schema.ErrorResponse{Error: e}
}

// describeFields says what is wrong with which fields, in the form that Hetzner Cloud's messages have.
func describeFields(fields []api.ProblemField) string {
	names, messages := make([]string, len(fields)), make([]string, len(fields))
	for i, f := range fields {
		names[i], messages[i] = "'"+f.Field+"'", f.Message
	}
	plural := ""
	if len(fields) > 1 {
		plural = "s"
	}
	return fmt.Sprintf("invalid input in field%s %s: %s", plural, strings.Join(names, ", "), strings.Join(messages, ", "))
}

func detailsOf(fields []api.ProblemField) json.RawMessage {
	type field struct {
		Name     string   `json:"name"`
		Messages []string `json:"messages"`
	}
	all := make([]field, len(fields))
	for i, f := range fields {
		all[i] = field{f.Field, []string{f.Message}}
	}
	raw, _ := json.Marshal(map[string]any{"fields": all}) // Texts can be encoded.
	return raw
}

func announceLimit(h http.Header, l server.RateLimit) {
	h.Set("RateLimit-Limit", strconv.Itoa(l.Burst))
	h.Set("RateLimit-Remaining", strconv.Itoa(l.Remaining))
	h.Set("RateLimit-Reset", strconv.FormatInt(l.Rested.Unix(), 10))
}
