package calls

// How a call is called in metrics, and what became of it: few words, whatever
// is in its path.

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
	streamEvents = "stream-events"
	other        = "other"
)

// resources are the collections of the cloud's API, and what one of each is called.
var resources = map[string]string{
	"addresses": "address", "instances": "instance", "instance-types": "instance-type", "load-balancers": "load-balancer",
	"networks": "network", "operations": "operation", "projects": "project", "quotas": "quota", "regions": "region",
	"routes": "route", "zones": "zone",
}

var verbs = map[string]string{http.MethodGet: "get", http.MethodPatch: "update", http.MethodPut: "update", http.MethodDelete: "delete"}

// Operation is the name of a call: list-instances, get-instance,
// create-load-balancer, start-instance, get-load-balancer-stats. What is no
// call of the cloud's API that a CCM could make is "other".
func Operation(method, path string) string {
	_, rest, ok := strings.Cut(path, "/v1/")
	if !ok {
		return other
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
		return other
	case len(parts) == 1 && method == http.MethodGet:
		return "list-" + parts[0]
	case len(parts) == 1 && method == http.MethodPost:
		return "create-" + one
	case len(parts) == 2 && verb != "":
		return verb + "-" + one
	case len(parts) == 3:
		return part(method, one, parts[2])
	}
	return other
}

// part names a call to what is below one resource.
func part(method, one, name string) string {
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
	return other
}

// codeOf is the status of an answer, or the kind of the error that came instead.
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
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "reset"
	case errors.As(err, &dns):
		return "dns"
	case errors.As(err, &verify), errors.As(err, &authority), errors.As(err, &record):
		return "tls"
	}
	return "error"
}
