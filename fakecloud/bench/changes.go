package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/bench/machine"
)

const (
	// fillTimeout bounds filling the cloud, and waiting until it has settled.
	fillTimeout = 10 * time.Minute
	// listenPort is every balancer's; their addresses differ.
	listenPort = 28080
)

func (b *bench) get(path string) []byte { return b.request(http.MethodGet, path, nil) }

func (b *bench) request(method, path string, body []byte) []byte {
	extra := "Authorization: Bearer " + b.cloud.Token + "\r\n"
	if body != nil {
		extra += "Content-Type: application/json\r\n"
	}
	return request(method, path, b.cloud.Address, extra, body)
}

// getOne asks for an instance drawn anew each time.
func (b *bench) getOne(int, int64) call {
	id := b.instances[rand.IntN(len(b.instances))]
	return call{request: b.get("/v1/instances/" + id), want: http.StatusOK, check: func(body []byte) error {
		if !bytes.Contains(body, []byte(id)) {
			return fmt.Errorf("asked for %s, got %.200s", id, body)
		}
		return nil
	}}
}

// listPage is how many instances a list has.
const listPage = 100

// listHundred asks for a page drawn anew each time.
func (b *bench) listHundred(int, int64) call {
	want := min(listPage, len(b.instances))
	path := fmt.Sprintf("/v1/instances?limit=%d", listPage)
	if len(b.pages) > 0 {
		path += "&pageToken=" + b.pages[rand.IntN(len(b.pages))]
	}
	return call{request: b.get(path), want: http.StatusOK, check: func(body []byte) error {
		if n := bytes.Count(body, []byte(`"id":"i-`)); n != want {
			return fmt.Errorf("a page of %d instances, not %d", n, want)
		}
		return nil
	}}
}

// ids collects those of what is created.
type ids struct {
	mu  sync.Mutex
	all []string
}

func (l *ids) add(body []byte) error {
	var made struct{ ID string }
	if err := json.Unmarshal(body, &made); err != nil || made.ID == "" {
		return fmt.Errorf("no ID in %.200s", body)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, made.ID)
	return nil
}

// createInstance creates one as a lab would.
func (b *bench) createInstance(made *ids, prefix string) func(int, int64) call {
	return func(_ int, n int64) call {
		body := fmt.Appendf(nil, `{"name":"%s-%d","type":"small","tags":{"cluster":"bench","role":"node"}}`, prefix, n)
		return call{request: b.request(http.MethodPost, "/v1/instances", body), want: http.StatusCreated, check: made.add}
	}
}

func (b *bench) createBalancer(made *ids) func(int, int64) call {
	return func(_ int, n int64) call {
		body := fmt.Appendf(nil, `{"name":"lb-%d","listeners":[{"protocol":"tcp","port":%d,"targetPort":30080}],"targets":[{"instanceId":%q}],"tags":{"cluster":"bench"}}`,
			n, listenPort, b.instances[n%int64(len(b.instances))])
		return call{request: b.request(http.MethodPost, "/v1/load-balancers", body), want: http.StatusCreated, check: made.add}
	}
}

// all makes so many calls and fails if one of them does.
func (b *bench) all(ctx context.Context, n int, next func(int, int64) call) error {
	r, err := load{Address: b.cloud.Address, Clients: b.size.Clients, Period: fillTimeout, Max: int64(n), Next: next}.run(ctx)
	switch {
	case err != nil:
		return err
	case r.Failed > 0:
		return fmt.Errorf("%d calls failed: %s", r.Failed, r.Failure)
	case r.Calls < int64(n):
		return fmt.Errorf("only %d of %d calls within %s", r.Calls, n, fillTimeout)
	}
	return nil
}

// raiseQuotas lets the project have what the rows create beyond what is stored.
func (b *bench) raiseQuotas(ctx context.Context) error {
	var project ids
	if _, err := once(ctx, b.cloud.Address, call{request: b.get("/v1/project"), want: http.StatusOK, check: project.add}); err != nil {
		return err
	}
	body := fmt.Appendf(nil, `{"instances":%d,"loadBalancers":%d}`, int64(b.size.Instances)+b.size.Creates, b.size.Balancers)
	_, err := once(ctx, b.cloud.Address, call{request: b.request(http.MethodPatch, "/v1/projects/"+project.all[0]+"/quotas", body), want: http.StatusOK})
	return err
}

// fill makes the instances and balancers that are there from now on.
func (b *bench) fill(ctx context.Context) error {
	if b.quotas {
		if err := b.raiseQuotas(ctx); err != nil {
			return fmt.Errorf("raising quotas: %w", err)
		}
	}
	var instances, balancers ids
	b.note("creating %d instances", b.size.Instances)
	if err := b.all(ctx, b.size.Instances, b.createInstance(&instances, "node")); err != nil {
		return fmt.Errorf("creating instances: %w", err)
	}
	b.instances = instances.all
	b.note("creating %d load balancers", b.size.Balancers)
	if err := b.all(ctx, b.size.Balancers, b.createBalancer(&balancers)); err != nil {
		return fmt.Errorf("creating load balancers: %w", err)
	}
	if err := b.settle(ctx); err != nil {
		return err
	}
	err := b.eachPage(ctx, "/v1/instances", listPage, func(p page) { b.pages = append(b.pages, p.NextPageToken) })
	b.pages = b.pages[:max(0, len(b.instances)/listPage-1)] // After the first page.
	return err
}

// page is as much as is read of a list.
type page struct {
	Items []struct {
		State string
	}
	NextPageToken string
}

func (b *bench) page(ctx context.Context, path string) (p page, err error) {
	_, err = once(ctx, b.cloud.Address, call{request: b.get(path), want: http.StatusOK, check: func(body []byte) error { return json.Unmarshal(body, &p) }})
	return p, err
}

// eachPage visits the pages of a list, of limit items each.
func (b *bench) eachPage(ctx context.Context, list string, limit int, visit func(page)) error {
	first := fmt.Sprintf("%s?limit=%d", list, limit)
	for path := first; ; {
		p, err := b.page(ctx, path)
		if err != nil {
			return err
		}
		visit(p)
		if p.NextPageToken == "" {
			return nil
		}
		path = first + "&pageToken=" + p.NextPageToken
	}
}

// settle waits until nothing is under way any more, so that no row pays for
// what the one before it began.
func (b *bench) settle(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, fillTimeout)
	defer cancel()
	for {
		var under int
		for _, path := range []string{
			"/v1/instances?limit=1&state=pending&state=stopping&state=terminating&state=terminated", // Kept for no time.
			"/v1/load-balancers?limit=1&state=provisioning&state=updating&state=deleting",
		} {
			p, err := b.page(ctx, path)
			if err != nil {
				return err
			}
			under += len(p.Items)
		}
		if under == 0 {
			return nil
		}
		if err := machine.Sleep(ctx, 20*time.Millisecond); err != nil {
			return errors.Join(errors.New("the cloud does not settle"), err)
		}
	}
}

// stored counts what a list has, by state.
func (b *bench) stored(ctx context.Context, list string) (map[string]int, error) {
	states := map[string]int{}
	return states, b.eachPage(ctx, list, 500, func(p page) {
		for _, item := range p.Items {
			states[item.State]++
		}
	})
}

// terminate takes away what a row made beyond what is to be stored.
func (b *bench) terminate(ctx context.Context, made []string) error {
	err := b.all(ctx, len(made), func(_ int, n int64) call {
		return call{request: b.request(http.MethodPost, "/v1/instances/"+made[n]+"/terminate", nil), want: http.StatusAccepted}
	})
	if err != nil {
		return fmt.Errorf("terminating instances: %w", err)
	}
	return b.settle(ctx)
}

// changers bounds the changes under way at once, and the routes there are.
const changers = 32

// change makes changes at a fixed rate: each is one call and one event. Routes
// are taken because every other change of a resource is followed by another by
// itself.
func (b *bench) change(ctx context.Context) (watched, error) {
	var next, acknowledged atomic.Int64
	errs := make([]error, changers)
	begin := time.Now()
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() { errs[i] = b.changer(ctx, i, begin, &next, &acknowledged) })
	}
	wg.Wait()
	// The last call of each may be beyond the period; none begins there.
	elapsed := time.Since(begin)
	return watched{Changes: acknowledged.Load(), ChangesPerSec: float64(acknowledged.Load()) / elapsed.Seconds()}, errors.Join(errs...)
}

// changer creates and deletes a route of its own, each time it is due: the nth
// change of all is due n/rate after the beginning.
func (b *bench) changer(ctx context.Context, i int, begin time.Time, next, acknowledged *atomic.Int64) error {
	c, err := dial(ctx, b.cloud.Address)
	if err != nil {
		return err
	}
	defer c.close()
	var route ids
	create := call{request: b.request(http.MethodPost, "/v1/routes", fmt.Appendf(nil,
		`{"name":"route-%d","destination":"10.77.%d.0/24","instanceId":%q}`, i, i, b.instances[i%len(b.instances)])),
		want: http.StatusCreated, check: route.add}
	for ctx.Err() == nil {
		due := begin.Add(time.Duration(next.Add(1)-1) * time.Second / time.Duration(b.size.ChangesPerSec))
		over := due.Sub(begin) >= b.size.Period || time.Since(begin) >= b.size.Period
		if over && len(route.all) == 0 {
			return nil
		}
		if !over {
			time.Sleep(time.Until(due))
		}
		now := create
		if len(route.all) > 0 {
			now = call{request: b.request(http.MethodDelete, "/v1/routes/"+route.all[0], nil), want: http.StatusNoContent}
			route.all = nil
		}
		if _, err := c.ask(now); err != nil {
			return err
		}
		acknowledged.Add(1)
	}
	return ctx.Err()
}
