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
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
	"github.com/ccmlab/ccmlab/fakecloud/dialect"
	"github.com/ccmlab/ccmlab/fakecloud/identity"
)

// A work request is an operation of this cloud on a balancer. Its OCID has the codes of both, so that it can be read
// when the balancer is gone; that of the operation is of the number 0 where a change took no time.
func (s *service) writeRequestID(balancer, operation int64) string {
	return s.requestPrefix + identity.Code(balancer) + "." + identity.Code(operation)
}

// workRequestID gives the OCID of the work request of a change, whose operation is "" if it took no time.
func (s *service) workRequestID(
	ctx context.Context,
	r *dialect.Request,
	b *balancer,
	operation string,
) (string, error) {
	if operation == "" {
		return s.writeRequestID(b.Serial, 0), nil
	}
	op, err := r.Cloud.GetOperation(ctx, r.Project, operation)
	return s.writeRequestID(b.Serial, op.Serial), err
}

// answerAccepted answers a change with its work request. Load balancers have no body, and network load balancers
// have what was made.
func answerAccepted(status int, request string, body any) *dialect.Answer {
	return &dialect.Answer{Status: status, Header: http.Header{"Opc-Work-Request-Id": {request}}, Body: body}
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
		LifecycleState: requestStates[op.State], Message: cmp.Or(api.ValueOf(op.Error), "OK"),
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

// readWorkRequest reads the work request in the call's path, which stays when its balancer is gone.
func (s *service) readWorkRequest(ctx context.Context, r *dialect.Request) (w workRequest, err error) {
	ocid := dialect.InPath(r)
	codes, ok := strings.CutPrefix(ocid, s.requestPrefix)
	first, second, _ := strings.Cut(codes, ".")
	balancer, known := identity.ReadCode(first)
	operation, isOperation := identity.ReadCode(second)
	notFound := dialect.NotFound("work request %q not found", ocid)
	switch {
	case !ok || !known || !isOperation && second != identity.Code(0):
		return w, notFound
	case !isOperation:
		if id, err := r.Cloud.ResourceID(ctx, r.Project, cloud.LoadBalancerResource, balancer); err != nil || id == "" {
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
	if len(found) == 0 || string(found[0].Resource) != string(cloud.LoadBalancerResource) {
		return w, notFound
	}
	return s.toWorkRequest(r, found[0], balancer), nil
}

func getWorkRequest(ctx context.Context, r *dialect.Request, _ struct{}) (*dialect.Answer, error) {
	w, err := lbService.readWorkRequest(ctx, r)
	return dialect.OK(w), err
}

func getNetworkWorkRequest(ctx context.Context, r *dialect.Request, _ struct{}) (*dialect.Answer, error) {
	w, err := nlbService.readWorkRequest(ctx, r)
	if err != nil {
		return nil, err
	}
	return dialect.OK(w.toNetwork()), nil
}

// listWorkRequests answers with those of a balancer, the newest first.
func listWorkRequests(ctx context.Context, r *dialect.Request, _ struct{}) (*dialect.Answer, error) {
	b, err := lbService.readBalancer(ctx, r)
	if err != nil {
		return nil, err
	}
	found, err := r.ListOperations(ctx, client.OperationFilter{Resource: b.ID})
	if err != nil {
		return nil, err
	}
	var all []workRequest
	for _, op := range slices.Backward(found) {
		all = append(all, lbService.toWorkRequest(r, op, b.Serial))
	}
	return answerList(r, all, asArray)
}
