package main

// The cloud's REST API, as much of it as the driver needs.

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

type cloud struct{ url, token string }

// refusal is an answer of the cloud that is an error.
type refusal struct {
	status int
	text   string
}

func (r *refusal) Error() string { return r.text }

func isNotFound(err error) bool {
	var no *refusal
	return errors.As(err, &no) && no.status == http.StatusNotFound
}

// call sends a request; into is what its answer is read into, unless nil.
func (c cloud) call(ctx context.Context, method, path string, body, into any) error {
	var content io.Reader = http.NoBody
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return err
		}
		content = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.url+path, content)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(c.token))
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode >= http.StatusBadRequest {
		return &refusal{resp.StatusCode, fmt.Sprintf("fakecloud, %s %s: %s: %s", method, path, resp.Status, answer)}
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(answer, into)
}

// await asks until done: what the protocol calls done is done when the cloud says so.
func await(ctx context.Context, done func() (bool, error)) error {
	for {
		ok, err := done()
		if ok || err != nil {
			return err
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done(): // The suite does not wait any more.
			return ctx.Err()
		}
	}
}

func (c cloud) project(ctx context.Context) (id string, err error) {
	var p struct{ ID string }
	err = c.call(ctx, http.MethodGet, "/v1/project", nil, &p)
	return p.ID, err
}

type instance struct {
	ID, Name, State, Type, Zone, Region string
	Addresses                           []struct{ Type, IP string }
}

func (i instance) toProtocol() object {
	internal, external := []string{}, []string{}
	for _, a := range i.Addresses {
		if a.Type == "external" {
			external = append(external, a.IP)
		} else {
			internal = append(internal, a.IP)
		}
	}
	return object{
		"id": i.ID, "name": i.Name, "providerID": "fakecloud://" + i.ID, "internalIPs": internal, "externalIPs": external,
		"type": i.Type, "zone": i.Zone, "region": i.Region,
	}
}

func (c cloud) createInstance(ctx context.Context, name string, tags map[string]string) (i instance, err error) {
	err = c.call(ctx, http.MethodPost, "/v1/instances", object{"name": name, "tags": tags}, &i)
	if err != nil {
		return i, err
	}
	return c.awaitState(ctx, i.ID, "running")
}

func (c cloud) awaitState(ctx context.Context, id, state string) (i instance, err error) {
	return i, await(ctx, func() (bool, error) {
		err := c.call(ctx, http.MethodGet, "/v1/instances/"+url.PathEscape(id), nil, &i)
		return i.State == state, err
	})
}

// changeInstance stops, starts or terminates an instance.
func (c cloud) changeInstance(ctx context.Context, id, action string) error {
	state := map[string]string{"stop": "stopped", "start": "running", "terminate": "terminated"}[action]
	if err := c.call(ctx, http.MethodPost, "/v1/instances/"+url.PathEscape(id)+"/"+action, nil, nil); err != nil {
		return err
	}
	_, err := c.awaitState(ctx, id, state)
	return err
}

type listener struct {
	Protocol   string `json:"protocol"`
	Port       int    `json:"port"`
	TargetPort int    `json:"targetPort"`
}

type target struct {
	InstanceID string `json:"instanceId"`
}

type balancer struct {
	ID, Name, State, Address string
	Tags                     map[string]string
	Listeners                []listener
	Targets                  []target
}

func (b balancer) toProtocol() object {
	listeners, targets := []listener{}, []string{}
	for _, l := range b.Listeners {
		listeners = append(listeners, listener{strings.ToUpper(l.Protocol), l.Port, l.TargetPort})
	}
	for _, t := range b.Targets {
		targets = append(targets, t.InstanceID)
	}
	return object{
		"id": b.ID, "name": b.Name, "service": b.Tags["kubernetes-service-uid"], "address": b.Address,
		"active": b.State == "active", "listeners": listeners, "targets": targets,
	}
}

func balancerPath(id string) string { return "/v1/load-balancers/" + url.PathEscape(id) }

func (c cloud) getBalancer(ctx context.Context, id string) (b balancer, err error) {
	return b, c.call(ctx, http.MethodGet, balancerPath(id), nil, &b)
}

// listBalancers lists those of Services, page by page. The project has one cluster, whose name may change.
func (c cloud) listBalancers(ctx context.Context) (all []balancer, err error) {
	query := url.Values{"tag": {"kubernetes-service-uid"}}
	for {
		var page struct {
			Items         []balancer
			NextPageToken string
		}
		if err := c.call(ctx, http.MethodGet, "/v1/load-balancers?"+query.Encode(), nil, &page); err != nil {
			return nil, err
		}
		all = append(all, page.Items...)
		if page.NextPageToken == "" {
			return all, nil
		}
		query.Set("pageToken", page.NextPageToken)
	}
}

func (c cloud) deleteBalancer(ctx context.Context, id string) error {
	if err := c.call(ctx, http.MethodDelete, balancerPath(id), nil, nil); err != nil {
		return err
	}
	return await(ctx, func() (bool, error) {
		_, err := c.getBalancer(ctx, id)
		return isNotFound(err), ignoreNotFound(err)
	})
}

func (c cloud) changeBalancer(ctx context.Context, id string, listeners []listener, targets []string) error {
	for i := range listeners {
		listeners[i].Protocol = strings.ToLower(listeners[i].Protocol)
	}
	instances := []target{}
	for _, id := range targets {
		instances = append(instances, target{id})
	}
	return c.call(ctx, http.MethodPatch, balancerPath(id), object{"listeners": listeners, "targets": instances}, nil)
}

type portConnections struct {
	Port        int   `json:"port"`
	Connections int64 `json:"connections"`
}

func (c cloud) countConnections(ctx context.Context, id string) ([]portConnections, error) {
	var stats struct{ Listeners []portConnections }
	err := c.call(ctx, http.MethodGet, balancerPath(id)+"/stats", nil, &stats)
	return append([]portConnections{}, stats.Listeners...), err
}
