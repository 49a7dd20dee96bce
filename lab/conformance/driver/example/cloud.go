package main

// A cloud behind REST: its API, as much of it as the driver needs.

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

// client calls fakecloud.
type client struct{ url, token string }

func (c client) apiURL() string { return c.url }

// call sends a request; into is what its answer is read into, unless nil.
func (c client) call(ctx context.Context, method, path string, body, into any) error {
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

func (c client) project(ctx context.Context) (id string, err error) {
	var p struct{ ID string }
	err = c.call(ctx, http.MethodGet, "/v1/project", nil, &p)
	return p.ID, err
}

func (c client) createInstance(ctx context.Context, name string, tags map[string]string) (instance, error) {
	var made apiInstance
	err := c.call(ctx, http.MethodPost, "/v1/instances", object{"name": name, "tags": tags}, &made)
	if err != nil {
		return instance{}, err
	}
	made, err = c.awaitState(ctx, made.ID, "running")
	return made.toProtocol(), err
}

func (c client) awaitState(ctx context.Context, id, state string) (i apiInstance, err error) {
	return i, await(ctx, func() (bool, error) {
		err := c.call(ctx, http.MethodGet, "/v1/instances/"+url.PathEscape(id), nil, &i)
		return i.State == state, err
	})
}

// changeInstance stops, starts or terminates an instance.
func (c client) changeInstance(ctx context.Context, id, action string) error {
	if err := c.call(ctx, http.MethodPost, "/v1/instances/"+url.PathEscape(id)+"/"+action, nil, nil); err != nil {
		return err
	}
	_, err := c.awaitState(ctx, id, stateAfter[action])
	return err
}

func balancerPath(id string) string { return "/v1/load-balancers/" + url.PathEscape(id) }

func (c client) getBalancer(ctx context.Context, id string) (balancer, error) {
	var b apiBalancer
	err := c.call(ctx, http.MethodGet, balancerPath(id), nil, &b)
	return b.toProtocol(), err
}

// listBalancers lists those of Services, page by page. The project has one cluster, whose name may change.
func (c client) listBalancers(ctx context.Context) (all []balancer, err error) {
	query := url.Values{"tag": {"kubernetes-service-uid"}}
	for {
		var page struct {
			Items         []apiBalancer
			NextPageToken string
		}
		if err := c.call(ctx, http.MethodGet, "/v1/load-balancers?"+query.Encode(), nil, &page); err != nil {
			return nil, err
		}
		all = append(all, toProtocol(page.Items)...)
		if page.NextPageToken == "" {
			return all, nil
		}
		query.Set("pageToken", page.NextPageToken)
	}
}

func (c client) deleteBalancer(ctx context.Context, id string) error {
	if err := c.call(ctx, http.MethodDelete, balancerPath(id), nil, nil); err != nil {
		return err
	}
	return await(ctx, func() (bool, error) {
		_, err := c.getBalancer(ctx, id)
		return errors.Is(err, errNotFound), ignoreNotFound(err)
	})
}

func (c client) changeBalancer(ctx context.Context, id string, listeners []listener, targets []string) error {
	change := object{"listeners": listeners, "targets": toTargets(targets)}
	return c.call(ctx, http.MethodPatch, balancerPath(id), change, nil)
}

func (c client) countConnections(ctx context.Context, id string) ([]portConnections, error) {
	var stats struct{ Listeners []portConnections }
	err := c.call(ctx, http.MethodGet, balancerPath(id)+"/stats", nil, &stats)
	return append([]portConnections{}, stats.Listeners...), err
}
