package main

// A cloud in memory: what its API shows to the CCM, and what the suite sees and steers, are the same records.

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"
)

const (
	memoryProject = "p-memory"
	instances     = "instances"
	balancers     = "load-balancers"
)

// started stands for the times that the API promises and nobody acts on.
var started = time.Now()

// memory is a fake of a cloud. Its API is the part of fakecloud's that fakecloud's CCM cannot do without. Its answers
// have every field that the API requires: the CCM takes one without for no answer.
type memory struct {
	url string

	mu        sync.Mutex
	serial    int                          // the number of the last change
	resources map[string]map[string]object // by kind and ID, as the API shows them
}

// startMemory serves the API of an empty cloud until ctx ends. It checks neither token nor Host: who reaches the port,
// even from a browser, can only spoil this run's records.
func startMemory(ctx context.Context) (*memory, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	m := &memory{
		url:       "http://" + listener.Addr().String(),
		resources: map[string]map[string]object{instances: {}, balancers: {}},
	}
	server := &http.Server{Handler: m.apiHandler(), ReadHeaderTimeout: time.Minute}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	go func() { _ = server.Serve(listener) }() // It ends with ctx.
	return m, nil
}

// apiHandler is what the CCM calls.
func (m *memory) apiHandler() http.Handler {
	mux := http.NewServeMux()
	handle := func(pattern string, answer func(r *http.Request) (any, error)) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			m.mu.Lock()
			defer m.mu.Unlock()
			v, err := answer(r)
			if err == nil {
				write(w, v, nil)
				return
			}
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(w, notFound(memoryProject))
		})
	}
	handle("GET /v1/project", func(*http.Request) (any, error) {
		return object{
			"id": memoryProject, "name": memoryProject, "defaultTags": object{}, "version": 1,
			"createdAt": started, "updatedAt": started,
		}, nil
	})
	for _, kind := range []string{instances, balancers} {
		handle("GET /v1/"+kind, func(*http.Request) (any, error) { return object{"items": m.listResources(kind)}, nil })
		handle("GET /v1/"+kind+"/{id}", func(r *http.Request) (any, error) { return m.findResource(kind, r.PathValue("id")) })
	}
	handle("POST /v1/load-balancers", func(r *http.Request) (any, error) {
		b := m.addResource(balancers, object{
			"state": "active", "region": "memory", "ipFamilies": []string{"ipv4"}, "type": "unlimited", "kind": "proxy",
			"scheme": "public", "algorithm": "round-robin", "listeners": []object{}, "targets": []object{},
			"sourceRanges": []string{}, "clientAffinitySeconds": 0, "idleTimeoutSeconds": 0, "drainSeconds": 0,
			"deletionProtection": false, "tags": object{},
		})
		b["address"] = fmt.Sprintf("198.51.100.%d", m.serial%250+1)
		m.setFields(b, fieldsOf(r))
		return b, nil
	})
	handle("PATCH /v1/load-balancers/{id}", func(r *http.Request) (any, error) {
		b, err := m.findResource(balancers, r.PathValue("id"))
		if err == nil {
			m.setFields(b, fieldsOf(r))
		}
		return b, err
	})
	handle("DELETE /v1/load-balancers/{id}", func(r *http.Request) (any, error) {
		b, err := m.findResource(balancers, r.PathValue("id"))
		delete(m.resources[balancers], r.PathValue("id"))
		return b, err
	})
	return mux
}

// fieldsOf reads a request's body, which a cloud would check.
func fieldsOf(r *http.Request) (fields object) {
	_ = json.NewDecoder(r.Body).Decode(&fields)
	return fields
}

// addResource gives a new resource its ID. m.mu is held.
func (m *memory) addResource(kind string, resource object) object {
	id := fmt.Sprintf("%s-%d", kind, m.serial+1)
	m.setFields(resource, object{
		"id": id, "project": memoryProject, "serial": m.serial + 1, "createdAt": started, "updatedAt": started,
	})
	m.resources[kind][id] = resource
	return resource
}

// setFields changes fields of a resource. m.mu is held.
func (m *memory) setFields(resource, fields object) {
	m.serial++
	maps.Copy(resource, fields)
	resource["version"] = m.serial
}

// listResources returns all resources of a kind. m.mu is held.
func (m *memory) listResources(kind string) []object {
	return slices.AppendSeq([]object{}, maps.Values(m.resources[kind]))
}

// findResource returns a resource. m.mu is held.
func (m *memory) findResource(kind, id string) (object, error) {
	if resource, found := m.resources[kind][id]; found {
		return resource, nil
	}
	return nil, &refusal{http.StatusNotFound, "there is no " + id + " in " + kind}
}

// convertJSON reads what is JSON into v.
func convertJSON(from, v any) error {
	text, err := json.Marshal(from)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, v)
}

// What the suite asks for. Nothing takes time here; in a fake where it does, it is waited for.

func (m *memory) createInstance(_ context.Context, name string, tags map[string]string) (instance, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	created := m.addResource(instances, object{
		"name": name, "tags": tags, "state": "running", "type": "small", "zone": "memory-a", "region": "memory",
		"identities": object{}, "networkId": "net-memory",
	})
	ip := fmt.Sprintf("10.1.%d.%d", m.serial/250, m.serial%250+1)
	created["addresses"] = []object{{"type": "internal", "ip": ip}}
	var i apiInstance
	err := convertJSON(created, &i)
	return i.toProtocol(), err
}

func (m *memory) changeInstance(_ context.Context, id, action string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	i, err := m.findResource(instances, id)
	if err == nil {
		m.setFields(i, object{"state": stateAfter[action]})
	}
	return err
}

// listBalancers lists all: nobody else has any.
func (m *memory) listBalancers(context.Context) ([]balancer, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []apiBalancer
	err := convertJSON(m.listResources(balancers), &all)
	return toProtocol(all), err
}

func (m *memory) getBalancer(_ context.Context, id string) (balancer, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	found, err := m.findResource(balancers, id)
	if err != nil {
		return balancer{}, err
	}
	var b apiBalancer
	err = convertJSON(found, &b)
	return b.toProtocol(), err
}

func (m *memory) deleteBalancer(_ context.Context, id string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.resources[balancers], id)
	return nil
}

func (m *memory) changeBalancer(_ context.Context, id string, listeners []listener, targets []string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	b, err := m.findResource(balancers, id)
	if err == nil {
		m.setFields(b, object{"listeners": listeners, "targets": toTargets(targets)})
	}
	return err
}
