package fakecloud_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/cloudtest"
)

const (
	benchClients   = 64
	benchInstances = 10_000
	benchReaders   = 200
	// readersPerToken is less than the event streams that a token may have open.
	readersPerToken = 50
	listPageSize    = 100
	// changeInterval spaces the changes that the event readers are told of: 500 a second.
	changeInterval = 2 * time.Millisecond
)

// benchCloud is a cloud whose data are on disk, as users have it, with authentication, validation, audit and a rate
// limit that nobody reaches.
type benchCloud struct {
	*cloudtest.Cloud
	token     string
	http      *http.Client
	instances []string
	created   atomic.Int64 // Names are unique.
}

// BenchmarkAPI measures the cloud's API over loopback. The clients share the processors with the cloud.
func BenchmarkAPI(b *testing.B) {
	file := filepath.Join(b.TempDir(), "cloud.db")
	c := &benchCloud{
		Cloud: cloudtest.Start(b, cloudtest.RateLimit(1_000_000, 1_000_000), cloudtest.WithoutTraffic(),
			func(cfg *fakecloud.Config) {
				cfg.Data = file
				cfg.Cloud.InstanceCIDR = netip.MustParsePrefix("10.128.0.0/12") // Nothing listens there.
			}),
		http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: benchClients}},
	}
	secret, err := os.ReadFile(c.TokenFile)
	require.NoError(b, err)
	c.token = string(secret)
	unlimited := api.QuotaLimit(1_000_000)
	_, err = c.UpdateProjectQuotas(b.Context(), c.Project, api.QuotasUpdate{Instances: &unlimited})
	require.NoError(b, err)
	var ids sync.Map
	c.shareAmongClients(b, benchInstances, func() error {
		made, err := c.createInstance()
		ids.Store(made, true)
		return err
	})
	ids.Range(func(id, _ any) bool { c.instances = append(c.instances, id.(string)); return true })
	b.Run("get", func(b *testing.B) { c.measure(b, c.getInstance) })
	b.Run("list", func(b *testing.B) { c.measure(b, c.listInstances) })
	b.Run("create", func(b *testing.B) {
		c.measure(b, func() error { _, err := c.createInstance(); return err })
	})
	b.Run("events", c.measureEvents)
}

// shareAmongClients calls do n times, by as many clients at the same time as there are, and returns how long each
// call took, sorted.
func (c *benchCloud) shareAmongClients(b *testing.B, n int, do func() error) (took []time.Duration) {
	took = make([]time.Duration, n)
	var next atomic.Int64
	var clients sync.WaitGroup
	for range benchClients {
		clients.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				begin := time.Now()
				if err := do(); err != nil {
					b.Error(err)
					return
				}
				took[i] = time.Since(begin)
			}
		})
	}
	clients.Wait()
	if b.Failed() {
		b.FailNow()
	}
	slices.Sort(took)
	return took
}

func (c *benchCloud) measure(b *testing.B, do func() error) {
	b.ResetTimer()
	took := c.shareAmongClients(b, b.N, do)
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "calls/s")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
}

// call makes one call, and fails unless the answer has the status and contains want.
func (c *benchCloud) call(method, path, body string, status int, want string) ([]byte, error) {
	req, err := http.NewRequest(method, c.URL+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+c.token)
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(resp.Body)
	if err == nil && (resp.StatusCode != status || !bytes.Contains(answer, []byte(want))) {
		err = fmt.Errorf("%s %s: %s without %q: %.300s", method, path, resp.Status, want, answer)
	}
	return answer, err
}

func (c *benchCloud) getInstance() error {
	id := c.instances[rand.IntN(len(c.instances))]
	_, err := c.call(http.MethodGet, "/v1/instances/"+id, "", http.StatusOK, id)
	return err
}

func (c *benchCloud) listInstances() error {
	page, err := c.call(http.MethodGet, fmt.Sprintf("/v1/instances?limit=%d", listPageSize), "", http.StatusOK, "")
	if n := bytes.Count(page, []byte(`"id":"i-`)); err == nil && n != listPageSize {
		err = fmt.Errorf("a page of %d instances, not %d", n, listPageSize)
	}
	return err
}

func (c *benchCloud) createInstance() (id string, err error) {
	body := fmt.Sprintf(`{"name":"node-%d","type":"small","tags":{"cluster":"bench"}}`, c.created.Add(1))
	made, err := c.call(http.MethodPost, "/v1/instances", body, http.StatusCreated, `"id":"i-`)
	if err != nil {
		return "", err
	}
	_, rest, _ := bytes.Cut(made, []byte(`"id":"`))
	made, _, _ = bytes.Cut(rest, []byte(`"`))
	return string(made), nil
}

// measureEvents has many readers of the event stream, while changes happen at a steady rate. Each reader must get
// each change once. A change of a route is one event; a change of anything else may be followed by others.
func (c *benchCloud) measureEvents(b *testing.B) {
	route, err := c.CreateRoute(b.Context(), api.RouteCreate{
		Name: fmt.Sprintf("route-%d", c.created.Add(1)), Destination: "10.77.0.0/24", InstanceID: c.instances[0],
	})
	require.NoError(b, err)
	defer func() { require.NoError(b, c.DeleteRoute(b.Context(), route.ID)) }()
	from, err := c.NewestEvent(b.Context())
	require.NoError(b, err)
	var readers sync.WaitGroup
	var file string
	latest := make([]time.Duration, benchReaders)
	for i := range benchReaders {
		if i%readersPerToken == 0 {
			file = c.NewToken(fmt.Sprintf("reader-%d", c.created.Add(1)), api.RoleViewer)
		}
		stream := c.openEvents(b, file, from)
		readers.Go(func() {
			defer func() { _ = stream.Close() }()
			late, err := readEvents(stream, from, b.N)
			if err != nil {
				b.Error(err)
			}
			latest[i] = late
		})
	}
	b.ResetTimer()
	ticks := time.NewTicker(changeInterval)
	defer ticks.Stop()
	for i := range b.N {
		<-ticks.C
		body := fmt.Sprintf(`{"tags":{"change":"%d"}}`, i)
		if _, err := c.call(http.MethodPatch, "/v1/routes/"+route.ID, body, http.StatusOK, ""); err != nil {
			b.Error(err)
			break
		}
	}
	readers.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "changes/s")
	b.ReportMetric(float64(slices.Max(latest).Microseconds())/1000, "latest-ms")
}

func (c *benchCloud) openEvents(b *testing.B, tokenFile string, from int64) io.ReadCloser {
	token, err := os.ReadFile(tokenFile)
	require.NoError(b, err)
	url := fmt.Sprintf("%s/v1/events?after=%d", c.URL, from)
	req, err := http.NewRequestWithContext(b.Context(), http.MethodGet, url, nil)
	require.NoError(b, err)
	req.Header.Set("Authorization", "Bearer "+string(token))
	resp, err := c.http.Do(req)
	require.NoError(b, err)
	require.Equal(b, http.StatusOK, resp.StatusCode)
	return resp.Body
}

// readEvents reads n events, whose numbers follow from, and returns how late the latest was. It takes the time out
// of the JSON by hand: decoding 100,000 events a second would be more work than the cloud's.
func readEvents(stream io.Reader, from int64, n int) (latest time.Duration, err error) {
	lines := bufio.NewScanner(stream)
	for next := from + 1; next <= from+int64(n) && lines.Scan(); {
		_, data, ok := bytes.Cut(lines.Bytes(), []byte("data: "))
		if !ok {
			continue // Its number, a heartbeat, or the end of an event.
		}
		if want := fmt.Appendf(nil, `"seq":%d,`, next); !bytes.Contains(data, want) {
			return latest, fmt.Errorf("event %d is missing, doubled or out of order: %.200s", next, data)
		}
		_, rest, _ := bytes.Cut(data, []byte(`"time":"`))
		at, _, _ := bytes.Cut(rest, []byte(`"`))
		changed, err := time.Parse(time.RFC3339Nano, string(at))
		if err != nil {
			return latest, err
		}
		latest = max(latest, time.Since(changed))
		next++
	}
	return latest, lines.Err()
}
