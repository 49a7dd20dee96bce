package core

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	cloudprovider "k8s.io/cloud-provider"
	cloudproviderapi "k8s.io/cloud-provider/api"

	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

// Cause is why something is not as it should be.
type Cause struct {
	Reason string // as of an Event
	// Detail tells causes of one reason apart. It is the same at every retry, unlike a message with a request ID
	// or a time in it.
	Detail string
}

// CauseOf maps an error to a cause. An error's own cause precedes the cloud's refusal. Any other error means
// that the cloud is unavailable.
func CauseOf(err error) Cause {
	var known interface{ Cause() Cause }
	var refused *client.Error
	switch {
	case errors.As(err, &known):
		return known.Cause()
	case errors.Is(err, cloudprovider.InstanceNotFound):
		return Cause{Reason: contract.ReasonInstanceNotFound}
	case errors.As(err, &refused):
		return Cause{Reason: cmp.Or(
			reasonsByCode[refused.Problem.Code], reasonsByStatus[refused.Status], contract.ReasonCloudUnavailable)}
	}
	return Cause{Reason: contract.ReasonCloudUnavailable}
}

var (
	reasonsByCode = map[api.ProblemCode]string{
		api.RouteConflict:        contract.ReasonRouteConflict,
		api.QuotaExceeded:        contract.ReasonQuotaExceeded,
		api.AddressPoolExhausted: contract.ReasonAddressPoolExhausted,
	}
	reasonsByStatus = map[int]string{
		http.StatusTooManyRequests: contract.ReasonCloudThrottled,
		http.StatusUnauthorized:    contract.ReasonCloudAccessDenied,
		http.StatusForbidden:       contract.ReasonCloudAccessDenied,
	}
)

// reasonError is an error whose reason is known where it is made.
type reasonError struct {
	reason string
	detail string // of the cause; "" for what the error says
	err    error
}

func newReasonError(reason, format string, args ...any) error {
	return withReason(reason, fmt.Errorf(format, args...))
}

func withReason(reason string, err error) error { return &reasonError{reason: reason, err: err} }

func (e *reasonError) Error() string { return e.err.Error() }
func (e *reasonError) Unwrap() error { return e.err }

// Cause leaves out what differs at each retry: the ID of the request.
func (e *reasonError) Cause() Cause {
	detail := e.err.Error()
	var refused *client.Error
	if errors.As(e.err, &refused) {
		detail = refused.Problem.Detail
	}
	return Cause{e.reason, cmp.Or(e.detail, detail)}
}

// delayedRetryError is an error after which upstream's controller calls again at a set time.
type delayedRetryError struct {
	err   error
	after time.Duration
}

func (e *delayedRetryError) Error() string { return e.err.Error() }
func (e *delayedRetryError) Unwrap() []error {
	return []error{e.err, cloudproviderapi.NewRetryError(e.err.Error(), e.after)}
}

// honorRetryAfter has upstream's controller wait as long as the cloud's Retry-After says, if it sent one.
func honorRetryAfter(err error) error {
	var refused *client.Error
	if errors.As(err, &refused) && refused.RetryAfter > 0 {
		return &delayedRetryError{err, refused.RetryAfter}
	}
	return err
}

// pendingError means that nothing is wrong, but the work is not done yet.
func pendingError(format string, args ...any) error {
	return cloudproviderapi.NewRetryError(fmt.Sprintf(format, args...), provisioningRetry)
}

// IsPending tells whether an error of a provider means that nothing is wrong, but the work is not done yet: a bare
// api.RetryError does. An error that wraps one also says what is wrong.
func IsPending(err error) bool {
	_, bare := err.(*cloudproviderapi.RetryError) //nolint:errorlint // See above.
	return bare
}

// Notice is what people should know although the call does not fail for it.
type Notice struct {
	Cause
	Message string
}

type noticesKey struct{}

// WithNotices returns a context in which calls of a provider report their notices to fn, too.
func WithNotices(ctx context.Context, fn func(Notice)) context.Context {
	others, _ := ctx.Value(noticesKey{}).(func(Notice))
	return context.WithValue(ctx, noticesKey{}, func(n Notice) {
		if others != nil {
			others(n)
		}
		fn(n)
	})
}

// Notify reports a notice to whom WithNotices named.
func Notify(ctx context.Context, n Notice) {
	if fn, ok := ctx.Value(noticesKey{}).(func(Notice)); ok {
		fn(n)
	}
}

// notify reports a notice whose cause has the message as its detail.
func notify(ctx context.Context, reason, format string, args ...any) {
	message := fmt.Sprintf(format, args...)
	Notify(ctx, Notice{Cause{reason, message}, message})
}
