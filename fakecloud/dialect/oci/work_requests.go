package oci

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/dialect"
	"github.com/ccmlab/ccmlab/fakecloud/identity"
)

// A work request is an operation of this cloud on a balancer. Its OCID has the codes of both, so that it can be read
// when the balancer is gone. The operation's code is that of 0 where a change took no time.
func (s *service) writeRequestID(balancer, operation int64) string {
	return s.requestPrefix + identity.Code(balancer) + "." + identity.Code(operation)
}

// answerAccepted answers a change of a balancer with its work request. Operation is "" if it took no time.
func (b *balancer) answerAccepted(ctx context.Context, r *dialect.Request, operation string) (*dialect.Answer, error) {
	op, err := r.Operation(ctx, operation)
	request := b.service.writeRequestID(b.Serial, op.Serial)
	return &dialect.Answer{Status: b.service.accepted, Header: http.Header{"Opc-Work-Request-Id": {request}}}, err
}

// requestStates are OCI's words for the states of operations. A change that a later one took the place of has
// succeeded: what it asked for is in the later one.
var requestStates = map[api.OperationState]string{
	api.OperationRunning:    "IN_PROGRESS",
	api.OperationDone:       "SUCCEEDED",
	api.OperationSuperseded: "SUCCEEDED",
	api.OperationFailed:     "FAILED",
}

// workRequest is a work request of load balancers.
type workRequest struct {
	ID             string             `json:"id"`
	CompartmentID  string             `json:"compartmentId"`
	LoadBalancerID string             `json:"loadBalancerId"`
	Type           string             `json:"type"`
	LifecycleState string             `json:"lifecycleState"`
	Message        string             `json:"message"`
	TimeAccepted   time.Time          `json:"timeAccepted"`
	TimeFinished   *time.Time         `json:"timeFinished,omitempty"`
	ErrorDetails   []workRequestError `json:"errorDetails"`
}

type workRequestError struct {
	ErrorCode string `json:"errorCode"`
	Message   string `json:"message"`
}

// networkWorkRequest is a work request of network load balancers.
type networkWorkRequest struct {
	ID              string                `json:"id"`
	CompartmentID   string                `json:"compartmentId"`
	OperationType   string                `json:"operationType"`
	Status          string                `json:"status"`
	PercentComplete float64               `json:"percentComplete"`
	Resources       []workRequestResource `json:"resources"`
	TimeAccepted    time.Time             `json:"timeAccepted"`
	TimeFinished    *time.Time            `json:"timeFinished,omitempty"`
}

type workRequestResource struct {
	EntityType string `json:"entityType"`
	ActionType string `json:"actionType"`
	Identifier string `json:"identifier"`
}

// toWorkRequest makes the work request of an operation on the balancer of a serial number.
func (s *service) toWorkRequest(r *dialect.Request, op api.Operation, balancer int64) workRequest {
	out := workRequest{
		ID: s.writeRequestID(balancer, op.Serial), CompartmentID: compartmentOf(r),
		LoadBalancerID: s.kind.Write(balancer), Type: strings.ToUpper(op.Type[:1]) + op.Type[1:],
		LifecycleState: requestStates[op.State], Message: cmp.Or(op.Error, "OK"),
		TimeAccepted: op.CreatedAt, TimeFinished: op.EndedAt, ErrorDetails: []workRequestError{},
	}
	if op.State == api.OperationFailed {
		out.ErrorDetails = append(out.ErrorDetails, workRequestError{"INTERNAL_ERROR", out.Message})
	}
	return out
}

// toNetwork gives a work request in the form of network load balancers.
func (w workRequest) toNetwork() networkWorkRequest {
	action := strings.TrimSuffix(w.Type, "LoadBalancer")
	out := networkWorkRequest{
		ID: w.ID, CompartmentID: w.CompartmentID, Status: w.LifecycleState, TimeAccepted: w.TimeAccepted,
		TimeFinished: w.TimeFinished, OperationType: strings.ToUpper(action) + "_NETWORK_LOAD_BALANCER",
		Resources: []workRequestResource{{
			"NetworkLoadBalancer", map[string]string{"Create": "CREATED", "Update": "UPDATED", "Delete": "DELETED"}[action],
			w.LoadBalancerID,
		}},
	}
	switch w.LifecycleState {
	case "SUCCEEDED":
		out.PercentComplete = 100
	case "IN_PROGRESS":
		out.Resources[0].ActionType = "IN_PROGRESS"
	}
	return out
}

// readWorkRequest reads the work request that has an OCID, which stays when its balancer is gone.
func (s *service) readWorkRequest(ctx context.Context, r *dialect.Request, ocid string) (w workRequest, err error) {
	codes, ok := strings.CutPrefix(ocid, s.requestPrefix)
	first, second, _ := strings.Cut(codes, ".")
	balancer, known := identity.ReadCode(first)
	operation, isOperation := identity.ReadCode(second)
	notFound := dialect.NotFound("work request %q not found", ocid)
	switch {
	case !ok || !known || !isOperation && second != identity.Code(0):
		return w, notFound
	case !isOperation:
		if id, err := r.Cloud.ResourceID(ctx, r.Project, api.ResourceLoadBalancer, balancer); err != nil || id == "" {
			return w, cmp.Or(err, notFound)
		}
		now := r.Now()
		done := api.Operation{Type: "updateLoadBalancer", State: api.OperationDone, CreatedAt: now, EndedAt: &now}
		return s.toWorkRequest(r, done, balancer), nil
	}
	found, err := r.ListOperations(ctx, client.OperationFilter{Serials: []string{strconv.FormatInt(operation, 10)}})
	if err != nil {
		return w, err
	}
	if len(found) == 0 || string(found[0].Resource) != string(api.ResourceLoadBalancer) {
		return w, notFound
	}
	return s.toWorkRequest(r, found[0], balancer), nil
}

func readNetworkWorkRequest(ctx context.Context, r *dialect.Request, ocid string) (networkWorkRequest, error) {
	w, err := nlbService.readWorkRequest(ctx, r, ocid)
	return w.toNetwork(), err
}

// listWorkRequests gives those of a balancer, the newest first.
func listWorkRequests(ctx context.Context, r *dialect.Request) (all []workRequest, err error) {
	b, err := lbService.readBalancer(ctx, r, dialect.InPath(r))
	if err != nil {
		return nil, err
	}
	found, err := r.ListOperations(ctx, client.OperationFilter{Resource: b.ID})
	for _, op := range slices.Backward(found) {
		all = append(all, lbService.toWorkRequest(r, op, b.Serial))
	}
	return all, err
}
