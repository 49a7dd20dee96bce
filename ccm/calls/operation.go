package calls

// The labels of a call in metrics: its operation and its outcome. There are few of
// each, whatever is in a path.

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"

	utilnet "k8s.io/apimachinery/pkg/util/net"
)

const streamEvents = "stream-events"

// resources are the collections of the cloud's API that a CCM uses, with the name of one element.
var resources = map[string]string{
	"addresses": "address", "instances": "instance", "load-balancers": "load-balancer", "routes": "route",
}

var verbs = map[string]string{
	http.MethodGet: "get", http.MethodPatch: "update", http.MethodPut: "update", http.MethodDelete: "delete",
}

// operationOf is the name of a call, such as list-instances, get-instance or create-load-balancer. It
// is "other" for what is no call of the cloud's API that a CCM makes.
func operationOf(method, path string) string {
	_, rest, _ := strings.Cut(path, "/v1/")
	collection, id, hasID := strings.Cut(rest, "/")
	one, verb := resources[collection], verbs[method]
	switch {
	case rest == "events":
		return streamEvents
	case rest == "project":
		return "get-project"
	case one == "" || strings.Contains(id, "/"):
	case !hasID && method == http.MethodGet:
		return "list-" + collection
	case !hasID && method == http.MethodPost:
		return "create-" + one
	case hasID && verb != "":
		return verb + "-" + one
	}
	return "other"
}

// codeOf is the kind of error that came instead of an answer.
func codeOf(err error) string {
	var (
		dns    *net.DNSError
		verify *tls.CertificateVerificationError
		record tls.RecordHeaderError
	)
	switch {
	case errors.Is(err, context.Canceled):
		return "canceled"
	case utilnet.IsTimeout(err):
		return "timeout"
	case utilnet.IsConnectionRefused(err):
		return "refused"
	case utilnet.IsConnectionReset(err), errors.Is(err, syscall.EPIPE), errors.Is(err, io.EOF),
		errors.Is(err, io.ErrUnexpectedEOF):
		return "reset"
	case errors.As(err, &dns):
		return "dns"
	case errors.As(err, &verify), errors.As(err, &record):
		return "tls"
	}
	return "error"
}
