package ccm

// What can stand between a Service and its balancer that only the code of the
// balancers knows, as the reasons of Events.

import (
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	cloudproviderapi "k8s.io/cloud-provider/api"

	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

// topicServing is whether a balancer that is as it should be serves anybody.
const topicServing = "serving"

// reasonError is a trouble whose reason is known where it is found.
type reasonError struct {
	reason string
	err    error
}

func (e *reasonError) Error() string { return e.err.Error() }
func (e *reasonError) Unwrap() error { return e.err }

// cause leaves out what differs at each retry: the ID of the request.
func (e *reasonError) cause() cause {
	var refused *client.Error
	if errors.As(e.err, &refused) {
		return cause{reason: e.reason, detail: refused.Problem.Detail}
	}
	return cause{reason: e.reason, detail: e.err.Error()}
}

func newReasonError(reason, format string, args ...any) error {
	return &reasonError{reason, fmt.Errorf(format, args...)}
}

// portReason is how the cloud begins to say that a listener's address and port
// could not be bound. It has no code for that.
const portReason = "cannot listen on "

// failedStateError is the error of a balancer in error.
func failedStateError(lb *api.LoadBalancer) error {
	why, reason := "the cloud gives no reason", contract.ReasonLoadBalancerFailed
	if lb.StateReason != nil && *lb.StateReason != "" {
		why = *lb.StateReason
	}
	if strings.HasPrefix(why, portReason) {
		reason = contract.ReasonPortCannotBeBound
	}
	return newReasonError(reason, "load balancer %s (%s) is in error: %s", lb.Name, lb.ID, why)
}

// delayedRetryError is a trouble that is looked at again at a set time. A plain error
// waits 5 s first and 300 s in the end.
type delayedRetryError struct {
	err   error
	after time.Duration
}

func (e *delayedRetryError) Error() string { return e.err.Error() }
func (e *delayedRetryError) Unwrap() []error {
	return []error{e.err, cloudproviderapi.NewRetryError(e.err.Error(), e.after)}
}

// pendingError is all well, and not yet done.
func pendingError(msg string) error { return cloudproviderapi.NewRetryError(msg, provisioningRetry) }

func isPending(err error) bool {
	_, bare := err.(*cloudproviderapi.RetryError) //nolint:errorlint // A laterError holds one too.
	return bare
}

// slowDownRetry has what takes long looked at less and less often: upstream writes two
// Events at each look. A look comes late by a quarter of the wait at most. Its
// length is by our own clock, which need not be the cloud's.
func (l *loadBalancers) slowDownRetry(svc *corev1.Service, err error) error {
	var retry *cloudproviderapi.RetryError
	if !errors.As(err, &retry) {
		return err
	}
	since, _ := l.waiting.LoadOrStore(string(svc.UID), time.Now())
	wait := min(time.Since(since.(time.Time))/4, maxProvisioningRetry)
	return cloudproviderapi.NewRetryError(err.Error(), max(wait, retry.RetryAfter()))
}

// honorRetryAfter waits as long as the cloud asks, when it does.
func honorRetryAfter(err error) error {
	var refused *client.Error
	if errors.As(err, &refused) && refused.RetryAfter > 0 {
		return &delayedRetryError{err, refused.RetryAfter}
	}
	return err
}
