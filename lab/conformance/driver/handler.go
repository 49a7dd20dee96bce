package driver

// A driver in Go: the protocol in front of a conformance.Cloud.

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync"

	"github.com/gorilla/mux"

	"github.com/ccmlab/ccmlab/lab/conformance"
	"github.com/ccmlab/ccmlab/lab/conformance/driver/protocol"
)

// NewHandler answers for a cloud, which open makes at the first request. Of described, the protocol is
// filled in, and the features that follow from the cloud and its roles.
func NewHandler(
	described protocol.Driver, open func(context.Context, protocol.Hello) (conformance.Cloud, error),
) http.Handler {
	h := &handler{described: described, open: open, held: map[string]conformance.Injection{}}
	// By the encoded path, as an ID may have a slash in it.
	router := mux.NewRouter().UseEncodedPath()
	router.Use(decodeIDs)
	return protocol.HandlerWithOptions(h, protocol.GorillaServerOptions{
		BaseRouter: router,
		ErrorHandlerFunc: func(w http.ResponseWriter, _ *http.Request, err error) {
			writeProblem(w, http.StatusBadRequest, err)
		},
	})
}

// decodeIDs decodes what the path names.
func decodeIDs(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		decoded := map[string]string{}
		for name, value := range mux.Vars(r) {
			plain, err := url.PathUnescape(value)
			if err != nil {
				writeProblem(w, http.StatusBadRequest, err)
				return
			}
			decoded[name] = plain
		}
		next.ServeHTTP(w, mux.SetURLVars(r, decoded))
	})
}

// handler implements protocol.ServerInterface.
type handler struct {
	described protocol.Driver
	open      func(context.Context, protocol.Hello) (conformance.Cloud, error)

	mu     sync.Mutex
	cloud  conformance.Cloud
	serial int
	held   map[string]conformance.Injection // by ID
}

var errNoHello = errors.New("the first request is /hello")

func (h *handler) theCloud() (conformance.Cloud, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.cloud == nil {
		return nil, errNoHello
	}
	return h.cloud, nil
}

// roleOf finds a role of the cloud.
func roleOf[R any](h *handler) (R, error) {
	var none R
	cloud, err := h.theCloud()
	if err != nil {
		return none, err
	}
	role, ok := conformance.As[R](cloud)
	if !ok {
		return none, fmt.Errorf("the cloud is no %T: %w", (*R)(nil), errors.ErrUnsupported)
	}
	return role, nil
}

func writeJSON(w http.ResponseWriter, status int, contentType string, v any) {
	w.Header().Set("Content-Type", contentType)
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // Whoever asked has gone.
}

func writeProblem(w http.ResponseWriter, status int, err error) {
	writeJSON(w, status, "application/problem+json", protocol.Problem{
		Title: http.StatusText(status), Status: status, Detail: cmp.Or(err.Error(), "it did not work"),
	})
}

// answer writes what was asked for, or why it was not to be had.
func answer[T any](w http.ResponseWriter, v T, err error) {
	if err != nil {
		writeFailure(w, err)
		return
	}
	writeJSON(w, http.StatusOK, "application/json", v)
}

// answerDone says that something was done, or why not.
func answerDone(w http.ResponseWriter, err error) {
	if err != nil {
		writeFailure(w, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func writeFailure(w http.ResponseWriter, err error) {
	status := http.StatusInternalServerError
	if errors.Is(err, errors.ErrUnsupported) {
		status = http.StatusNotImplemented
	}
	writeProblem(w, status, err)
}

// withRole has a role do something.
func withRole[R any](h *handler, do func(R) error) error {
	role, err := roleOf[R](h)
	if err != nil {
		return err
	}
	return do(role)
}

// withBody reads what a request asks for; false if that cannot be read, which has been answered then.
func withBody[T any](w http.ResponseWriter, r *http.Request) (body T, ok bool) {
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		writeProblem(w, http.StatusBadRequest, fmt.Errorf("the request's body: %w", err))
		return body, false
	}
	return body, true
}

// Hello implements protocol.ServerInterface.
func (h *handler) Hello(w http.ResponseWriter, r *http.Request) {
	hello, ok := withBody[protocol.Hello](w, r)
	if !ok {
		return
	}
	if !slices.Contains(hello.Protocols, protocol.Version) {
		writeProblem(w, http.StatusBadRequest, fmt.Errorf(
			"this driver speaks version %q of the protocol, and the suite %q", protocol.Version, hello.Protocols))
		return
	}
	cloud, err := h.open(r.Context(), hello)
	if err != nil {
		writeFailure(w, err)
		return
	}
	h.mu.Lock()
	h.cloud = cloud
	h.mu.Unlock()
	described := h.described
	described.Protocol, described.Features = protocol.Version, []string{}
	for _, f := range conformance.FeaturesOf(cloud) {
		described.Features = append(described.Features, string(f))
	}
	if _, ok := conformance.As[conformance.InstanceBatcher](cloud); ok {
		described.Features = append(described.Features, RoleInstanceBatches)
	}
	if _, ok := conformance.As[conformance.CallJournal](cloud); ok {
		described.Features = append(described.Features, RoleCallJournal)
	}
	answer(w, described, nil)
}

// CreateInstance implements protocol.ServerInterface.
func (h *handler) CreateInstance(w http.ResponseWriter, r *http.Request) {
	spec, ok := withBody[protocol.InstanceSpec](w, r)
	if !ok {
		return
	}
	var made conformance.Instance
	err := withRole(h, func(c conformance.Cloud) (err error) {
		made, err = c.CreateInstance(r.Context(), toInstanceSpec(spec))
		return err
	})
	answer(w, fromInstance(made), err)
}

// StopInstance implements protocol.ServerInterface.
func (h *handler) StopInstance(w http.ResponseWriter, r *http.Request, id protocol.ID) {
	answerDone(w, withRole(h, func(c conformance.Cloud) error { return c.StopInstance(r.Context(), id) }))
}

// StartInstance implements protocol.ServerInterface.
func (h *handler) StartInstance(w http.ResponseWriter, r *http.Request, id protocol.ID) {
	answerDone(w, withRole(h, func(c conformance.Cloud) error { return c.StartInstance(r.Context(), id) }))
}

// TerminateInstance implements protocol.ServerInterface.
func (h *handler) TerminateInstance(w http.ResponseWriter, r *http.Request, id protocol.ID) {
	answerDone(w, withRole(h, func(c conformance.Cloud) error { return c.TerminateInstance(r.Context(), id) }))
}

// ChangeAddresses implements protocol.ServerInterface.
func (h *handler) ChangeAddresses(w http.ResponseWriter, r *http.Request, id protocol.ID) {
	var changed conformance.Instance
	err := withRole(h, func(c conformance.AddressChanger) (err error) {
		changed, err = c.ChangeAddresses(r.Context(), id)
		return err
	})
	answer(w, fromInstance(changed), err)
}

// CreateInstances implements protocol.ServerInterface.
func (h *handler) CreateInstances(w http.ResponseWriter, r *http.Request) {
	specs, ok := withBody[protocol.InstanceSpecs](w, r)
	if !ok {
		return
	}
	batcher, err := roleOf[conformance.InstanceBatcher](h)
	if err != nil {
		writeFailure(w, err)
		return
	}
	made, err := batcher.CreateInstances(r.Context(), convert(specs.Instances, toInstanceSpec))
	batch := protocol.InstanceBatch{Instances: listed(convert(made, fromInstance))}
	if err != nil {
		batch.Problem = &protocol.Problem{Detail: err.Error()}
	}
	answer(w, batch, nil)
}

// TerminateInstances implements protocol.ServerInterface.
func (h *handler) TerminateInstances(w http.ResponseWriter, r *http.Request) {
	if body, ok := withBody[protocol.IDs](w, r); ok {
		answerDone(w, withRole(h, func(b conformance.InstanceBatcher) error {
			return b.TerminateInstances(r.Context(), body.IDs)
		}))
	}
}

// ListBalancers implements protocol.ServerInterface.
func (h *handler) ListBalancers(w http.ResponseWriter, r *http.Request) {
	var all []conformance.Balancer
	err := withRole(h, func(c conformance.Cloud) (err error) {
		all, err = c.ListBalancers(r.Context())
		return err
	})
	answer(w, protocol.BalancerList{Balancers: listed(convert(all, fromBalancer))}, err)
}

var errNone = errors.New("there is none of this ID")

// GetBalancer implements protocol.ServerInterface.
func (h *handler) GetBalancer(w http.ResponseWriter, r *http.Request, id protocol.ID) {
	var b conformance.Balancer
	found := false
	err := withRole(h, func(c conformance.Cloud) (err error) {
		b, found, err = c.GetBalancer(r.Context(), id)
		return err
	})
	if err == nil && !found {
		writeProblem(w, http.StatusNotFound, errNone)
		return
	}
	answer(w, fromBalancer(b), err)
}

// DeleteBalancer implements protocol.ServerInterface.
func (h *handler) DeleteBalancer(w http.ResponseWriter, r *http.Request, id protocol.ID) {
	answerDone(w, withRole(h, func(c conformance.Cloud) error { return c.DeleteBalancer(r.Context(), id) }))
}

// RenameBalancer implements protocol.ServerInterface.
func (h *handler) RenameBalancer(w http.ResponseWriter, r *http.Request, id protocol.ID) {
	if body, ok := withBody[protocol.Name](w, r); ok {
		answerDone(w, withRole(h, func(c conformance.BalancerRenamer) error {
			return c.RenameBalancer(r.Context(), id, body.Name)
		}))
	}
}

// ChangeBalancer implements protocol.ServerInterface.
func (h *handler) ChangeBalancer(w http.ResponseWriter, r *http.Request, id protocol.ID) {
	if body, ok := withBody[protocol.BalancerChange](w, r); ok {
		answerDone(w, withRole(h, func(c conformance.BalancerChanger) error {
			return c.ChangeBalancer(r.Context(), id, convert(body.Listeners, toListener), body.Targets)
		}))
	}
}

// CountConnections implements protocol.ServerInterface.
func (h *handler) CountConnections(w http.ResponseWriter, r *http.Request, id protocol.ID) {
	counts := protocol.ConnectionCounts{}
	err := withRole(h, func(c conformance.ConnectionCounter) error {
		byPort, err := c.CountConnections(r.Context(), id)
		for port, n := range byPort {
			counts.Ports = append(counts.Ports, protocol.PortConnections{Port: port, Connections: n})
		}
		return err
	})
	counts.Ports = listed(counts.Ports)
	answer(w, counts, err)
}

// CreateForeignBalancer implements protocol.ServerInterface.
func (h *handler) CreateForeignBalancer(w http.ResponseWriter, r *http.Request) {
	body, ok := withBody[protocol.Name](w, r)
	if !ok {
		return
	}
	var made conformance.Balancer
	err := withRole(h, func(c conformance.ForeignBalancerCreator) (err error) {
		made, err = c.CreateForeignBalancer(r.Context(), body.Name)
		return err
	})
	answer(w, fromBalancer(made), err)
}

// CreateNamesakeBalancer implements protocol.ServerInterface.
func (h *handler) CreateNamesakeBalancer(w http.ResponseWriter, r *http.Request) {
	body, ok := withBody[protocol.Name](w, r)
	if !ok {
		return
	}
	var made conformance.Balancer
	err := withRole(h, func(c conformance.NamesakeBalancerCreator) (err error) {
		made, err = c.CreateNamesakeBalancer(r.Context(), body.Name)
		return err
	})
	answer(w, fromBalancer(made), err)
}

// CreateNamesakeRoute implements protocol.ServerInterface.
func (h *handler) CreateNamesakeRoute(w http.ResponseWriter, r *http.Request) {
	body, ok := withBody[protocol.ForeignRoute](w, r)
	if !ok {
		return
	}
	var made conformance.Route
	err := withRole(h, func(c conformance.NamesakeRouteCreator) (err error) {
		made, err = c.CreateNamesakeRoute(r.Context(), body.Destination, body.InstanceID)
		return err
	})
	answer(w, fromRoute(made), err)
}

// ReserveAddress implements protocol.ServerInterface.
func (h *handler) ReserveAddress(w http.ResponseWriter, r *http.Request) {
	var kept protocol.ReservedAddress
	err := withRole(h, func(c conformance.AddressReserver) error {
		address, release, err := c.ReserveAddress(r.Context())
		if err == nil {
			kept = protocol.ReservedAddress{ID: h.hold(liftable{lift: release}), Address: address}
		}
		return err
	})
	answer(w, kept, err)
}

// ReleaseAddress implements protocol.ServerInterface.
func (h *handler) ReleaseAddress(w http.ResponseWriter, r *http.Request, id protocol.ID) {
	h.LiftInjection(w, r, id)
}

// ListRoutes implements protocol.ServerInterface.
func (h *handler) ListRoutes(w http.ResponseWriter, r *http.Request) {
	var all []conformance.Route
	err := withRole(h, func(c conformance.RouteTable) (err error) {
		all, err = c.ListRoutes(r.Context())
		return err
	})
	answer(w, protocol.RouteList{Routes: listed(convert(all, fromRoute))}, err)
}

// GetRoute implements protocol.ServerInterface.
func (h *handler) GetRoute(w http.ResponseWriter, r *http.Request, id protocol.ID) {
	var route conformance.Route
	found := false
	err := withRole(h, func(c conformance.RouteTable) (err error) {
		route, found, err = c.GetRoute(r.Context(), id)
		return err
	})
	if err == nil && !found {
		writeProblem(w, http.StatusNotFound, errNone)
		return
	}
	answer(w, fromRoute(route), err)
}

// DeleteRoute implements protocol.ServerInterface.
func (h *handler) DeleteRoute(w http.ResponseWriter, r *http.Request, id protocol.ID) {
	answerDone(w, withRole(h, func(c conformance.RouteTable) error { return c.DeleteRoute(r.Context(), id) }))
}

// DivertRoute implements protocol.ServerInterface.
func (h *handler) DivertRoute(w http.ResponseWriter, r *http.Request, id protocol.ID) {
	if body, ok := withBody[protocol.RouteDiversion](w, r); ok {
		answerDone(w, withRole(h, func(c conformance.RouteDiverter) error {
			return c.DivertRoute(r.Context(), id, body.InstanceID)
		}))
	}
}

// CreateForeignRoute implements protocol.ServerInterface.
func (h *handler) CreateForeignRoute(w http.ResponseWriter, r *http.Request) {
	body, ok := withBody[protocol.ForeignRoute](w, r)
	if !ok {
		return
	}
	var made conformance.Route
	err := withRole(h, func(c conformance.ForeignRouteCreator) (err error) {
		made, err = c.CreateForeignRoute(r.Context(), body.Destination, body.InstanceID)
		return err
	})
	answer(w, fromRoute(made), err)
}

// liftable is an Injection that meets nothing.
type liftable struct {
	lift func(context.Context) error
}

// Hits implements conformance.Injection.
func (liftable) Hits(context.Context) (int, error) { return 0, nil }

// Lift implements conformance.Injection.
func (l liftable) Lift(ctx context.Context) error { return l.lift(ctx) }

// hold keeps an injection until it is lifted, and returns its ID.
func (h *handler) hold(i conformance.Injection) (id string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.serial++
	id = strconv.Itoa(h.serial)
	h.held[id] = i
	return id
}

// answerInjection holds what a role has injected.
func answerInjection[R any](h *handler, w http.ResponseWriter, inject func(R) (conformance.Injection, error)) {
	var made protocol.Injection
	err := withRole(h, func(role R) error {
		i, err := inject(role)
		if err == nil {
			made.ID = h.hold(i)
		}
		return err
	})
	answer(w, made, err)
}

// LimitRoutes implements protocol.ServerInterface.
func (h *handler) LimitRoutes(w http.ResponseWriter, r *http.Request) {
	answerInjection(h, w, func(c conformance.RouteLimiter) (conformance.Injection, error) {
		lift, err := c.LimitRoutes(r.Context())
		return liftable{lift}, err
	})
}

// InjectFault implements protocol.ServerInterface.
func (h *handler) InjectFault(w http.ResponseWriter, r *http.Request) {
	body, ok := withBody[protocol.Fault](w, r)
	if !ok {
		return
	}
	fault := conformance.Fault{Kind: conformance.FaultKind(body.Kind)}
	for _, thing := range body.Things {
		fault.On = append(fault.On, conformance.Thing(thing))
	}
	answerInjection(h, w, func(c conformance.FaultInjector) (conformance.Injection, error) {
		return c.InjectFault(r.Context(), fault)
	})
}

// ListZones implements protocol.ServerInterface.
func (h *handler) ListZones(w http.ResponseWriter, r *http.Request) {
	var zones []string
	err := withRole(h, func(c conformance.ZoneOutageInjector) (err error) {
		zones, err = c.ListZones(r.Context())
		return err
	})
	answer(w, protocol.ZoneList{Zones: listed(zones)}, err)
}

// InjectZoneOutage implements protocol.ServerInterface.
func (h *handler) InjectZoneOutage(w http.ResponseWriter, r *http.Request, zone protocol.ID) {
	answerInjection(h, w, func(c conformance.ZoneOutageInjector) (conformance.Injection, error) {
		return c.InjectZoneOutage(r.Context(), zone)
	})
}

// ExpireCredentials implements protocol.ServerInterface.
func (h *handler) ExpireCredentials(w http.ResponseWriter, r *http.Request) {
	answerInjection(h, w, func(c conformance.CredentialExpirer) (conformance.Injection, error) {
		return c.ExpireCredentials(r.Context())
	})
}

// SwapCredentials implements protocol.ServerInterface.
func (h *handler) SwapCredentials(w http.ResponseWriter, r *http.Request) {
	answerInjection(h, w, func(c conformance.CredentialSwapper) (conformance.Injection, error) {
		return c.SwapCredentials(r.Context())
	})
}

// heldInjection finds an injection that is in force.
func (h *handler) heldInjection(id string) (conformance.Injection, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	i, ok := h.held[id]
	return i, ok
}

// GetInjection implements protocol.ServerInterface.
func (h *handler) GetInjection(w http.ResponseWriter, r *http.Request, id protocol.ID) {
	i, ok := h.heldInjection(id)
	if !ok {
		writeProblem(w, http.StatusNotFound, errNone)
		return
	}
	hits, err := i.Hits(r.Context())
	answer(w, protocol.Hits{Hits: hits}, err)
}

// LiftInjection implements protocol.ServerInterface.
func (h *handler) LiftInjection(w http.ResponseWriter, r *http.Request, id protocol.ID) {
	i, ok := h.heldInjection(id)
	if !ok { // It has been lifted before.
		answerDone(w, nil)
		return
	}
	err := i.Lift(r.Context())
	if err == nil {
		h.mu.Lock()
		delete(h.held, id)
		h.mu.Unlock()
	}
	answerDone(w, err)
}

// RenewCredentials implements protocol.ServerInterface.
func (h *handler) RenewCredentials(w http.ResponseWriter, r *http.Request, id protocol.ID) {
	i, _ := h.heldInjection(id)
	expiry, ok := i.(conformance.Expiry)
	if !ok {
		writeProblem(w, http.StatusNotFound, errNone)
		return
	}
	answerDone(w, expiry.Renew(r.Context()))
}

// CountCalls implements protocol.ServerInterface.
func (h *handler) CountCalls(w http.ResponseWriter, r *http.Request) {
	var calls conformance.Calls
	err := withRole(h, func(c conformance.CallCounter) (err error) {
		calls, err = c.CountCalls(r.Context())
		return err
	})
	answer(w, fromCalls(calls), err)
}

// ListCalls implements protocol.ServerInterface.
func (h *handler) ListCalls(w http.ResponseWriter, r *http.Request, params protocol.ListCallsParams) {
	var calls []conformance.Call
	err := withRole(h, func(c conformance.CallJournal) (err error) {
		calls, err = c.CallsSince(r.Context(), params.Since)
		return err
	})
	answer(w, protocol.CallList{Calls: listed(convert(calls, fromCall))}, err)
}
