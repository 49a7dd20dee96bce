// Package oci speaks the APIs of Oracle Cloud Infrastructure (OCI), as narrow as oci-cloud-controller-manager's own
// calls: instances with their VNICs and subnets, availability domains, load balancers, network load balancers, their
// work requests, security lists, network security groups and public IPs. What a call means is in Oracle's public
// reference (docs.oracle.com/iaas/api). Begin with Dialect.
//
// A project is a tenancy and its root compartment, a network is a VCN with one subnet and one security list, and
// OCIDs hold serial numbers. Names, which need not be unique at Oracle, are tags.
package oci

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
	"github.com/ccmlab/ccmlab/fakecloud/dialect"
	"github.com/ccmlab/ccmlab/fakecloud/identity"
)

const name = "oci"

// The base paths of OCI's services, each with the version of its API. Identity has that of core.
const (
	corePath = "/20160918"
	lbPath   = "/20170115"
	nlbPath  = "/20200501"
)

// available is the state of what needs no making.
const available = "AVAILABLE"

// Dialect is OCI's APIs.
var Dialect = dialect.Dialect{
	Name:    name,
	Summary: "the APIs of Oracle Cloud Infrastructure, as its cloud controller manager calls them",
	Limits: []string{
		"a tenancy is a project of this cloud, its root compartment is the only one, and a user is a token",
		"a network is a VCN with one subnet and one security list, and an instance has one VNIC",
		"all backends of a set have one port, and are instances",
		"the policy of the first set that a listener names, in order of name, is for all",
		"shapes and defined tags are recorded",
		"security lists and network security groups are recorded, and filter nothing: they filter packets of a subnet's " +
			"hosts, and firewalls here what balancers send to single instances",
		"a network load balancer is a proxy, too: preserving clients' addresses is recorded, and not done",
		"TLS ends at listeners, in versions 1.2 and 1.3: cipher suites, protocols and session settings are recorded",
		"TLS to backends, certificates of clients, passphrases of keys, GRPC, rule sets, hostnames, IPv6, and health " +
			"checks of UDP and DNS are refused",
		"instances are made, started and stopped by fakecloud's own API",
	},
	Calls:           slices.Concat(nodeCalls, lbCalls, nlbCalls, securityCalls),
	ReadKeyID:       readKeyID,
	RequestIDHeader: "Opc-Request-Id",
	Refusals:        refusals,
	Other:           dialect.Refusal{Status: http.StatusBadRequest, Code: "InvalidParameter"},
	Refuse:          refuse,
}

// readKeyID gives what the keyId of a signature names: TENANCY/USER/FINGERPRINT.
func readKeyID(keyID string) (project, token, fingerprint string, ok bool) {
	parts := strings.Split(keyID, "/")
	if len(parts) != 3 {
		return "", "", "", false
	}
	project, isTenancy := strings.CutPrefix(parts[0], tenancyPrefix)
	token, isUser := strings.CutPrefix(parts[1], userPrefix)
	return project, token, parts[2], isTenancy && isUser
}

// What OCIDs begin with, whose end is a name or a serial number. See identity.OCID.
const (
	tenancyPrefix = "ocid1.tenancy.fc1.."
	userPrefix    = "ocid1.user.fc1.."
)

func newKind(ocidType, called string, native cloud.Resource) dialect.Kind {
	return dialect.CodeKind(called, native, identity.OCID(ocidType))
}

var (
	instanceKind     = newKind("instance", "instance", api.ResourceInstance)
	vnicKind         = newKind("vnic", "VNIC", api.ResourceInstance)
	attachmentKind   = newKind("vnicattachment", "VNIC attachment", api.ResourceInstance)
	vcnKind          = newKind("vcn", "VCN", api.ResourceNetwork)
	subnetKind       = newKind("subnet", "subnet", api.ResourceNetwork)
	securityListKind = newKind("securitylist", "security list", api.ResourceNetwork)
	publicIPKind     = newKind("publicip", "public IP", api.ResourceAddress)
)

// refusals are OCI's statuses and codes for this cloud's codes. What a caller may not see is not found for it.
// See docs.oracle.com/iaas/Content/API/References/apierrors.htm.
var refusals = map[api.ProblemCode]dialect.Refusal{
	api.Unauthenticated:                         {Status: http.StatusUnauthorized, Code: "NotAuthenticated"},
	api.Forbidden:                               {Status: http.StatusNotFound, Code: "NotAuthorizedOrNotFound"},
	api.NotFound:                                {Status: http.StatusNotFound, Code: "NotAuthorizedOrNotFound"},
	api.ProblemCode(cloud.WrongState):           {Status: http.StatusConflict, Code: "IncorrectState"},
	api.ProblemCode(cloud.InUse):                {Status: http.StatusConflict, Code: "IncorrectState"},
	api.ProblemCode(cloud.Protected):            {Status: http.StatusConflict, Code: "IncorrectState"},
	api.ProblemCode(cloud.NameTaken):            {Status: http.StatusConflict, Code: "IncorrectState"},
	api.ProblemCode(cloud.PreconditionFailed):   {Status: http.StatusPreconditionFailed, Code: "NoEtagMatch"},
	api.ProblemCode(cloud.QuotaExceeded):        {Status: http.StatusBadRequest, Code: "LimitExceeded"},
	api.ProblemCode(cloud.AddressPoolExhausted): {Status: http.StatusBadRequest, Code: "LimitExceeded"},
	api.ProblemCode(cloud.IdempotencyKeyReused): {Status: http.StatusConflict, Code: "InvalidatedRetryToken"},
	api.RateLimited:                             {Status: http.StatusTooManyRequests, Code: "TooManyRequests"},
	api.TooLarge:                                {Status: http.StatusRequestEntityTooLarge, Code: "PayloadTooLarge"},
	api.MethodNotAllowed:                        {Status: http.StatusMethodNotAllowed, Code: "MethodNotAllowed"},
	api.Internal:                                {Status: http.StatusInternalServerError, Code: "InternalServerError"},
	api.Unavailable:                             {Status: http.StatusServiceUnavailable, Code: "ServiceUnavailable"},
}

// refuse gives the error that OCI would answer with.
func refuse(p api.Problem, refusal dialect.Refusal) any {
	return struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	}{refusal.Code, p.Detail}
}

// compartmentOf is the caller's compartment: that of its tenancy, which has no other.
func compartmentOf(r *dialect.Request) string { return tenancyPrefix + r.Project.Name }

// checkCompartment refuses a request about another compartment than the caller's.
func checkCompartment(r *dialect.Request, given string) error {
	switch given {
	case compartmentOf(r):
		return nil
	case "":
		return dialect.Invalid("compartmentId", "must be given: it is %s", compartmentOf(r))
	}
	return dialect.NotFound("compartment %q not found: the caller's is %s", given, compartmentOf(r))
}

// get makes a call that answers with what read gives for the OCID in its path.
func get[T any](path string, read func(ctx context.Context, r *dialect.Request, ocid string) (T, error)) dialect.Call {
	return dialect.Handle(http.MethodGet, path, nil, func(ctx context.Context, r *dialect.Request, _ struct{}) (T, error) {
		return read(ctx, r, dialect.InPath(r))
	})
}

// maxPage is how many items a page has at most, and unless a request asks for fewer.
const maxPage = 1000

// list makes a call that answers with a page of what read gives. Parameters are the query parameters that narrow the
// list. If the compartment is one of them, it must be the caller's.
func list[T any](
	path string,
	parameters []string,
	read func(ctx context.Context, r *dialect.Request) ([]T, error),
) dialect.Call {
	do := func(ctx context.Context, r *dialect.Request, _ struct{}) (*dialect.Answer, error) {
		query := r.HTTP.URL.Query()
		if slices.Contains(parameters, "compartmentId") {
			if err := checkCompartment(r, query.Get("compartmentId")); err != nil {
				return nil, err
			}
		}
		limit, err := strconv.Atoi(cmp.Or(query.Get("limit"), strconv.Itoa(maxPage)))
		if err != nil || limit < 1 || limit > maxPage {
			return nil, dialect.Invalid("limit", "must be a number from 1 to %d", maxPage)
		}
		all, err := read(ctx, r)
		if err != nil {
			return nil, err
		}
		items, next, err := dialect.Page(all, query.Get("page"), limit)
		if err != nil {
			return nil, err
		}
		answer := &dialect.Answer{Body: append([]T{}, items...)}
		if strings.HasPrefix(path, nlbPath) { // Of all services this one alone has no bare arrays.
			answer.Body = map[string]any{"items": answer.Body}
		}
		if next != "" {
			answer.Header = http.Header{"Opc-Next-Page": {next}}
		}
		return answer, nil
	}
	return dialect.Handle(http.MethodGet, path, append(slices.Clone(parameters), "page", "limit"), do)
}

// tags are those that clients give a resource.
type tags struct {
	FreeformTags map[string]string         `json:"freeformTags"`
	DefinedTags  map[string]map[string]any `json:"definedTags"`
}

// resource is what answers have of each resource. What Oracle's own services tag is empty here.
type resource struct {
	ID             string    `json:"id"`
	CompartmentID  string    `json:"compartmentId"`
	DisplayName    string    `json:"displayName"`
	LifecycleState string    `json:"lifecycleState"`
	TimeCreated    time.Time `json:"timeCreated"`
	tags
	SystemTags struct{} `json:"systemTags"`
}

func newResource(r *dialect.Request, ocid, name, state string, created time.Time, t tags) resource {
	if t.FreeformTags == nil {
		t.FreeformTags = map[string]string{}
	}
	if t.DefinedTags == nil {
		t.DefinedTags = map[string]map[string]any{}
	}
	return resource{
		ID: ocid, CompartmentID: compartmentOf(r), DisplayName: name, LifecycleState: state, TimeCreated: created, tags: t,
	}
}

// hash is the SHA-256 of what can be written as JSON, in hexadecimal digits.
func hash(asked any) string {
	text, _ := json.Marshal(asked) // Texts and numbers can be encoded.
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// nativeName makes a native name, which is unique. It follows from the retry token of the request, if that has one, so
// that what was made for a token is found by its name.
func nativeName(r *dialect.Request, prefix string) string {
	if token := r.HTTP.Header.Get("Opc-Retry-Token"); token != "" {
		return prefix + hash(token)[:32]
	}
	return dialect.NewName(prefix)
}

var errTokenReused = &cloud.Error{
	Code: cloud.IdempotencyKeyReused, Message: "the opc-retry-token was used for another request",
}
