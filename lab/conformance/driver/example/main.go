// A driver for the conformance suite, as small as one can be: what every driver answers, three features
// more that core tests need, and rules for the suite's proxy, which makes all faults. Its cloud is behind
// REST, fakecloud (cloud.go), or with -memory a fake in the same process (memory.go). Whoever has another
// cloud replaces one of the two files, deletes the other and what newDriver does with it, and changes the
// rules, the features and the CCM's arguments in hello.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

// object is JSON that this driver writes, without a type for each kind.
type object = map[string]any

func main() {
	log.SetFlags(0)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	inMemory := flag.Bool("memory", false, "serve a cloud in memory instead of connecting to $FAKECLOUD_URL")
	flag.Parse()
	err := run(ctx, *inMemory, os.Getenv)
	stop()
	if err != nil {
		log.Fatal(err)
	}
}

// run serves the protocol until ctx ends.
func run(ctx context.Context, inMemory bool, getenv func(string) string) error {
	d, err := newDriver(ctx, inMemory, getenv)
	if err != nil {
		return err
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "unix", getenv("CCMLAB_DRIVER_SOCKET"))
	if err != nil {
		return err
	}
	server := &http.Server{Handler: d.handler(), ReadHeaderTimeout: time.Minute}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// cloud is what the driver needs of a cloud. What changes something returns when the cloud says that it is so.
type cloud interface {
	apiURL() string // of the API that the CCM calls
	project(ctx context.Context) (id string, err error)
	createInstance(ctx context.Context, name string, tags map[string]string) (instance, error)
	changeInstance(ctx context.Context, id, action string) error
	listBalancers(ctx context.Context) ([]balancer, error)
	getBalancer(ctx context.Context, id string) (balancer, error)
	deleteBalancer(ctx context.Context, id string) error
	changeBalancer(ctx context.Context, id string, listeners []listener, targets []string) error
}

// connectionCounter is a cloud whose instances become Nodes, and whose balancers carry traffic.
type connectionCounter interface {
	countConnections(ctx context.Context, id string) ([]portConnections, error)
}

// driver answers the suite.
type driver struct {
	cloud     cloud
	tokenFile string
	caFile    string // Go's HTTP client reads it by itself; the suite's proxy is told.
	cluster   string // its name, from the suite's first request
}

func newDriver(ctx context.Context, inMemory bool, getenv func(string) string) (*driver, error) {
	if inMemory {
		m, err := startMemory(ctx)
		return &driver{cloud: m, tokenFile: "{{.TokenFile}}"}, err // Any token will do.
	}
	d := &driver{tokenFile: getenv("FAKECLOUD_TOKEN_FILE"), caFile: getenv("SSL_CERT_FILE")}
	if d.tokenFile == "" || getenv("FAKECLOUD_URL") == "" {
		return nil, errors.New("FAKECLOUD_URL and FAKECLOUD_TOKEN_FILE are to say where the cloud is; with -memory there is one in memory")
	}
	token, err := os.ReadFile(d.tokenFile)
	d.cloud = client{url: getenv("FAKECLOUD_URL"), token: string(token)}
	return d, err
}

// handler has the paths of the protocol that the features below ask for.
func (d *driver) handler() http.Handler {
	mux := http.NewServeMux()
	handle := func(pattern string, answer func(*http.Request) (any, error)) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			v, err := answer(r)
			write(w, v, err)
		})
	}
	handle("POST /hello", d.hello)
	handle("POST /v1/instances", d.createInstance)
	handle("POST /v1/instances/{id}/stop", func(r *http.Request) (any, error) {
		return nil, d.cloud.changeInstance(r.Context(), r.PathValue("id"), "stop")
	})
	handle("POST /v1/instances/{id}/start", func(r *http.Request) (any, error) {
		return nil, d.cloud.changeInstance(r.Context(), r.PathValue("id"), "start")
	})
	handle("DELETE /v1/instances/{id}", func(r *http.Request) (any, error) {
		return nil, ignoreNotFound(d.cloud.changeInstance(r.Context(), r.PathValue("id"), "terminate"))
	})
	handle("GET /v1/balancers", d.listBalancers)
	handle("GET /v1/balancers/{id}", func(r *http.Request) (any, error) {
		b, err := d.cloud.getBalancer(r.Context(), r.PathValue("id"))
		return b.toProtocol(), err
	})
	handle("DELETE /v1/balancers/{id}", func(r *http.Request) (any, error) {
		return nil, ignoreNotFound(d.cloud.deleteBalancer(r.Context(), r.PathValue("id")))
	})
	handle("POST /v1/balancers/{id}/change", d.changeBalancer)
	if counter, ok := d.cloud.(connectionCounter); ok {
		handle("GET /v1/balancers/{id}/connections", func(r *http.Request) (any, error) {
			ports, err := counter.countConnections(r.Context(), r.PathValue("id"))
			return object{"ports": ports}, err
		})
	}
	return mux
}

// write writes an answer: a document, nothing, or the problem.
func write(w http.ResponseWriter, v any, err error) {
	status, contentType := http.StatusOK, "application/json"
	if err != nil {
		status, contentType, v = http.StatusInternalServerError, "application/problem+json", object{"detail": err.Error()}
		if isNotFound(err) {
			status = http.StatusNotFound
		}
	}
	if v == nil {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	w.Header().Set("Content-Type", contentType)
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // The suite has gone, and sees that itself.
}

// ignoreNotFound is for what is to be gone.
func ignoreNotFound(err error) error {
	if isNotFound(err) {
		return nil
	}
	return err
}

// hello says what the cloud can do, which of its paths are what, and how its CCM is started.
func (d *driver) hello(r *http.Request) (any, error) {
	var asked struct{ ClusterName string }
	if err := json.NewDecoder(r.Body).Decode(&asked); err != nil {
		return nil, err
	}
	d.cluster = asked.ClusterName
	features := []string{
		"node-names", "zones", "instance-types", "listeners", "node-ports", "targets", "udp", // what answers have
		"change-balancer", // what there is one more path for
	}
	if _, ok := d.cloud.(connectionCounter); ok {
		features = append(features, "machines", "traffic")
	}
	project, err := d.cloud.project(r.Context())
	return object{
		"protocol": "v1", "name": "example", "version": "v0.1.0", "features": features,
		"proxy": object{
			"upstream": d.cloud.apiURL(),
			"caFile":   d.caFile,
			"rules":    rules,
			"answers": object{
				// Whose project was looked at tells a CCM whether a 404 is about its own instances.
				"404":       object{"body": notFound("p-00000000000000000000000000"), "headers": problemHeaders},
				"not-found": object{"body": notFound(project), "headers": problemHeaders},
			},
		},
		"ccm": object{
			"args": []string{
				"--kubeconfig={{.Kubeconfig}}", "--cloud-config={{.CloudConfig}}", "--cluster-name={{.ClusterName}}",
				"--bind-address={{.Address}}", "--secure-port={{.Port}}", "--configure-cloud-routes=false",
				"--leader-elect-lease-duration=10s", "--leader-elect-renew-deadline=8s", "--leader-elect-retry-period=1s",
				"--node-monitor-period=1s",
			},
			"config": "url: {{.CloudURL}}\ntokenFile: " + d.tokenFile + "\nproject: " + project + "\n" +
				// Tests beside each other end many instances, for which the CCM is not to keep their Nodes.
				"massDeletion: {minimum: 10, window: 30s, hold: 10m}\n",
		},
	}, err
}

var problemHeaders = object{"Content-Type": "application/problem+json"}

func notFound(project string) string {
	body, _ := json.Marshal(object{ // Texts and a number cannot fail.
		"title": "Not Found", "status": http.StatusNotFound, "code": "not-found", "project": project,
		"detail": "there is none of this ID",
	})
	return string(body)
}

// rules say which paths of the cloud are which resources, and where their answers have what a fault
// leaves out.
var rules = append(
	rulesOf("instances", "/v1/instances"),
	append(rulesOf("balancers", "/v1/load-balancers"), rulesOf("routes", "/v1/routes")...)...,
)

// fields say where a thing has what, besides its state.
var fields = map[string]object{
	"instances": {
		"addresses": []string{"/addresses"}, "zone": []string{"/zone", "/region"}, "type": []string{"/type"},
		"tags": []string{"/tags"},
	},
	"balancers": {"address": []string{"/address"}, "listeners": []string{"/listeners"}},
	"routes":    {"instance": []string{"/instanceId"}, "destination": []string{"/destination"}},
}

func rulesOf(thing, path string) []object {
	nextPage, states := []string{"/nextPageToken"}, []string{"/state"}
	return []object{
		{
			"thing": thing, "method": "GET", "path": path, "list": "/items", "nextPage": nextPage,
			"stateFields": states, "fields": fields[thing],
		},
		{"thing": thing, "method": "GET", "path": path + "/{id}", "stateFields": states, "fields": fields[thing]},
		{"thing": thing, "path": path + "/{rest...}"}, // whatever else: all of it changes something
	}
}

func (d *driver) createInstance(r *http.Request) (any, error) {
	var spec struct {
		Name    string
		Machine bool
	}
	if err := json.NewDecoder(r.Body).Decode(&spec); err != nil {
		return nil, err
	}
	tags := map[string]string{"kubernetes-cluster": d.cluster}
	if !spec.Machine {
		tags["ccmlab-machine"] = "none" // No kubelet is to run on it.
	}
	i, err := d.cloud.createInstance(r.Context(), spec.Name, tags)
	return i.toProtocol(), err
}

func (d *driver) listBalancers(r *http.Request) (any, error) {
	all, err := d.cloud.listBalancers(r.Context())
	balancers := []object{}
	for _, b := range all {
		balancers = append(balancers, b.toProtocol())
	}
	return object{"balancers": balancers}, err
}

func (d *driver) changeBalancer(r *http.Request) (any, error) {
	var change struct {
		Listeners []struct {
			Protocol         string
			Port, TargetPort int
		}
		Targets []string
	}
	if err := json.NewDecoder(r.Body).Decode(&change); err != nil {
		return nil, err
	}
	var listeners []listener
	for _, l := range change.Listeners {
		listeners = append(listeners, listener{strings.ToLower(l.Protocol), l.Port, l.TargetPort})
	}
	return nil, d.cloud.changeBalancer(r.Context(), r.PathValue("id"), listeners, change.Targets)
}
