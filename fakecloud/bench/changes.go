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
	// fillTimeout bounds filling the cloud, and waiting until nothing is in transition.
	fillTimeout = 10 * time.Minute
	// listenPort is the port of every balancer, each at an address of its own.
	listenPort = 28080
)

func (b *bench) getRequest(path string) []byte { return b.authorizedRequest(http.MethodGet, path, nil) }

func (b *bench) authorizedRequest(method, path string, body []byte) []byte {
	extra := "Authorization: Bearer " + b.cloud.Token + "\r\n"
	if body != nil {
		extra += "Content-Type: application/json\r\n"
	}
	return httpRequest(method, path, b.cloud.Address, extra, body)
}

// getOne is a call that reads a random instance.
func (b *bench) getOne(int, int64) call {
	id := b.instances[rand.IntN(len(b.instances))]
	return call{request: b.getRequest("/v1/instances/" + id), want: http.StatusOK, check: func(body []byte) error {
		if !bytes.Contains(body, []byte(id)) {
			return fmt.Errorf("asked for %s, got %.200s", id, body)
		}
		return nil
	}}
}

// listPageSize is how many instances a list returns.
const listPageSize = 100

// listHundred is a call that reads a random page of the list of instances.
func (b *bench) listHundred(int, int64) call {
	want := min(listPageSize, len(b.instances))
	path := fmt.Sprintf("/v1/instances?limit=%d", listPageSize)
	if len(b.pages) > 0 {
		path += "&pageToken=" + b.pages[rand.IntN(len(b.pages))]
	}
	return call{request: b.getRequest(path), want: http.StatusOK, check: func(body []byte) error {
		if n := bytes.Count(body, []byte(`"id":"i-`)); n != want {
			return fmt.Errorf("a page of %d instances, not %d", n, want)
		}
		return nil
	}}
}

// createdIDs collects the IDs of created resources.
type createdIDs struct {
	mu  sync.Mutex
	all []string
}

func (l *createdIDs) addFromBody(body []byte) error {
	var made struct{ ID string }
	if err := json.Unmarshal(body, &made); err != nil || made.ID == "" {
		return fmt.Errorf("no ID in %.200s", body)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, made.ID)
	return nil
}

// createInstance returns calls that create instances like those of a lab.
func (b *bench) createInstance(made *createdIDs, prefix string) func(int, int64) call {
	return func(_ int, n int64) call {
		body := fmt.Appendf(nil, `{"name":"%s-%d","type":"small","tags":{"cluster":"bench","role":"node"}}`, prefix, n)
		return call{
			request: b.authorizedRequest(http.MethodPost, "/v1/instances", body), want: http.StatusCreated,
			check: made.addFromBody,
		}
	}
}

func (b *bench) createBalancer(made *createdIDs) func(int, int64) call {
	return func(_ int, n int64) call {
		body := fmt.Appendf(nil, `{"name":"lb-%d","listeners":[{"protocol":"tcp","port":%d,"targetPort":30080}],"targets":[{"instanceId":%q}],"tags":{"cluster":"bench"}}`,
			n, listenPort, b.instances[n%int64(len(b.instances))])
		return call{
			request: b.authorizedRequest(http.MethodPost, "/v1/load-balancers", body), want: http.StatusCreated,
			check: made.addFromBody,
		}
	}
}

// makeCalls makes n calls, and fails if one of them does.
func (b *bench) makeCalls(ctx context.Context, n int, next func(int, int64) call) error {
	r, err := load{
		Address: b.cloud.Address, Clients: b.size.Clients, Period: fillTimeout, Max: int64(n), Next: next,
	}.run(ctx)
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

// raiseQuotas raises the quotas so that the rows can create what they need.
func (b *bench) raiseQuotas(ctx context.Context) error {
	var project createdIDs
	if _, err := callOnce(
		ctx, b.cloud.Address,
		call{request: b.getRequest("/v1/project"), want: http.StatusOK, check: project.addFromBody},
	); err != nil {
		return err
	}
	body := fmt.Appendf(
		nil, `{"instances":%d,"loadBalancers":%d}`, int64(b.size.Instances)+b.size.Creates, b.size.Balancers,
	)
	_, err := callOnce(ctx, b.cloud.Address, call{
		request: b.authorizedRequest(http.MethodPatch, "/v1/projects/"+project.all[0]+"/quotas", body),
		want:    http.StatusOK,
	})
	return err
}

// fillCloud creates the instances and balancers that stay for the whole run.
func (b *bench) fillCloud(ctx context.Context) error {
	if b.quotas {
		if err := b.raiseQuotas(ctx); err != nil {
			return fmt.Errorf("raising quotas: %w", err)
		}
	}
	var instances, balancers createdIDs
	b.logProgress("creating %d instances", b.size.Instances)
	if err := b.makeCalls(ctx, b.size.Instances, b.createInstance(&instances, "node")); err != nil {
		return fmt.Errorf("creating instances: %w", err)
	}
	b.instances = instances.all
	b.logProgress("creating %d load balancers", b.size.Balancers)
	if err := b.makeCalls(ctx, b.size.Balancers, b.createBalancer(&balancers)); err != nil {
		return fmt.Errorf("creating load balancers: %w", err)
	}
	if err := b.awaitSettled(ctx); err != nil {
		return err
	}
	err := b.eachPage(ctx, "/v1/instances", listPageSize, func(p page) { b.pages = append(b.pages, p.NextPageToken) })
	b.pages = b.pages[:max(0, len(b.instances)/listPageSize-1)] // After the first page.
	return err
}

// page is a page of a list, with the fields that are needed here.
type page struct {
	Items []struct {
		State string
	}
	NextPageToken string
}

func (b *bench) readPage(ctx context.Context, path string) (p page, err error) {
	_, err = callOnce(ctx, b.cloud.Address, call{
		request: b.getRequest(path), want: http.StatusOK,
		check: func(body []byte) error { return json.Unmarshal(body, &p) },
	})
	return p, err
}

// eachPage calls visit for each page of a list, of limit items each.
func (b *bench) eachPage(ctx context.Context, list string, limit int, visit func(page)) error {
	first := fmt.Sprintf("%s?limit=%d", list, limit)
	for path := first; ; {
		p, err := b.readPage(ctx, path)
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

// awaitSettled waits until no resource is in transition, so that work begun by one row does
// not slow down the next.
func (b *bench) awaitSettled(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, fillTimeout)
	defer cancel()
	for {
		var under int
		for _, path := range []string{
			// With --retention 0s, terminated instances do not stay.
			"/v1/instances?limit=1&state=pending&state=stopping&state=terminating&state=terminated",
			"/v1/load-balancers?limit=1&state=provisioning&state=updating&state=deleting",
		} {
			p, err := b.readPage(ctx, path)
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

// countByState counts the resources of a list by state.
func (b *bench) countByState(ctx context.Context, list string) (map[string]int, error) {
	states := map[string]int{}
	return states, b.eachPage(ctx, list, 500, func(p page) {
		for _, item := range p.Items {
			states[item.State]++
		}
	})
}

// terminateInstances terminates the instances that a row created beyond those stored.
func (b *bench) terminateInstances(ctx context.Context, made []string) error {
	err := b.makeCalls(ctx, len(made), func(_ int, n int64) call {
		return call{
			request: b.authorizedRequest(http.MethodPost, "/v1/instances/"+made[n]+"/terminate", nil),
			want:    http.StatusAccepted,
		}
	})
	if err != nil {
		return fmt.Errorf("terminating instances: %w", err)
	}
	return b.awaitSettled(ctx)
}

// changerCount is how many changers make changes at the same time, each with one route.
const changerCount = 32

// makeChanges makes changes at a fixed rate, of one call and one event each. It changes
// routes, because a change of any other resource is followed by further events.
func (b *bench) makeChanges(ctx context.Context) (watchResult, error) {
	var next, acknowledged atomic.Int64
	errs := make([]error, changerCount)
	begin := time.Now()
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() { errs[i] = b.runChanger(ctx, i, begin, &next, &acknowledged) })
	}
	wg.Wait()
	// The last call of a changer may end after the period, but none begins after it.
	elapsed := time.Since(begin)
	return watchResult{
		Changes: acknowledged.Load(), ChangesPerSec: float64(acknowledged.Load()) / elapsed.Seconds(),
	}, errors.Join(errs...)
}

// runChanger creates and deletes a route of its own, whenever a change is due. The nth
// change of all changers is due n/rate after begin.
func (b *bench) runChanger(ctx context.Context, i int, begin time.Time, next, acknowledged *atomic.Int64) error {
	c, err := dialConn(ctx, b.cloud.Address)
	if err != nil {
		return err
	}
	defer c.close()
	var route createdIDs
	create := call{request: b.authorizedRequest(http.MethodPost, "/v1/routes", fmt.Appendf(nil,
		`{"name":"route-%d","destination":"10.77.%d.0/24","instanceId":%q}`, i, i, b.instances[i%len(b.instances)])),
		want: http.StatusCreated, check: route.addFromBody}
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
			now = call{
				request: b.authorizedRequest(http.MethodDelete, "/v1/routes/"+route.all[0], nil),
				want:    http.StatusNoContent,
			}
			route.all = nil
		}
		if _, err := c.makeCall(now); err != nil {
			return err
		}
		acknowledged.Add(1)
	}
	return ctx.Err()
}
