package main

// The protocol, as openapi.yaml describes it: what every driver answers. Nothing here is about one cloud.

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"os"
	"slices"
	"time"
)

// object is JSON that is written without a type for each kind.
type object = map[string]any

// driver is what every driver does. What changes something returns when the cloud says that it is so. What is not
// there is errNotFound, and where it is to be gone, that is well.
type driver interface {
	// describe is the answer to the suite's first request, which says what the cluster is called: a name, and the
	// features; how the proxy tells calls apart, and how the CCM is started.
	describe(ctx context.Context, clusterName string) (object, error)
	createInstance(ctx context.Context, spec instanceSpec) (instance, error)
	stopInstance(ctx context.Context, id string) error
	startInstance(ctx context.Context, id string) error
	terminateInstance(ctx context.Context, id string) error
	// listBalancers lists those that the cloud has for Services of this cluster.
	listBalancers(ctx context.Context) ([]balancer, error)
	getBalancer(ctx context.Context, id string) (balancer, error)
	deleteBalancer(ctx context.Context, id string) error
}

type instanceSpec struct {
	Name    string // of its Node, with the feature node-names
	Machine bool   // it boots, and joins the cluster; with the feature machines
}

// instance has the fields that the protocol requires, and after those what there are features for.
type instance struct {
	ID          string   `json:"id"`
	Name        string   `json:"name"`
	ProviderID  string   `json:"providerID"` // of its Node
	InternalIPs []string `json:"internalIPs"`
	ExternalIPs []string `json:"externalIPs"`
	Type        string   `json:"type"`
	Zone        string   `json:"zone"`
	Region      string   `json:"region"`
}

// balancer is likewise.
type balancer struct {
	ID        string     `json:"id"`
	Active    bool       `json:"active"`
	Name      string     `json:"name"`
	Service   string     `json:"service"` // the UID of the Service that it is for
	Address   string     `json:"address"`
	Listeners []listener `json:"listeners"`
	Targets   []string   `json:"targets"` // IDs of instances
}

type listener struct {
	Protocol   string `json:"protocol"`
	Port       int    `json:"port"`
	TargetPort int    `json:"targetPort"`
}

// errNotFound is answered with 404, and errors.ErrUnsupported with 501.
var errNotFound = errors.New("there is none of this ID")

// serve answers the suite until ctx ends.
func serve(ctx context.Context, paths http.Handler) error {
	socket, err := new(net.ListenConfig).Listen(ctx, "unix", os.Getenv("CCMLAB_DRIVER_SOCKET"))
	if err != nil {
		return err
	}
	server := &http.Server{Handler: paths, ReadHeaderTimeout: time.Minute}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	if err := server.Serve(socket); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// pathsOf are those of every driver. What there are features for is added with handle.
func pathsOf(d driver) *http.ServeMux {
	mux := http.NewServeMux()
	handle(mux, "POST /hello", func(r *http.Request) (any, error) { return hello(d, r) })
	handle(mux, "POST /v1/instances", func(r *http.Request) (any, error) {
		var spec instanceSpec
		if err := json.NewDecoder(r.Body).Decode(&spec); err != nil {
			return nil, err
		}
		return d.createInstance(r.Context(), spec)
	})
	handle(mux, "POST /v1/instances/{id}/stop", func(r *http.Request) (any, error) {
		return nil, d.stopInstance(r.Context(), r.PathValue("id"))
	})
	handle(mux, "POST /v1/instances/{id}/start", func(r *http.Request) (any, error) {
		return nil, d.startInstance(r.Context(), r.PathValue("id"))
	})
	handle(mux, "DELETE /v1/instances/{id}", func(r *http.Request) (any, error) {
		return nil, ignoreNotFound(d.terminateInstance(r.Context(), r.PathValue("id")))
	})
	handle(mux, "GET /v1/balancers", func(r *http.Request) (any, error) {
		all, err := d.listBalancers(r.Context())
		return object{"balancers": append([]balancer{}, all...)}, err
	})
	handle(mux, "GET /v1/balancers/{id}", func(r *http.Request) (any, error) {
		return d.getBalancer(r.Context(), r.PathValue("id"))
	})
	handle(mux, "DELETE /v1/balancers/{id}", func(r *http.Request) (any, error) {
		return nil, ignoreNotFound(d.deleteBalancer(r.Context(), r.PathValue("id")))
	})
	return mux
}

// hello describes the driver. A suite of an earlier release says which features it knows: of the others, nothing is
// said.
func hello(d driver, r *http.Request) (any, error) {
	var asked struct {
		ClusterName string
		Features    []string
	}
	if err := json.NewDecoder(r.Body).Decode(&asked); err != nil {
		return nil, err
	}
	said, err := d.describe(r.Context(), asked.ClusterName)
	if err != nil {
		return nil, err
	}
	said["protocol"] = "v1"
	if features, ok := said["features"].([]string); ok && len(asked.Features) > 0 {
		said["features"] = slices.DeleteFunc(features, func(f string) bool { return !slices.Contains(asked.Features, f) })
	}
	return said, nil
}

// handle answers requests of a pattern: with a document, with nothing, or with the problem.
func handle(mux *http.ServeMux, pattern string, answer func(*http.Request) (any, error)) {
	mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		v, err := answer(r)
		write(w, v, err)
	})
}

func write(w http.ResponseWriter, v any, err error) {
	status, contentType := http.StatusOK, "application/json"
	if err != nil {
		contentType, v = "application/problem+json", object{"detail": err.Error()}
	}
	switch {
	case errors.Is(err, errNotFound):
		status = http.StatusNotFound
	case errors.Is(err, errors.ErrUnsupported):
		status = http.StatusNotImplemented
	case err != nil:
		status = http.StatusInternalServerError
	case v == nil:
		w.WriteHeader(http.StatusNoContent)
		return
	}
	w.Header().Set("Content-Type", contentType)
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // The suite has gone, and sees that itself.
}

// ignoreNotFound is for what is to be gone.
func ignoreNotFound(err error) error {
	if errors.Is(err, errNotFound) {
		return nil
	}
	return err
}
