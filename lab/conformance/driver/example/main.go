// A driver for the conformance suite, as small as one can be: what every driver answers (serve.go), three features
// more that core tests need, and rules for the suite's proxy, which makes all faults. Its cloud is behind
// REST, fakecloud (cloud.go), or with -memory a fake in the same process (memory.go). Whoever has another
// cloud replaces one of the two files, deletes the other and what newExample does with it, and changes the
// rules, the features and the CCM's arguments in describe. It shares no code with this repository, and needs
// nothing but Go's own packages: all that it knows is the protocol, and the API of the cloud.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"log"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
)

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

func run(ctx context.Context, inMemory bool, getenv func(string) string) error {
	e, err := newExample(ctx, inMemory, getenv)
	if err != nil {
		return err
	}
	return serve(ctx, e.paths())
}

// cloud is what the example needs of a cloud.
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

// example is a driver of either cloud.
type example struct {
	cloud
	tokenFile string
	caFile    string // Go's HTTP client reads it by itself; the suite's proxy is told.
	cluster   string // its name, from the suite's first request
}

func newExample(ctx context.Context, inMemory bool, getenv func(string) string) (*example, error) {
	if inMemory {
		m, err := startMemory(ctx)
		return &example{cloud: m, tokenFile: "{{.TokenFile}}"}, err // Any token will do.
	}
	e := &example{tokenFile: getenv("FAKECLOUD_TOKEN_FILE"), caFile: getenv("SSL_CERT_FILE")}
	if e.tokenFile == "" || getenv("FAKECLOUD_URL") == "" {
		return nil, errors.New("FAKECLOUD_URL and FAKECLOUD_TOKEN_FILE are to say where the cloud is; with -memory there is one in memory")
	}
	token, err := os.ReadFile(e.tokenFile)
	e.cloud = client{url: getenv("FAKECLOUD_URL"), token: string(token)}
	return e, err
}

// paths has those of every driver, and those that the features ask for.
func (e *example) paths() http.Handler {
	mux := pathsOf(e)
	handle(mux, "POST /v1/balancers/{id}/change", e.answerChange)
	if counter, ok := e.cloud.(connectionCounter); ok {
		handle(mux, "GET /v1/balancers/{id}/connections", func(r *http.Request) (any, error) {
			ports, err := counter.countConnections(r.Context(), r.PathValue("id"))
			return object{"ports": ports}, err
		})
	}
	return mux
}

// describe says what the cloud can do, which of its paths are what, and how its CCM is started.
func (e *example) describe(ctx context.Context, clusterName string) (object, error) {
	e.cluster = clusterName
	features := []string{
		"node-names", "zones", "instance-types", "listeners", "node-ports", "targets", "udp", // what answers have
		"change-balancer", // what there is one more path for
	}
	if _, ok := e.cloud.(connectionCounter); ok {
		features = append(features, "machines", "traffic")
	}
	project, err := e.project(ctx)
	return object{
		"name": "example", "version": "v0.1.0", "features": features,
		"proxy": object{
			"upstream": e.apiURL(),
			"caFile":   e.caFile,
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
			"config": "url: {{.CloudURL}}\ntokenFile: " + e.tokenFile + "\nproject: " + project + "\n" +
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

func (e *example) createInstance(ctx context.Context, spec instanceSpec) (instance, error) {
	tags := map[string]string{"kubernetes-cluster": e.cluster}
	if !spec.Machine {
		tags["ccmlab-machine"] = "none" // No kubelet is to run on it.
	}
	return e.cloud.createInstance(ctx, spec.Name, tags)
}

func (e *example) stopInstance(ctx context.Context, id string) error {
	return e.changeInstance(ctx, id, "stop")
}

func (e *example) startInstance(ctx context.Context, id string) error {
	return e.changeInstance(ctx, id, "start")
}

func (e *example) terminateInstance(ctx context.Context, id string) error {
	return e.changeInstance(ctx, id, "terminate")
}

func (e *example) answerChange(r *http.Request) (any, error) {
	var change struct {
		Listeners []listener
		Targets   []string
	}
	if err := json.NewDecoder(r.Body).Decode(&change); err != nil {
		return nil, err
	}
	for i := range change.Listeners {
		change.Listeners[i].Protocol = strings.ToLower(change.Listeners[i].Protocol)
	}
	return nil, e.changeBalancer(r.Context(), r.PathValue("id"), change.Listeners, change.Targets)
}
