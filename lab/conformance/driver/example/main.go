// A driver for the conformance suite, as small as one can be: what every driver answers (serve.go), three features
// more that core tests need, and rules for the suite's proxy, which makes all faults. Its cloud is a fake in the same
// process (memory.go), whose API is as much of fakecloud's as fakecloud's CCM cannot do without. Whoever has another
// cloud replaces that file, and changes the rules, the features and the CCM's arguments in describe. It shares no code
// with this repository, and needs nothing but Go's own packages: all that it knows is the protocol, and the API of the
// cloud.
package main

import (
	"context"
	"encoding/json"
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
	err := run(ctx)
	stop()
	if err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	cloud, err := startMemory(ctx)
	if err != nil {
		return err
	}
	return serve(ctx, (&example{memory: cloud}).paths())
}

// example is a driver of a cloud.
type example struct {
	*memory
	cluster string // its name, from the suite's first request
}

// paths has those of every driver, and one that a feature asks for.
func (e *example) paths() http.Handler {
	mux := pathsOf(e)
	handle(mux, "POST /v1/balancers/{id}/change", e.answerChange)
	return mux
}

// describe says what the cloud can do, which of its paths are what, and how its CCM is started.
func (e *example) describe(_ context.Context, clusterName string) (object, error) {
	e.cluster = clusterName
	return object{
		"name": "example", "version": "v0.1.0",
		"features": []string{
			"node-names", "zones", "instance-types", "listeners", "node-ports", "targets", "udp", // what answers have
			"change-balancer", // what there is one more path for
		},
		"proxy": object{
			"upstream": e.url,
			"rules":    rules,
			"answers": object{
				// Whose project was looked at tells a CCM whether a 404 is about its own instances.
				"404":       object{"body": notFound("p-00000000000000000000000000"), "headers": problemHeaders},
				"not-found": object{"body": notFound(memoryProject), "headers": problemHeaders},
			},
		},
		"ccm": object{
			"args": []string{
				"--kubeconfig={{.Kubeconfig}}", "--cloud-config={{.CloudConfig}}", "--cluster-name={{.ClusterName}}",
				"--bind-address={{.Address}}", "--secure-port={{.Port}}", "--configure-cloud-routes=false",
				"--leader-elect-lease-duration=10s", "--leader-elect-renew-deadline=8s", "--leader-elect-retry-period=1s",
				"--node-monitor-period=1s",
			},
			// Any token will do.
			"config": "url: {{.CloudURL}}\ntokenFile: {{.TokenFile}}\nproject: " + memoryProject + "\n" +
				// Tests beside each other end many instances, for which the CCM is not to keep their Nodes.
				"massDeletion: {minimum: 10, window: 30s, hold: 10m}\n",
		},
	}, nil
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
	return e.memory.createInstance(ctx, spec.Name, tags)
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
