package faultproxy

import (
	"compress/gzip"
	"context"
	"encoding/json"
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/lab/conformance"
	"github.com/ccmlab/ccmlab/lab/conformance/driver/protocol"
)

// toyCloud has servers, below /nebula, and compresses its answers for those who take that.
type toyCloud struct {
	mu      sync.Mutex
	names   []string
	streams chan struct{} // closed to end them
}

func (c *toyCloud) add(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.names = append(c.names, name)
}

func (c *toyCloud) list() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.names)
}

func serverNamed(name string) map[string]any {
	return map[string]any{"id": name, "status": map[string]any{"power": "on", "since": 1234567890123456789}}
}

func (c *toyCloud) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	answer := func(v any) {
		w.Header().Set("Content-Type", "application/json")
		if !strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
			_ = json.NewEncoder(w).Encode(v)
			return
		}
		w.Header().Set("Content-Encoding", "gzip")
		packed := gzip.NewWriter(w)
		_ = json.NewEncoder(packed).Encode(v)
		_ = packed.Close()
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /nebula/v1/servers", func(http.ResponseWriter, *http.Request) {
		servers := []any{}
		for _, name := range c.list() {
			servers = append(servers, serverNamed(name))
		}
		answer(map[string]any{"servers": servers, "meta": map[string]any{"next": "page 2", "total": len(servers)}})
	})
	mux.HandleFunc("GET /nebula/v1/servers/{id}", func(w http.ResponseWriter, r *http.Request) {
		if !slices.Contains(c.list(), r.PathValue("id")) {
			http.Error(w, `{"error":"none"}`, http.StatusNotFound)
			return
		}
		answer(map[string]any{"server": serverNamed(r.PathValue("id"))})
	})
	mux.HandleFunc("POST /nebula/v1/servers", func(w http.ResponseWriter, r *http.Request) {
		name, _ := io.ReadAll(r.Body)
		c.add(string(name))
		w.WriteHeader(http.StatusCreated)
	})
	mux.HandleFunc("GET /nebula/v1/stream", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "first\n")
		_ = http.NewResponseController(w).Flush()
		select {
		case <-c.streams:
		case <-r.Context().Done():
		}
	})
	mux.ServeHTTP(w, r)
}

func pointer(s string) *string { return &s }

var toyRules = []protocol.ProxyRule{
	{
		Method: "GET", Path: "/v1/servers", Thing: conformance.Instances, List: pointer("/servers"),
		NextPage: []string{"/meta/next"}, StateFields: []string{"/status/power"},
	},
	{
		Method: "GET", Path: "/v1/servers/{id}", Thing: conformance.Instances, Item: "/server",
		StateFields: []string{"/status/power"}, Fields: map[string][]string{"zone": {"/status/since", "/rack"}},
	},
	{Path: "/v1/servers/{rest...}", Thing: conformance.Instances},
	{Path: "/v1/networks", Thing: conformance.Routes},
}

// openToy is a proxy in front of a toy cloud that has servers a and b.
func openToy(t *testing.T) (*Proxy, *toyCloud) {
	cloud := &toyCloud{names: []string{"a", "b"}, streams: make(chan struct{})}
	server := httptest.NewServer(cloud)
	t.Cleanup(server.Close)
	t.Cleanup(func() { close(cloud.streams) })
	p, err := Open("127.0.0.1", protocol.Proxy{
		Upstream: server.URL + "/nebula", Rules: toyRules,
		Answers: map[string]protocol.ProxyAnswer{
			"404":       {Body: `{"project":"another"}`},
			"not-found": {Status: http.StatusGone, Headers: map[string]string{"X-Project": "ours"}},
		},
	})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, p.Close()) })
	return p, cloud
}

// responseHead is a response without its body.
type responseHead struct {
	StatusCode    int
	Header        http.Header
	ContentLength int64
}

// request asks the proxy, over a connection of its own.
func request(
	t *testing.T, ctx context.Context, p *Proxy, method, path, body string,
) (head responseHead, content string, err error) {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	req, err := http.NewRequestWithContext(ctx, method, p.URL()+path, strings.NewReader(body))
	require.NoError(t, err)
	resp, err := client.Do(req)
	if err != nil {
		return head, "", err
	}
	defer func() { _ = resp.Body.Close() }()
	read, err := io.ReadAll(resp.Body)
	return responseHead{resp.StatusCode, resp.Header, resp.ContentLength}, string(read), err
}

func read(t *testing.T, p *Proxy, path string) (status int, body string) {
	resp, body, err := request(t, t.Context(), p, http.MethodGet, path, "")
	require.NoError(t, err)
	return resp.StatusCode, body
}

func inject(t *testing.T, p *Proxy, kind conformance.FaultKind, on ...conformance.Thing) conformance.Injection {
	made, err := p.InjectFault(t.Context(), conformance.Fault{Kind: kind, On: on})
	require.NoError(t, err, kind)
	t.Cleanup(func() { assert.NoError(t, made.Lift(context.Background())) })
	return made
}

func hits(t *testing.T, i conformance.Injection) int {
	n, err := i.Hits(t.Context())
	require.NoError(t, err)
	return n
}

const bothServers = `{"meta":{"next":"page 2","total":2},"servers":[` +
	`{"id":"a","status":{"power":"on","since":1234567890123456789}},` +
	`{"id":"b","status":{"power":"on","since":1234567890123456789}}]}` + "\n"

func TestWithoutFaultsNothingChanges(t *testing.T) {
	p, cloud := openToy(t)
	assert.True(t, strings.HasSuffix(p.URL(), "/nebula"), p.URL())
	status, body := read(t, p, "/v1/servers")
	assert.Equal(t, http.StatusOK, status)
	assert.Equal(t, bothServers, body)
	_, _, err := request(t, t.Context(), p, http.MethodPost, "/v1/servers", "c")
	require.NoError(t, err)
	assert.Equal(t, []string{"a", "b", "c"}, cloud.list())
	status, _ = read(t, p, "/v1/servers/none")
	assert.Equal(t, http.StatusNotFound, status)
}

// A stream of events comes through as it is written.
func TestStreamsArePassedOn(t *testing.T) {
	p, _ := openToy(t)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, p.URL()+"/v1/stream", http.NoBody)
	require.NoError(t, err)
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	line := make([]byte, len("first\n"))
	_, err = io.ReadFull(resp.Body, line)
	require.NoError(t, err)
	assert.Equal(t, "first\n", string(line))
}

func TestRefusals(t *testing.T) {
	p, _ := openToy(t)
	for kind, want := range map[conformance.FaultKind]struct {
		status int
		body   string
	}{
		conformance.FaultUnauthorized:    {http.StatusUnauthorized, "Unauthorized"},
		conformance.FaultForbidden:       {http.StatusForbidden, "Forbidden"},
		conformance.FaultThrottled:       {http.StatusTooManyRequests, "Too Many Requests"},
		conformance.FaultServerError:     {http.StatusInternalServerError, "Internal Server Error"},
		conformance.FaultUnavailable:     {http.StatusServiceUnavailable, "Service Unavailable"},
		conformance.FaultForeignNotFound: {http.StatusNotFound, `{"project":"another"}`},
	} {
		f := inject(t, p, kind, conformance.Instances)
		status, body := read(t, p, "/v1/servers/a")
		assert.Equal(t, want.status, status, kind)
		assert.Contains(t, body, want.body, kind)
		_, _ = read(t, p, "/v1/networks")
		_, _ = read(t, p, "/v1/elsewhere")
		assert.Equal(t, 1, hits(t, f), "%s meets calls about instances alone", kind)
		require.NoError(t, f.Lift(t.Context()))
		status, _ = read(t, p, "/v1/servers/a")
		assert.Equal(t, http.StatusOK, status, kind)
	}
}

func TestFaultOnAllCalls(t *testing.T) {
	p, _ := openToy(t)
	f := inject(t, p, conformance.FaultUnavailable)
	for _, path := range []string{"/v1/servers", "/v1/elsewhere"} {
		status, _ := read(t, p, path)
		assert.Equal(t, http.StatusServiceUnavailable, status, path)
	}
	assert.Equal(t, 2, hits(t, f))
}

// The first fault that fits a call is the one that it meets.
func TestFirstFaultCounts(t *testing.T) {
	p, _ := openToy(t)
	first, second := inject(t, p, conformance.FaultLost), inject(t, p, conformance.FaultUnavailable)
	status, _ := read(t, p, "/v1/servers")
	assert.Equal(t, http.StatusServiceUnavailable, status, "a read is not lost")
	assert.Equal(t, 0, hits(t, first))
	assert.Equal(t, 1, hits(t, second))
}

func TestDataLoss(t *testing.T) {
	p, _ := openToy(t)
	f := inject(t, p, conformance.FaultNotFound, conformance.Instances)
	status, body := read(t, p, "/v1/servers")
	assert.Equal(t, http.StatusOK, status)
	assert.JSONEq(t, `{"servers":[],"meta":{"total":2}}`, body)
	assert.Zero(t, hits(t, f), "a list is no hit")
	resp, _, err := request(t, t.Context(), p, http.MethodGet, "/v1/servers/a", "")
	require.NoError(t, err)
	assert.Equal(t, http.StatusGone, resp.StatusCode)
	assert.Equal(t, "ours", resp.Header.Get("X-Project"))
	assert.Equal(t, 1, hits(t, f))
	_, err = p.InjectFault(t.Context(), conformance.Fault{Kind: conformance.FaultNotFound})
	assert.ErrorContains(t, err, "which things")
}

func TestReset(t *testing.T) {
	p, _ := openToy(t)
	f := inject(t, p, conformance.FaultReset)
	_, _, err := request(t, t.Context(), p, http.MethodGet, "/v1/servers", "")
	require.ErrorIs(t, err, syscall.ECONNRESET)
	assert.Equal(t, 1, hits(t, f))
}

func TestRefusedConnections(t *testing.T) {
	p, _ := openToy(t)
	f := inject(t, p, conformance.FaultRefused)
	_, _, err := request(t, t.Context(), p, http.MethodGet, "/v1/servers", "")
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	require.NoError(t, f.Lift(t.Context()))
	status, _ := read(t, p, "/v1/servers")
	assert.Equal(t, http.StatusOK, status)
}

func TestGarbage(t *testing.T) {
	p, _ := openToy(t)
	inject(t, p, conformance.FaultGarbage)
	status, body := read(t, p, "/v1/servers")
	assert.Equal(t, http.StatusOK, status)
	assert.Contains(t, body, "<html>")
}

// awaitHits waits for calls to have met a fault.
func awaitHits(t *testing.T, i conformance.Injection, want int) {
	require.Eventually(t, func() bool { return hits(t, i) >= want }, time.Minute, time.Millisecond)
}

// A call that hangs ends when its caller gives up, and by a broken connection when the fault is lifted.
func TestHang(t *testing.T) {
	p, _ := openToy(t)
	f := inject(t, p, conformance.FaultTimeout)
	impatient, giveUp := context.WithCancel(t.Context())
	answered := make(chan error, 2)
	for _, ctx := range []context.Context{impatient, t.Context()} {
		go func() {
			_, _, err := request(t, ctx, p, http.MethodGet, "/v1/servers", "")
			answered <- err
		}()
	}
	awaitHits(t, f, 2)
	giveUp()
	require.ErrorIs(t, <-answered, context.Canceled)
	require.NoError(t, f.Lift(t.Context()))
	require.ErrorIs(t, <-answered, syscall.ECONNRESET)
}

// What is slow is answered when its time is over, or when the fault is lifted.
func TestSlow(t *testing.T) {
	p, _ := openToy(t)
	p.slowDelay = time.Millisecond
	f := inject(t, p, conformance.FaultSlow)
	_, body := read(t, p, "/v1/servers")
	assert.Equal(t, bothServers, body)

	p.slowDelay = 24 * time.Hour
	answered := make(chan string)
	go func() {
		_, body, _ := request(t, t.Context(), p, http.MethodGet, "/v1/servers", "")
		answered <- body
	}()
	awaitHits(t, f, 2)
	require.NoError(t, f.Lift(t.Context()))
	assert.Equal(t, bothServers, <-answered)
}

// A change whose answer is lost is carried out, even if its caller has gone.
func TestLost(t *testing.T) {
	p, cloud := openToy(t)
	f := inject(t, p, conformance.FaultLost)
	status, _ := read(t, p, "/v1/servers")
	assert.Equal(t, http.StatusOK, status, "reads are answered")
	ctx, giveUp := context.WithCancel(t.Context())
	answered := make(chan error)
	go func() {
		_, _, err := request(t, ctx, p, http.MethodPost, "/v1/servers", "c")
		answered <- err
	}()
	awaitHits(t, f, 1)
	require.Eventually(t, func() bool { return slices.Contains(cloud.list(), "c") }, time.Minute, time.Millisecond)
	giveUp()
	require.ErrorIs(t, <-answered, context.Canceled)
}

// Only changes are refused with 409 and 412, and what else is to meet writes alone.
func TestRefusedChanges(t *testing.T) {
	for kind, status := range map[conformance.FaultKind]int{
		conformance.FaultConflict:     http.StatusConflict,
		conformance.FaultPrecondition: http.StatusPreconditionFailed,
		conformance.FaultServerError:  http.StatusInternalServerError,
	} {
		p, cloud := openToy(t)
		f, err := p.InjectFault(t.Context(), conformance.Fault{
			Kind: kind, On: []conformance.Thing{conformance.Instances}, Writes: kind == conformance.FaultServerError,
		})
		require.NoError(t, err)
		read, _ := read(t, p, "/v1/servers")
		assert.Equal(t, http.StatusOK, read, kind)
		resp, _, err := request(t, t.Context(), p, http.MethodPost, "/v1/servers", "c")
		require.NoError(t, err)
		assert.Equal(t, status, resp.StatusCode)
		assert.NotContains(t, cloud.list(), "c")
		assert.Equal(t, 1, hits(t, f), kind)
	}
}

func TestPartialAndEmptyLists(t *testing.T) {
	for kind, want := range map[conformance.FaultKind]string{
		conformance.FaultEmptyList: `{"servers":[],"meta":{"total":2}}`,
		conformance.FaultPartialList: `{"servers":[{"id":"a","status":{"power":"on","since":1234567890123456789}}],
			"meta":{"total":2}}`,
	} {
		p, _ := openToy(t)
		f := inject(t, p, kind, conformance.Instances)
		resp, body, err := request(t, t.Context(), p, http.MethodGet, "/v1/servers", "")
		require.NoError(t, err)
		assert.JSONEq(t, want, body, kind)
		assert.Contains(t, body+"1234567890123456789", "1234567890123456789", "numbers keep their digits")
		assert.Equal(t, int64(len(body)), resp.ContentLength)
		_, _ = read(t, p, "/v1/servers/a")
		assert.Equal(t, 1, hits(t, f), "one thing is no list")
	}
}

func TestMissingField(t *testing.T) {
	p, _ := openToy(t)
	f := inject(t, p, conformance.FaultMissingField, conformance.Instances)
	_, body := read(t, p, "/v1/servers")
	assert.Equal(t, `{"meta":{"next":"page 2","total":2},"servers":[{"id":"a","status":{"since":1234567890123456789}},`+
		`{"id":"b","status":{"since":1234567890123456789}}]}`, body)
	_, body = read(t, p, "/v1/servers/a")
	assert.JSONEq(t, `{"server":{"id":"a","status":{"since":1234567890123456789}}}`, body)
	assert.Equal(t, 2, hits(t, f))
	status, _ := read(t, p, "/v1/servers/none")
	assert.Equal(t, http.StatusNotFound, status, "what is no success stays as it is")
}

// A driver names groups of fields; what an answer does not have cannot be left out.
func TestMissingGroupOfFields(t *testing.T) {
	p, _ := openToy(t)
	f := inject(t, p, conformance.FaultMissingInstanceZone, conformance.Instances)
	_, body := read(t, p, "/v1/servers")
	assert.Equal(t, bothServers, body, "its rule says nothing of zones")
	assert.Zero(t, hits(t, f))
	_, body = read(t, p, "/v1/servers/a")
	assert.JSONEq(t, `{"server":{"id":"a","status":{"power":"on"}}}`, body)
	assert.Equal(t, 1, hits(t, f))
	assert.Equal(t, []conformance.FaultKind{conformance.FaultMissingField, conformance.FaultMissingInstanceZone},
		p.EditingKinds(2))

	wrong := inject(t, p, conformance.FaultMissingField, conformance.Instances)
	require.NoError(t, f.Lift(t.Context()))
	p.rules[1].StateFields = []string{"/state"}
	_, _ = read(t, p, "/v1/servers/a")
	_, err := wrong.Hits(t.Context())
	require.EqualError(t, err, "fault missing-field was not made: the answer to GET /nebula/v1/servers/a: "+
		"it has nothing of what is to be left out")
	assert.True(t, IsUnchanged(err))
	_, _ = read(t, p, "/v1/servers")
	assert.Equal(t, 1, hits(t, wrong), "another answer has it")
}

// But for Retry-After, a refusal is the cloud's own.
func TestRetryAfter(t *testing.T) {
	p, _ := openToy(t)
	p.answers["429"] = protocol.ProxyAnswer{Body: "slowly", Headers: map[string]string{"Retry-After": "99"}}
	for kind, status := range map[conformance.FaultKind]int{
		conformance.FaultThrottledFor:   http.StatusTooManyRequests,
		conformance.FaultUnavailableFor: http.StatusServiceUnavailable,
	} {
		f := inject(t, p, kind)
		resp, body, err := request(t, t.Context(), p, http.MethodGet, "/v1/servers", "")
		require.NoError(t, err)
		assert.Equal(t, status, resp.StatusCode)
		assert.Equal(t, "6", resp.Header.Get("Retry-After"))
		assert.Equal(t, status == http.StatusTooManyRequests, body == "slowly", body)
		require.NoError(t, f.Lift(t.Context()))
	}
	assert.Equal(t, "99", p.answers["429"].Headers["Retry-After"])
}

// What is read stays as it was first read under the fault; another question has an answer of its own.
func TestStale(t *testing.T) {
	p, cloud := openToy(t)
	f := inject(t, p, conformance.FaultStale)
	_, before := read(t, p, "/v1/servers")
	assert.Equal(t, bothServers, before)
	_, _, err := request(t, t.Context(), p, http.MethodPost, "/v1/servers", "c")
	require.NoError(t, err)
	assert.Contains(t, cloud.list(), "c", "changes are made")
	_, after := read(t, p, "/v1/servers")
	assert.Equal(t, before, after)
	_, other := read(t, p, "/v1/servers?page=2")
	assert.Contains(t, other, `"id":"c"`)
	assert.Equal(t, 3, hits(t, f))
	require.NoError(t, f.Lift(t.Context()))
	_, now := read(t, p, "/v1/servers")
	assert.Contains(t, now, `"id":"c"`)
}

// A fault that cannot be made, since the answer is not as the rule says, does not pass for one that was.
func TestFaultThatCannotBeMade(t *testing.T) {
	p, _ := openToy(t)
	p.rules[0].List = pointer("/machines")
	f := inject(t, p, conformance.FaultEmptyList)
	_, body := read(t, p, "/v1/servers")
	assert.Equal(t, bothServers, body)
	_, err := f.Hits(t.Context())
	assert.EqualError(
		t, err, `fault empty-list was not made: the answer to GET /nebula/v1/servers: it has nothing at "/machines"`)
}

func TestCallsAreCounted(t *testing.T) {
	p, _ := openToy(t)
	began := time.Now()
	_, _ = read(t, p, "/v1/servers")
	_, _ = read(t, p, "/v1/servers/a%2Fb")
	_, _ = read(t, p, "/v1/account")
	_, _, err := request(t, t.Context(), p, http.MethodPost, "/v1/servers", "c")
	require.NoError(t, err)
	inject(t, p, conformance.FaultReset)
	_, _, err = request(t, t.Context(), p, http.MethodDelete, "/v1/servers/a", "")
	require.Error(t, err)

	counted, err := p.CountCalls(t.Context())
	require.NoError(t, err)
	assert.Equal(t, conformance.Calls{
		Count: conformance.Count{Reads: 3, Writes: 2},
		Of:    map[conformance.Thing]conformance.Count{conformance.Instances: {Reads: 2, Writes: 2}},
	}, counted)

	var calls []conformance.Call
	require.Eventually(t, func() bool {
		calls, err = p.CallsSince(t.Context(), began)
		return err == nil && len(calls) == 5
	}, time.Minute, time.Millisecond)
	said := []string{}
	for _, c := range calls {
		assert.False(t, c.Answered.Before(c.Began))
		said = append(said, strings.Join([]string{c.Operation, c.Resource, c.Answer}, "; "))
	}
	assert.Equal(t, []string{
		"GET /v1/servers; ; 200", "GET /v1/servers/{id}; a/b; 404", "GET /nebula/v1/account; ; 404",
		"POST /v1/servers/{rest...}; ; 201", "DELETE /v1/servers/{rest...}; a; broken off, by fault reset",
	}, said)
	later, err := p.CallsSince(t.Context(), calls[4].Answered.Add(1))
	require.NoError(t, err)
	assert.Empty(t, later)
}

// What can be made follows from what the proxy was told of the cloud.
func TestFaultKindsFollowFromTheRules(t *testing.T) {
	p, _ := openToy(t)
	all := append(slices.Clone(conformance.FaultKinds), conformance.FaultNotFound, conformance.FaultPartialList,
		conformance.FaultMissingField, conformance.FaultStale, conformance.FaultSlow, conformance.FaultLost,
		conformance.FaultConflict, conformance.FaultPrecondition,
		conformance.FaultThrottledFor, conformance.FaultUnavailableFor, conformance.FaultMissingInstanceZone)
	assert.ElementsMatch(t, all, p.FaultKinds())

	p, err := Open("127.0.0.1", protocol.Proxy{Upstream: p.upstream.String(), Rules: []protocol.ProxyRule{
		{Path: "/v1/servers", Thing: conformance.Instances},
	}})
	require.NoError(t, err)
	defer func() { assert.NoError(t, p.Close()) }()
	for _, kind := range []conformance.FaultKind{
		conformance.FaultForeignNotFound, conformance.FaultNotFound, conformance.FaultEmptyList,
		conformance.FaultPartialList, conformance.FaultMissingField,
	} {
		assert.NotContains(t, p.FaultKinds(), kind)
		_, err := p.InjectFault(t.Context(), conformance.Fault{Kind: kind})
		assert.ErrorContains(t, err, string(kind))
	}
}

// All mistakes are told at once.
func TestMistakesInTheConfiguration(t *testing.T) {
	_, err := Open("127.0.0.1", protocol.Proxy{
		Upstream: "ftp://nebula",
		Rules: []protocol.ProxyRule{
			{Method: "get", Path: "v1", Thing: "volumes"},
			{
				Path: "/v1/{rest...}/more", Thing: conformance.Routes, List: pointer("items"),
				Fields: map[string][]string{"zone": {"/zone"}, "instance": {"server"}},
			},
		},
		Answers: map[string]protocol.ProxyAnswer{"reset": {}},
	})
	for _, mistake := range []string{
		`the cloud's URL "ftp://nebula"`, `thing "volumes"`, `method "get"`, "does not begin with /",
		"{rest...} is not at the path's end", `JSON pointer "items"`, `JSON pointer "server"`,
		`fields "zone": routes have no group of that name`, `an answer for fault "reset"`,
	} {
		assert.ErrorContains(t, err, mistake)
	}
	_, err = Open("127.0.0.1", protocol.Proxy{})
	assert.ErrorContains(t, err, "there is no rule")
	_, err = Open("127.0.0.1", protocol.Proxy{CAFile: "/none"})
	assert.ErrorContains(t, err, "/none")
	_, err = Open("127.0.0.1", protocol.Proxy{CAFile: "proxy_test.go"})
	assert.ErrorContains(t, err, "has no certificate in it")
}

// A cloud that cannot be reached is told as that.
func TestUnreachableCloud(t *testing.T) {
	p, err := Open("127.0.0.1", protocol.Proxy{Upstream: "http://127.0.0.1:1", Rules: toyRules})
	require.NoError(t, err)
	defer func() { assert.NoError(t, p.Close()) }()
	status, body := read(t, p, "/v1/servers")
	assert.Equal(t, http.StatusBadGateway, status)
	assert.Contains(t, body, "does not reach the cloud")
}

// A cloud that speaks HTTPS has a certificate that the proxy is told how to check.
func TestHTTPSUpstream(t *testing.T) {
	server := httptest.NewTLSServer(&toyCloud{names: []string{"a", "b"}})
	defer server.Close()
	signed := filepath.Join(t.TempDir(), "ca.pem")
	block := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	require.NoError(t, os.WriteFile(signed, block, 0o600))
	p, err := Open("127.0.0.1", protocol.Proxy{Upstream: server.URL + "/nebula/", Rules: toyRules, CAFile: signed})
	require.NoError(t, err)
	defer func() { assert.NoError(t, p.Close()) }()
	_, body := read(t, p, "/v1/servers")
	assert.Equal(t, bothServers, body)
	counted, err := p.CountCalls(t.Context())
	require.NoError(t, err)
	assert.Equal(t, 1, counted.Of[conformance.Instances].Reads)
}
