package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"path"
	"time"

	vegeta "github.com/tsenart/vegeta/v12/lib"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/bench/harness"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

const (
	// fillTimeout bounds filling the cloud, and waiting until nothing is in transition.
	fillTimeout = 10 * time.Minute
	// listenPort is the port of every balancer, each at an address of its own.
	listenPort = 28080
)

// newTarget is a call of the cloud. A nil body is none.
func (b *bench) newTarget(method, path string, body []byte) vegeta.Target {
	header := http.Header{"Authorization": {"Bearer " + b.cloud.Token}}
	if body != nil {
		header.Set("Content-Type", "application/json")
	}
	return vegeta.Target{Method: method, URL: "http://" + b.cloud.Address + path, Header: header, Body: body}
}

// getOne is a load that reads random instances.
func (b *bench) getOne() load {
	return load{
		Want: http.StatusOK,
		Next: func(int) vegeta.Target {
			return b.newTarget(http.MethodGet, "/v1/instances/"+b.instances[rand.IntN(len(b.instances))], nil)
		},
		Check: func(r *vegeta.Result) error {
			if !bytes.Contains(r.Body, []byte(path.Base(r.URL))) {
				return fmt.Errorf("asked for %s, got %.200s", r.URL, r.Body)
			}
			return nil
		},
	}
}

// listPageSize is how many instances a list returns.
const listPageSize = 100

// listPage is the path of a page of the list of instances; "" is the token of the first.
func listPage(token string) string {
	page := fmt.Sprintf("/v1/instances?limit=%d", listPageSize)
	if token != "" {
		page += "&pageToken=" + token
	}
	return page
}

// listHundred is a load that reads random pages of the list of instances.
func (b *bench) listHundred() load {
	want := min(listPageSize, len(b.instances))
	return load{
		Want: http.StatusOK,
		Next: func(int) vegeta.Target {
			token := ""
			if len(b.pages) > 0 {
				token = b.pages[rand.IntN(len(b.pages))]
			}
			return b.newTarget(http.MethodGet, listPage(token), nil)
		},
		Check: func(r *vegeta.Result) error {
			if n := bytes.Count(r.Body, []byte(`"id":"i-`)); n != want {
				return fmt.Errorf("a page of %d instances, not %d", n, want)
			}
			return nil
		},
	}
}

// createAt is a load of up to limit creates. It appends the IDs of what it has created to made.
func (b *bench) createAt(path string, limit int, made *[]string, body func(n int) []byte) load {
	return load{
		Clients: b.size.Clients, Max: limit, Want: http.StatusCreated,
		Next: func(n int) vegeta.Target { return b.newTarget(http.MethodPost, path, body(n)) },
		Check: func(r *vegeta.Result) error {
			var created struct{ ID string }
			if err := json.Unmarshal(r.Body, &created); err != nil || created.ID == "" {
				return fmt.Errorf("no ID in %.200s", r.Body)
			}
			*made = append(*made, created.ID)
			return nil
		},
	}
}

// createInstances is a load that creates instances like those of a lab.
func (b *bench) createInstances(limit int, made *[]string, prefix string) load {
	return b.createAt("/v1/instances", limit, made, func(n int) []byte {
		return fmt.Appendf(nil, `{"name":"%s-%d","type":"small","tags":{"cluster":"bench","role":"node"}}`, prefix, n)
	})
}

func (b *bench) createBalancers(limit int) load {
	var made []string
	return b.createAt("/v1/load-balancers", limit, &made, func(n int) []byte {
		return fmt.Appendf(nil, `{"name":"lb-%d","listeners":[{"protocol":"tcp","port":%d,"targetPort":30080}],`+
			`"targets":[{"instanceId":%q}],"tags":{"cluster":"bench"}}`, n, listenPort, b.instances[n%len(b.instances)])
	})
}

// fillCloud creates the instances and balancers that stay for the whole run. It raises the
// quotas so that the rows can create what they need.
func (b *bench) fillCloud(ctx context.Context) error {
	project, err := b.client.Project(ctx)
	if err != nil {
		return err
	}
	if _, err := b.client.UpdateProjectQuotas(ctx, project.ID, api.QuotasUpdate{
		Instances:     new(api.QuotaLimit(b.size.Instances + b.size.Creates)),
		LoadBalancers: new(api.QuotaLimit(b.size.Balancers)),
	}); err != nil {
		return fmt.Errorf("raising quotas: %w", err)
	}
	harness.LogProgress("creating %d instances …", b.size.Instances)
	if err := b.createInstances(b.size.Instances, &b.instances, "node").runAll(ctx); err != nil {
		return fmt.Errorf("creating instances: %w", err)
	}
	harness.LogProgress("creating %d load balancers …", b.size.Balancers)
	if err := b.createBalancers(b.size.Balancers).runAll(ctx); err != nil {
		return fmt.Errorf("creating load balancers: %w", err)
	}
	if err := b.awaitSettled(ctx); err != nil {
		return err
	}
	return b.readPageTokens(ctx)
}

// readPageTokens reads the list of instances page by page, which the client hides.
func (b *bench) readPageTokens(ctx context.Context) error {
	var token string
	next := load{
		Clients: 1, Max: 1, Want: http.StatusOK,
		Next: func(int) vegeta.Target { return b.newTarget(http.MethodGet, listPage(token), nil) },
		Check: func(r *vegeta.Result) error {
			var page api.InstanceList
			err := json.Unmarshal(r.Body, &page)
			token = ""
			if page.NextPageToken != nil {
				token = *page.NextPageToken
			}
			return err
		},
	}
	for range max(0, len(b.instances)/listPageSize-1) { // After the first page.
		if err := next.runAll(ctx); err != nil {
			return err
		}
		b.pages = append(b.pages, token)
	}
	return nil
}

// awaitSettled waits until no resource is in transition, so that work begun by one row does
// not slow down the next.
func (b *bench) awaitSettled(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, fillTimeout)
	defer cancel()
	for {
		// With --retention 0s, terminated instances do not stay.
		instances, err := b.client.ListInstances(ctx, client.InstanceFilter{States: []api.InstanceState{
			api.InstancePending, api.InstanceStopping, api.InstanceTerminating, api.InstanceTerminated,
		}})
		if err != nil {
			return err
		}
		balancers, err := b.client.ListLoadBalancers(ctx, client.LoadBalancerFilter{States: []api.LoadBalancerState{
			api.LoadBalancerProvisioning, api.LoadBalancerUpdating, api.LoadBalancerDeleting,
		}})
		if err != nil || len(instances)+len(balancers) == 0 {
			return err
		}
		if err := harness.Sleep(ctx, 20*time.Millisecond); err != nil {
			return errors.Join(errors.New("the cloud does not settle"), err)
		}
	}
}

// countByState counts the instances and balancers by state.
func (b *bench) countByState(ctx context.Context) (map[api.InstanceState]int, map[api.LoadBalancerState]int, error) {
	instances, err := b.client.ListInstances(ctx, client.InstanceFilter{})
	if err != nil {
		return nil, nil, err
	}
	balancers, err := b.client.ListLoadBalancers(ctx, client.LoadBalancerFilter{})
	instanceStates, balancerStates := map[api.InstanceState]int{}, map[api.LoadBalancerState]int{}
	for _, i := range instances {
		instanceStates[i.State]++
	}
	for _, lb := range balancers {
		balancerStates[lb.State]++
	}
	return instanceStates, balancerStates, err
}

// terminateInstances terminates the instances that a row created beyond those stored.
func (b *bench) terminateInstances(ctx context.Context, made []string) error {
	err := load{
		Clients: b.size.Clients, Max: len(made), Want: http.StatusAccepted,
		Next: func(n int) vegeta.Target {
			return b.newTarget(http.MethodPost, "/v1/instances/"+made[n]+"/terminate", nil)
		},
	}.runAll(ctx)
	if err != nil {
		return fmt.Errorf("terminating instances: %w", err)
	}
	return b.awaitSettled(ctx)
}

const (
	// changedRoutes is how many routes are changed in turn.
	changedRoutes = 32
	// maxConcurrentCreates is how many of them are created at the same time.
	maxConcurrentCreates = 8
)

func (b *bench) createRoutes(ctx context.Context) ([]string, error) {
	ids := make([]string, changedRoutes)
	return ids, harness.ForAll(ctx, len(ids), maxConcurrentCreates, func(ctx context.Context, i int) error {
		r, err := b.client.CreateRoute(ctx, api.RouteCreate{
			Name: fmt.Sprintf("route-%d", i), Destination: fmt.Sprintf("10.77.%d.0/24", i),
			InstanceID: b.instances[i%len(b.instances)],
		})
		if err == nil {
			ids[i] = r.ID
		}
		return err
	})
}

// changeRoutes is a load that makes changes at a fixed rate, of one call and one event each. It
// changes routes, because a change of any other resource may be followed by further events.
func (b *bench) changeRoutes(routes []string) load {
	return load{
		Clients: changedRoutes, Rate: b.size.ChangesPerSec, Period: b.size.Period + callTimeout, Want: http.StatusOK,
		Max: int(b.size.Period.Seconds() * float64(b.size.ChangesPerSec)),
		Next: func(n int) vegeta.Target {
			body := fmt.Appendf(nil, `{"tags":{"change":"%d"}}`, n)
			return b.newTarget(http.MethodPatch, "/v1/routes/"+routes[n%len(routes)], body)
		},
	}
}

// restartCloud kills the cloud and starts it again. It returns the time from that start until
// the cloud answers that it is ready.
func (b *bench) restartCloud(ctx context.Context) (time.Duration, error) {
	b.cloud.Kill()
	begin := time.Now()
	if err := b.cloud.Restart(); err != nil {
		return 0, err
	}
	err := b.cloud.Await(ctx, 2*time.Millisecond, func() bool { return b.client.Ready(ctx) == nil })
	return time.Since(begin), err
}
