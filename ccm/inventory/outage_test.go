package inventory_test

// What an outage of the cloud costs in calls, and how soon its end is noticed. The client is
// the genuine one, so that its own retries are counted too.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/ccm/inventory"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

// outageCloud is a cloud without resources behind a client. While it is down it answers as
// refuse does.
type outageCloud struct {
	mu     sync.Mutex
	calls  map[string]int // by path
	down   bool
	refuse func() (*http.Response, error)
}

func (c *outageCloud) RoundTrip(req *http.Request) (*http.Response, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls[req.URL.Path]++
	if c.down {
		resp, err := c.refuse()
		if err == nil {
			resp.Request = req
		}
		return resp, err
	}
	if req.URL.Path != "/v1/events" {
		return answer(http.StatusOK, "application/json", `{"items":[]}`), nil
	}
	body, stream := io.Pipe()
	go func() {
		_, err := io.WriteString(stream, ": connected\n\nid: 7\n\n")
		<-req.Context().Done()
		_ = stream.CloseWithError(errors.Join(err, req.Context().Err()))
	}()
	resp := answer(http.StatusOK, "text/event-stream", "")
	resp.Body = body
	return resp, nil
}

func answer(status int, contentType, body string) *http.Response {
	return &http.Response{
		StatusCode: status, Header: http.Header{"Content-Type": {contentType}},
		Body: io.NopCloser(strings.NewReader(body)),
	}
}

func (c *outageCloud) setDown(down bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.down = down
}

// takeCalls are the calls since it was asked last, by path, and how many they are.
func (c *outageCloud) takeCalls() (byPath map[string]int, all int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	byPath, c.calls = c.calls, map[string]int{}
	for _, n := range byPath {
		all += n
	}
	return byPath, all
}

// duringOutage runs test with an inventory of a cloud that is down, and asks it what a CCM
// with a hundred waiting Nodes, with Services and with routes does.
func duringOutage(
	t *testing.T,
	refuse func() (*http.Response, error),
	test func(t *testing.T, cloud *outageCloud, v *inventory.Inventory),
) {
	t.Helper()
	token := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(token, []byte("secret"), 0o600))
	synctest.Test(t, func(t *testing.T) {
		cloud := &outageCloud{calls: map[string]int{}, down: true, refuse: refuse}
		c, err := client.New(client.Config{
			URL: "http://cloud", TokenFile: token, Transport: cloud, Silence: 24 * time.Hour,
		})
		require.NoError(t, err)
		v := inventory.New(c, inventory.Options{
			ClusterFilters: clusterFilters, InCluster: isInCluster, ServiceTag: serviceTag,
		})
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { v.Run(ctx) })
		ask := func(period time.Duration, question func()) {
			running.Go(func() {
				for ctx.Err() == nil {
					question()
					select {
					case <-ctx.Done():
					case <-time.After(period):
					}
				}
			})
		}
		for worker := range 5 { // As many as the node watch has.
			ask(2*time.Second, func() {
				for n := range 20 {
					_, _ = v.InstancesNamed(ctx, fmt.Sprint("node-", worker, "-", n))
				}
			})
		}
		ask(10*time.Second, func() { _, _ = v.Routes(ctx) })
		ask(time.Second, func() { v.LoadBalancers() })
		test(t, cloud, v)
		stop()
		running.Wait()
	})
}

// outages are the ways in which a cloud is down.
var outages = map[string]func() (*http.Response, error){
	"connections are refused": func() (*http.Response, error) { return nil, errors.New("connection refused") },
	"each answer is 503": func() (*http.Response, error) {
		return answer(http.StatusServiceUnavailable, "text/plain", "down"), nil
	},
}

// maxCallsAMinute is what an outage may cost: the stream is tried every few seconds, each of the
// three kinds of resources every ten.
const maxCallsAMinute = 40

func TestCallsInAnOutage(t *testing.T) {
	for name, refuse := range outages {
		t.Run(name, func(t *testing.T) {
			duringOutage(t, refuse, func(t *testing.T, cloud *outageCloud, v *inventory.Inventory) {
				time.Sleep(10 * time.Minute)
				calls, all := cloud.takeCalls()
				t.Log("calls in ten minutes:", all, calls)
				assert.LessOrEqual(t, all, 10*maxCallsAMinute)

				cloud.setDown(false)
				down := time.Now()
				for {
					if _, err := v.Routes(t.Context()); err == nil {
						break
					}
					time.Sleep(10 * time.Millisecond)
				}
				t.Log("the end was noticed after", time.Since(down))
				assert.Less(t, time.Since(down), 7*time.Second)
			})
		})
	}
}

// Where no stream tells of the outage's end, lists do.
func TestAnOutageEndsWithoutAStream(t *testing.T) {
	inBubble(t, nil, func(r *harness) {
		r.cloud.listInstances = func() ([]api.Instance, error) { return nil, errors.New("503") }
		for range 600 {
			_, err := r.Instance(r.t.Context(), "i-1")
			require.ErrorContains(t, err, "503")
			time.Sleep(time.Second)
		}
		t.Log("lists in ten minutes:", r.cloud.lists.Load())
		assert.LessOrEqual(t, r.cloud.lists.Load(), int32(100))
		r.cloud.setInstances(instance("i-1", 1, api.InstanceRunning))
		time.Sleep(13 * time.Second)
		assert.EqualValues(t, 1, r.instanceVersion("i-1"))
	})
}

// Whoever waits for the end of an outage is told of it once, by the stream that opens or by the
// first list, whichever comes first.
func TestTheEndOfAnOutageIsReported(t *testing.T) {
	inBubble(t, nil, func(r *harness) {
		r.runWithOpenStream()
		assert.Zero(t, r.takeRecoveries(), "the first stream ends no outage")
		r.cloud.breakStream()
		assert.Zero(t, r.takeRecoveries())
		r.cloud.openStream()
		assert.Equal(t, 1, r.takeRecoveries(), "the stream is open")
		r.cloud.breakStream()
		r.cloud.listInstances = func() ([]api.Instance, error) { return nil, errors.New("503") }
		time.Sleep(time.Minute)
		_, err := r.Instance(r.t.Context(), "i-1")
		require.Error(t, err)
		assert.Zero(t, r.takeRecoveries())
		r.cloud.setInstances(instance("i-1", 1, api.InstanceRunning))
		time.Sleep(time.Minute)
		assert.EqualValues(t, 1, r.instanceVersion("i-1"))
		assert.Equal(t, 1, r.takeRecoveries(), "a list was made")
		r.cloud.openStream()
		assert.Zero(t, r.takeRecoveries(), "nobody waits any more")
	})
}

// A cloud that says when to come back is not asked before.
func TestRetryAfterIsHonoured(t *testing.T) {
	refuse := func() (*http.Response, error) {
		resp := answer(http.StatusTooManyRequests, "text/plain", "too many")
		resp.Header.Set("Retry-After", "60")
		return resp, nil
	}
	duringOutage(t, refuse, func(t *testing.T, cloud *outageCloud, _ *inventory.Inventory) {
		time.Sleep(10*time.Minute - time.Second)
		calls, _ := cloud.takeCalls()
		t.Log("calls in ten minutes:", calls)
		for path, n := range calls {
			assert.LessOrEqual(t, n, 10, path)
		}
	})
}
