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

// knownError is a trouble whose reason is known where it is found.
type knownError struct {
	reason string
	err    error
}

func (e *knownError) Error() string { return e.err.Error() }
func (e *knownError) Unwrap() error { return e.err }

// cause leaves out what differs at each retry: the ID of the request.
func (e *knownError) cause() cause {
	var refused *client.Error
	if errors.As(e.err, &refused) {
		return cause{reason: e.reason, detail: refused.Problem.Detail}
	}
	return cause{reason: e.reason, detail: e.err.Error()}
}

func known(reason, format string, args ...any) error {
	return &knownError{reason, fmt.Errorf(format, args...)}
}

// portReason is how the cloud begins to say that a listener's address and port
// could not be bound. It has no code for that.
const portReason = "cannot listen on "

// failed is the error of a balancer in error.
func failed(lb *api.LoadBalancer) error {
	why, reason := "the cloud gives no reason", contract.ReasonLoadBalancerFailed
	if lb.StateReason != nil && *lb.StateReason != "" {
		why = *lb.StateReason
	}
	if strings.HasPrefix(why, portReason) {
		reason = contract.ReasonPortCannotBeBound
	}
	return known(reason, "load balancer %s (%s) is in error: %s", lb.Name, lb.ID, why)
}

// laterError is a trouble that is looked at again at a set time. A plain error
// waits 5 s first and 300 s in the end.
type laterError struct {
	err   error
	after time.Duration
}

func (e *laterError) Error() string { return e.err.Error() }
func (e *laterError) Unwrap() []error {
	return []error{e.err, cloudproviderapi.NewRetryError(e.err.Error(), e.after)}
}

// pending is all well, and not yet done.
func pending(msg string) error { return cloudproviderapi.NewRetryError(msg, provisioningRetry) }

func isPending(err error) bool {
	_, bare := err.(*cloudproviderapi.RetryError) //nolint:errorlint // A laterError holds one too.
	return bare
}

// patient has what takes long looked at less and less often: upstream writes two
// Events at each look. A look comes late by a quarter of the wait at most. Its
// length is by our own clock, which need not be the cloud's.
func (l *loadBalancers) patient(svc *corev1.Service, err error) error {
	var retry *cloudproviderapi.RetryError
	if !errors.As(err, &retry) {
		return err
	}
	since, _ := l.waiting.LoadOrStore(string(svc.UID), time.Now())
	wait := min(time.Since(since.(time.Time))/4, longestRetry)
	return cloudproviderapi.NewRetryError(err.Error(), max(wait, retry.RetryAfter()))
}

// retryWhenAsked waits as long as the cloud asks, when it does.
func retryWhenAsked(err error) error {
	var refused *client.Error
	if errors.As(err, &refused) && refused.RetryAfter > 0 {
		return &laterError{err, refused.RetryAfter}
	}
	return err
}
