package calls

// The labels of a call in metrics: its operation and its outcome. There are few of
// each, whatever is in a path.

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"syscall"
)

const (
	streamEvents   = "stream-events"
	otherOperation = "other"
)

// resources are the collections of the cloud's API, with the name of one element.
var resources = map[string]string{
	"addresses": "address", "instances": "instance", "instance-types": "instance-type",
	"load-balancers": "load-balancer",
	"networks":       "network", "operations": "operation", "projects": "project", "quotas": "quota",
	"regions": "region",
	"routes":  "route", "zones": "zone",
}

var verbs = map[string]string{
	http.MethodGet: "get", http.MethodPatch: "update", http.MethodPut: "update", http.MethodDelete: "delete",
}

// Operation is the name of a call, such as list-instances, get-instance,
// create-load-balancer, start-instance, get-load-balancer-stats. It is "other" for
// what is no call of the cloud's API that a CCM could make.
func Operation(method, path string) string {
	_, rest, ok := strings.Cut(path, "/v1/")
	if !ok {
		return otherOperation
	}
	switch rest {
	case "events":
		return streamEvents
	case "project":
		return "get-project"
	}
	parts := strings.Split(rest, "/")
	one, ok := resources[parts[0]]
	verb := verbs[method]
	switch {
	case !ok || len(parts) > 3:
		return otherOperation
	case len(parts) == 1 && method == http.MethodGet:
		return "list-" + parts[0]
	case len(parts) == 1 && method == http.MethodPost:
		return "create-" + one
	case len(parts) == 2 && verb != "":
		return verb + "-" + one
	case len(parts) == 3:
		return subresourceOperation(method, one, parts[2])
	}
	return otherOperation
}

// subresourceOperation names a call to a path below one resource.
func subresourceOperation(method, one, name string) string {
	switch name {
	case "start", "stop", "reboot", "terminate", "attach", "detach":
		if method == http.MethodPost {
			return name + "-" + one
		}
	case "stats", "health", "quotas":
		if method == http.MethodGet {
			return "get-" + one + "-" + name
		}
	}
	return otherOperation
}

// codeOf is the status of an answer, or the kind of error that came instead.
func codeOf(resp *http.Response, err error) string {
	if err == nil {
		return strconv.Itoa(resp.StatusCode)
	}
	var (
		timeout   net.Error
		dns       *net.DNSError
		authority x509.UnknownAuthorityError
		verify    *tls.CertificateVerificationError
		record    tls.RecordHeaderError
	)
	switch {
	case errors.Is(err, context.Canceled):
		return "canceled"
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return "timeout"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "refused"
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE), errors.Is(err, io.EOF),
		errors.Is(err, io.ErrUnexpectedEOF):
		return "reset"
	case errors.As(err, &dns):
		return "dns"
	case errors.As(err, &verify), errors.As(err, &authority), errors.As(err, &record):
		return "tls"
	}
	return "error"
}
