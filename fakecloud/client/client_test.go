package client_test

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
)

func newClient(t *testing.T, handler http.HandlerFunc) (*client.Client, string) {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	token := tokenFile(t, "first\n")
	return mustNew(t, client.Config{URL: server.URL, TokenFile: token, UserAgent: "test/1"}), token
}

func tokenFile(t *testing.T, secret string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(file, []byte(secret), 0o600))
	return file
}

// caFile holds the certificate of a server, by which a client knows it.
func caFile(t *testing.T, of *httptest.Server) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "ca")
	block := &pem.Block{Type: "CERTIFICATE", Bytes: of.Certificate().Raw}
	require.NoError(t, os.WriteFile(file, pem.EncodeToMemory(block), 0o600))
	return file
}

func mustNew(t *testing.T, cfg client.Config) *client.Client {
	t.Helper()
	c := must.Do(client.New(cfg))(t)
	return c
}

func problem(w http.ResponseWriter, status int, code api.ProblemCode) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	project := "p-1"
	_ = json.NewEncoder(w).
		Encode(api.Problem{Status: status, Code: code, Detail: "said so", RequestID: "r1", Project: &project})
}

func answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v)
}

func TestOnlyReadsAreRetried(t *testing.T) {
	var calls atomic.Int32
	c, _ := newClient(t, func(w http.ResponseWriter, _ *http.Request) {
		calls.Add(1)
		problem(w, http.StatusServiceUnavailable, api.Internal)
	})
	ctx := t.Context()
	for name, tc := range map[string]struct {
		call func() error
		want int32
	}{
		"get":    {func() error { _, err := c.GetInstance(ctx, "i-1"); return err }, 3},
		"create": {func() error { _, err := c.CreateInstance(ctx, api.InstanceCreate{}); return err }, 1},
		"stop":   {func() error { _, err := c.StopInstance(ctx, "i-1"); return err }, 1},
		"delete": {func() error { _, err := c.DeleteLoadBalancer(ctx, "lb-1"); return err }, 1},
	} {
		calls.Store(0)
		assert.Error(t, tc.call(), name)
		assert.Equal(t, tc.want, calls.Load(), name)
	}
}

func TestRefusalsAreNotRetried(t *testing.T) {
	for _, status := range []int{400, 401, 403, 404, 409} {
		var calls atomic.Int32
		c, _ := newClient(t, func(w http.ResponseWriter, _ *http.Request) {
			calls.Add(1)
			problem(w, status, api.InvalidRequest)
		})
		_, err := c.GetInstance(t.Context(), "i-1")
		assert.ErrorContains(t, err, "said so (invalid-request, request r1)")
		assert.Equal(t, int32(1), calls.Load())
	}
}

func TestLongRetryAfterIsLeftToTheCaller(t *testing.T) {
	var calls atomic.Int32
	c, _ := newClient(t, func(w http.ResponseWriter, _ *http.Request) {
		calls.Add(1)
		w.Header().Set("Retry-After", "7")
		w.WriteHeader(http.StatusTooManyRequests)
	})
	_, err := c.GetInstance(t.Context(), "i-1")
	var refused *client.Error
	require.ErrorAs(t, err, &refused)
	assert.Equal(t, 7*time.Second, refused.RetryAfter)
	assert.Equal(t, int32(1), calls.Load())
}

// refusingTransport answers every call with 429, and remembers when it came.
type refusingTransport struct {
	retryAfter func() string
	calls      []time.Time
}

func (r *refusingTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	r.calls = append(r.calls, time.Now())
	w := httptest.NewRecorder()
	w.Header().Set("Retry-After", r.retryAfter())
	w.WriteHeader(http.StatusTooManyRequests)
	resp := w.Result()
	resp.Request = req
	return resp, nil
}

// The cloud's Retry-After is waited for between attempts, in either form that HTTP has for it. A wait that would
// outlast the caller's deadline is not begun: the caller has the cloud's answer at once.
func TestRetryAfterIsWaitedFor(t *testing.T) {
	token := tokenFile(t, "t")
	inSeconds := func() string { return "1" }
	asDate := func() string { return time.Now().Add(time.Second).UTC().Format(http.TimeFormat) }
	for name, tc := range map[string]struct {
		retryAfter func() string
		deadline   time.Duration
		calls      int
	}{
		"seconds":                      {inSeconds, time.Minute, 3},
		"a date":                       {asDate, time.Minute, 3},
		"no time for the next attempt": {inSeconds, 900 * time.Millisecond, 1},
		"no time for the third":        {inSeconds, 1900 * time.Millisecond, 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cloud := &refusingTransport{retryAfter: tc.retryAfter}
				c := mustNew(t, client.Config{
					URL: "http://cloud.test", TokenFile: token, UserAgent: "test/1",
					Wrap: func(http.RoundTripper) http.RoundTripper { return cloud },
				})
				start := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), tc.deadline)
				defer cancel()
				_, err := c.GetInstance(ctx, "i-1")
				var refused *client.Error
				require.ErrorAs(t, err, &refused)
				assert.Equal(t, http.StatusTooManyRequests, refused.Status)
				require.Len(t, cloud.calls, tc.calls)
				for i, at := range cloud.calls[1:] {
					assert.GreaterOrEqual(t, at.Sub(cloud.calls[i]), time.Second)
				}
				assert.Equal(t, cloud.calls[tc.calls-1].Sub(start), time.Since(start), "it waits for nothing at the end")
			})
		})
	}
}

// Only the cloud's own answer about a resource counts as not found.
func TestIsNotFound(t *testing.T) {
	c, _ := newClient(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/instances/ours":
			problem(w, http.StatusNotFound, api.NotFound)
		case "/v1/instances/old":
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(http.StatusNotFound)
			_ = json.NewEncoder(w).
				Encode(api.Problem{Status: http.StatusNotFound, Code: api.NotFound, Detail: "no such path"})
		case "/v1/instances/proxy":
			http.Error(w, "no backend", http.StatusNotFound)
		default:
			answer(w, map[string]any{"id": 42}) // Not what the API promises.
		}
	})
	_, err := c.GetInstance(t.Context(), "ours")
	assert.True(t, client.IsNotFound(err))
	assert.Equal(t, "p-1", client.ProjectOf(err))
	_, err = c.GetInstance(t.Context(), "old")
	require.ErrorContains(t, err, "no such path")
	assert.False(t, client.IsNotFound(err), "names no project")
	_, err = c.GetInstance(t.Context(), "proxy")
	require.ErrorContains(t, err, "no backend")
	assert.False(t, client.IsNotFound(err))
	_, err = c.GetInstance(t.Context(), "garbage")
	require.ErrorContains(t, err, "not what its API promises")
	assert.False(t, client.IsNotFound(err))
}

func instance(id string) api.Instance {
	return api.Instance{ID: id, Addresses: []api.Address{}, Tags: api.Tags{}, Identities: map[string]string{}}
}

func TestListReadsAllPages(t *testing.T) {
	var broken atomic.Bool
	c, _ := newClient(t, func(w http.ResponseWriter, r *http.Request) {
		assert.Equal(t, "500", r.URL.Query().Get("limit"))
		assert.Equal(t, []string{"a=b"}, r.URL.Query()["tag"])
		switch token := r.URL.Query().Get("pageToken"); {
		case token == "":
			next := "two"
			answer(w, api.InstanceList{Items: []api.Instance{instance("i-1")}, NextPageToken: &next})
		case broken.Load():
			problem(w, http.StatusForbidden, api.Unauthenticated)
		default:
			answer(w, api.InstanceList{Items: []api.Instance{instance("i-2")}})
		}
	})
	list, err := c.ListInstances(t.Context(), client.InstanceFilter{Tags: []string{"a=b"}})
	require.NoError(t, err)
	assert.Len(t, list, 2)
	broken.Store(true)
	list, err = c.ListInstances(t.Context(), client.InstanceFilter{Tags: []string{"a=b"}})
	require.Error(t, err)
	assert.Nil(t, list, "half a list is none")
}

func TestTokenIsReadForEachCall(t *testing.T) {
	var seen []string
	c, token := newClient(t, func(w http.ResponseWriter, r *http.Request) {
		seen = append(seen, r.Header.Get("Authorization"))
		assert.Equal(t, "test/1", r.UserAgent())
		answer(w, api.Project{DefaultTags: api.Tags{}})
	})
	_, err := c.Project(t.Context())
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(token, []byte("second"), 0o600))
	must.Do(c.Project(t.Context()))(t)
	assert.Equal(t, []string{"Bearer first", "Bearer second"}, seen)
}

// A stream that breaks is resumed after the last event; one that the cloud refuses is not.
func TestFollowResumes(t *testing.T) {
	var connections atomic.Int32
	c, _ := newClient(t, func(w http.ResponseWriter, r *http.Request) {
		n := connections.Add(1)
		if n == 3 {
			problem(w, http.StatusGone, api.EventsExpired)
			return
		}
		assert.Equal(t, fmt.Sprint((n-1)*2), r.URL.Query().Get("after"))
		w.Header().Set("Content-Type", "text/event-stream")
		for seq := int64(n)*2 - 1; seq <= int64(n)*2; seq++ {
			_, _ = fmt.Fprint(w, ": still here\n\n")
			sendEvent(w, seq)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var seen []int64
	err := c.Follow(ctx, client.FromOldest, func(ev api.Event) error { seen = append(seen, ev.Seq); return nil }, nil)
	assert.True(t, client.HasCode(err, api.EventsExpired), "%v", err)
	assert.Equal(t, []int64{1, 2, 3, 4}, seen)
}

func sendEvent(w io.Writer, seq int64) {
	data, _ := json.Marshal(api.Event{Seq: seq})
	_, _ = fmt.Fprintf(w, "id: %d\nevent: updated\ndata: %s\n\n", seq, data)
}

func TestNewChecksConfig(t *testing.T) {
	for _, url := range []string{"", "localhost:8470", "ftp://x", "http://"} {
		_, err := client.New(client.Config{URL: url, TokenFile: "x"})
		assert.ErrorContains(t, err, "want http://host:port", url)
	}
}

// With an empty ID, the path would be another one.
func TestEmptyIDsAreRefused(t *testing.T) {
	c, _ := newClient(t, func(_ http.ResponseWriter, r *http.Request) { t.Errorf("called %s %s", r.Method, r.URL) })
	ctx := t.Context()
	for name, call := range map[string]func() error{
		"get":    func() error { _, err := c.GetInstance(ctx, ""); return err },
		"post":   func() error { _, err := c.StartInstance(ctx, ""); return err },
		"patch":  func() error { _, err := c.UpdateLoadBalancer(ctx, "", api.LoadBalancerUpdate{}); return err },
		"stats":  func() error { _, err := c.LoadBalancerStats(ctx, ""); return err },
		"delete": func() error { return c.DeleteRoute(ctx, "") },
		"delete, with an answer": func() error {
			_, err := c.DeleteLoadBalancer(ctx, "")
			return err
		},
	} {
		assert.ErrorContains(t, call(), "no ID given", name)
	}
}

// A cloud that stops answering, before the stream begins or within it, is noticed. A cloud
// that sends heartbeats only is waited for.
func TestFollowNoticesSilence(t *testing.T) {
	const beats = 10
	var connections atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := connections.Add(1)
		if n == 1 {
			<-r.Context().Done()
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		flush := func() { _ = http.NewResponseController(w).Flush() }
		flush()
		if n >= 3 {
			beat := time.NewTicker(50 * time.Millisecond)
			defer beat.Stop()
			for range beats {
				<-beat.C
				_, _ = fmt.Fprint(w, ": still here\n\n")
				flush()
			}
			sendEvent(w, 1)
			flush()
		}
		<-r.Context().Done()
	}))
	t.Cleanup(server.Close)
	c := mustNew(t, client.Config{
		URL: server.URL, TokenFile: tokenFile(t, "first\n"), Silence: 400 * time.Millisecond,
	})
	var breaks []string
	enough := errors.New("enough")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	err := c.Follow(ctx, client.FromOldest, func(api.Event) error { return enough }, func(err error) {
		if err != nil {
			breaks = append(breaks, err.Error())
		}
	})
	require.ErrorIs(t, err, enough)
	require.GreaterOrEqual(t, len(breaks), 2)
	assert.Contains(t, breaks[0], "fallen silent")
	assert.Contains(t, breaks[1], "fallen silent")
}

func TestFollowResumesAfterThrottling(t *testing.T) {
	var connections atomic.Int32
	c, _ := newClient(t, func(w http.ResponseWriter, _ *http.Request) {
		if connections.Add(1) == 1 {
			w.Header().Set("Retry-After", "0.3")
			w.WriteHeader(http.StatusTooManyRequests)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		sendEvent(w, 1)
	})
	enough := errors.New("enough")
	start := time.Now()
	assert.ErrorIs(t, c.Follow(t.Context(), client.FromOldest, func(api.Event) error { return enough }, nil), enough)
	assert.GreaterOrEqual(t, time.Since(start), 300*time.Millisecond)
}

// With Direct, the proxy is not used.
func TestConfigDirect(t *testing.T) {
	shared := http.DefaultTransport.(*http.Transport)
	before := shared.Proxy
	t.Cleanup(func() { shared.Proxy = before })
	shared.Proxy = func(*http.Request) (*url.URL, error) { return nil, errors.New("through the proxy") }

	c, token := newClient(t, nil)
	require.ErrorContains(t, c.Ready(t.Context()), "through the proxy")

	cloud := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusOK)
	}))
	t.Cleanup(cloud.Close)
	cfg := client.Config{URL: cloud.URL, TokenFile: token, CAFile: caFile(t, cloud)}
	err := mustNew(t, cfg).Ready(t.Context())
	require.ErrorContains(t, err, "through the proxy", "a CA of one's own says nothing of the way")
	cfg.Direct = true
	require.NoError(t, mustNew(t, cfg).Ready(t.Context()))

	_, err = client.New(client.Config{URL: cloud.URL, TokenFile: token, Direct: true, Transport: shared})
	require.ErrorContains(t, err, "give one")
}

func TestConfigCAFile(t *testing.T) {
	cloud := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		answer(w, api.Project{Name: "p", DefaultTags: api.Tags{}})
	}))
	t.Cleanup(cloud.Close)
	cfg := client.Config{URL: cloud.URL, TokenFile: tokenFile(t, "secret")}
	_, err := mustNew(t, cfg).Project(t.Context())
	require.ErrorContains(t, err, "certificate", "the system does not know it")

	cfg.CAFile = caFile(t, cloud)
	p, err := mustNew(t, cfg).Project(t.Context())
	require.NoError(t, err)
	assert.Equal(t, "p", p.Name)

	cfg.CAFile = filepath.Join(t.TempDir(), "none")
	_, err = client.New(cfg)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.NoError(t, os.WriteFile(cfg.CAFile, []byte("nothing"), 0o600))
	_, err = client.New(cfg)
	require.ErrorContains(t, err, "no PEM certificate")
	cfg.Transport = http.DefaultTransport
	_, err = client.New(cfg)
	require.ErrorContains(t, err, "give one")
}

// Follow from the newest event resumes, after a break, from the number that the cloud has
// sent. The stream counts as open once that number has come.
func TestFollowFromTheNewest(t *testing.T) {
	var asked []string
	c, _ := newClient(t, func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.Query().Encode())
		w.Header().Set("Content-Type", "text/event-stream")
		switch len(asked) {
		case 1: // Breaks before the number is known.
			_, _ = fmt.Fprint(w, ": connected\n\n")
		case 2:
			_, _ = fmt.Fprint(w, ": connected\n\nid: 7\n\n")
		default:
			sendEvent(w, 8)
		}
	})
	enough := errors.New("enough")
	var states []bool
	err := c.Follow(t.Context(), client.FromNewest, func(api.Event) error { return enough }, func(err error) {
		states = append(states, err == nil)
	})
	require.ErrorIs(t, err, enough)
	assert.Equal(t, []string{"follow=true&newest=true", "follow=true&newest=true", "after=7&follow=true"}, asked)
	assert.Equal(t, []bool{false, true, false, true}, states)
}

func TestNewestEventMissing(t *testing.T) {
	c, _ := newClient(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = fmt.Fprint(w, ": connected\n\n")
	})
	_, err := c.NewestEvent(t.Context())
	assert.ErrorContains(t, err, "did not say")
}

func TestErrorNamesFieldOnce(t *testing.T) {
	e := &client.Error{Problem: api.Problem{Detail: "name: is too long", Fields: &[]api.ProblemField{
		{Field: "name", Message: "is too long"}, {Field: "cidr", Message: "is taken"},
	}}}
	assert.EqualError(t, e, "name: is too long; cidr: is taken")
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestSnapshotTimeout(t *testing.T) {
	var bounds []time.Duration
	c := mustNew(t, client.Config{
		URL: "http://127.0.0.1:1", TokenFile: tokenFile(t, "secret"), Timeout: time.Minute,
		Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
			end, ok := r.Context().Deadline()
			assert.True(t, ok)
			bounds = append(bounds, time.Until(end))
			return nil, errors.New("seen")
		}),
	})
	_, err := c.CreateSnapshot(t.Context(), "a")
	require.ErrorContains(t, err, "seen")
	require.ErrorContains(t, c.DeleteSnapshot(t.Context(), "a"), "seen")
	require.Len(t, bounds, 2)
	assert.Greater(t, bounds[0], 30*time.Minute)
	assert.LessOrEqual(t, bounds[1], time.Minute)
}

func TestConfigWrap(t *testing.T) {
	answers := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		answer(w, api.Project{Name: "p", DefaultTags: api.Tags{}})
	})
	plain, secure := httptest.NewServer(answers), httptest.NewTLSServer(answers)
	t.Cleanup(plain.Close)
	t.Cleanup(secure.Close)
	for name, cfg := range map[string]client.Config{
		"the default transport":         {URL: plain.URL},
		"a CA of its own and no proxy":  {URL: secure.URL, CAFile: caFile(t, secure), Direct: true},
		"a transport given by somebody": {URL: plain.URL, Transport: &http.Transport{DisableKeepAlives: true}},
	} {
		t.Run(name, func(t *testing.T) {
			calls := 0
			cfg.TokenFile = tokenFile(t, "secret")
			cfg.Wrap = func(next http.RoundTripper) http.RoundTripper {
				return roundTripper(func(r *http.Request) (*http.Response, error) {
					calls++
					assert.Equal(t, "Bearer secret", r.Header.Get("Authorization"))
					return next.RoundTrip(r)
				})
			}
			p := must.Do(mustNew(t, cfg).Project(t.Context()))(t)
			assert.Equal(t, "p", p.Name)
			assert.Equal(t, 1, calls)
		})
	}
}
