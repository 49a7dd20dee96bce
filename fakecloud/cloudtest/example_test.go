package cloudtest_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/cloudtest"
)

// exampleTB stands for the *testing.T that an example has not, but every test.
type exampleTB struct {
	testing.TB
	ctx      context.Context
	cleanups []func()
}

// newT returns what a test gets as its t, and what go test does after it.
func newT() (t testing.TB, end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	e := &exampleTB{ctx: ctx}
	return e, func() {
		cancel()
		for i := len(e.cleanups) - 1; i >= 0; i-- {
			e.cleanups[i]()
		}
	}
}

func (e *exampleTB) Helper()                           {}
func (e *exampleTB) Context() context.Context          { return e.ctx }
func (e *exampleTB) Cleanup(f func())                  { e.cleanups = append(e.cleanups, f) }
func (e *exampleTB) Errorf(format string, args ...any) { fmt.Printf(format+"\n", args...) }
func (e *exampleTB) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }

func (e *exampleTB) TempDir() string {
	dir, err := os.MkdirTemp("", "cloudtest")
	if err != nil {
		panic(err)
	}
	e.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// One line gives a cloud. Its client creates an instance, as any client would.
func ExampleStart() {
	t, end := newT() // A test has its own t, and nothing to end.
	defer end()

	c := cloudtest.Start(t)
	made, err := c.CreateInstance(t.Context(), api.InstanceCreate{Name: "node-1", Zone: "nebula-1a"})
	if err != nil {
		t.Fatalf("creating: %v", err)
	}
	running := c.AwaitInstance(made.ID, api.InstanceRunning)
	fmt.Println(running.Name, running.State, "in", running.Zone)
	// Output: node-1 running in nebula-1a
}

// A program under test gets a URL and a file with a token. What it called is counted.
func ExampleCloud_ClientAs() {
	t, end := newT()
	defer end()

	c := cloudtest.Start(t)
	mine := c.ClientAs("my-controller", api.RoleEditor) // or: c.URL and c.NewToken("my-controller", …)
	for range 3 {
		if _, err := mine.ListZones(t.Context()); err != nil {
			t.Fatalf("listing: %v", err)
		}
	}
	fmt.Println(c.CountCalls("my-controller"))
	// Output: map[listZones:3]
}

// The next call of one kind fails as a cloud under load would have it; the client tries reads
// again.
func ExampleCloud_Fail() {
	t, end := newT()
	defer end()

	c := cloudtest.Start(t)
	mine := c.ClientAs("my-controller", api.RoleEditor)
	c.Fail(api.FaultCreate{
		Match: api.FaultMatch{Operations: []string{"listZones"}}, Times: 1, Effect: api.FaultEffect{Status: 503},
	})
	zones, err := mine.ListZones(t.Context())
	fmt.Println(len(zones), "zones,", err, c.CountCalls("my-controller"))
	// Output: 3 zones, <nil> map[listZones:2]
}

// Time stands still until the test moves it: an hour of the cloud's takes no time.
func ExampleVirtualClock() {
	t, end := newT()
	defer end()

	c := cloudtest.Start(t, cloudtest.VirtualClock(), cloudtest.Profile("realistic"))
	made, err := c.CreateInstance(t.Context(), api.InstanceCreate{Name: "node-1", Zone: "nebula-1a"})
	if err != nil {
		t.Fatalf("creating: %v", err)
	}
	for _, d := range []time.Duration{5 * time.Second, time.Hour} {
		if _, err := c.AdvanceClock(t.Context(), d); err != nil {
			t.Fatalf("advancing: %v", err)
		}
		in, err := c.GetInstance(t.Context(), made.ID)
		if err != nil {
			t.Fatalf("reading: %v", err)
		}
		fmt.Println("after", d, in.State)
	}
	// Output:
	// after 5s pending
	// after 1h0m0s running
}

// A load balancer carries traffic: the instance's address is one of this machine's, so the
// test can serve on it.
func ExampleCloud_AwaitLoadBalancer() {
	t, end := newT()
	defer end()

	c := cloudtest.Start(t)
	node, err := c.CreateInstance(t.Context(), api.InstanceCreate{Name: "node-1", Zone: "nebula-1a"})
	if err != nil {
		t.Fatalf("creating an instance: %v", err)
	}
	node = c.AwaitInstance(node.ID, api.InstanceRunning)
	port := serveHello(t, node.Addresses[0].IP)

	lb, err := c.CreateLoadBalancer(t.Context(), api.LoadBalancerCreate{
		Name: "web", Listeners: []api.Listener{{Protocol: api.ProtocolTCP, Port: 8080, TargetPort: port}},
		Targets: api.Targets{{InstanceID: node.ID}},
	})
	if err != nil {
		t.Fatalf("creating a balancer: %v", err)
	}
	lb = c.AwaitLoadBalancer(lb.ID, api.LoadBalancerActive)
	resp, err := http.Get("http://" + net.JoinHostPort(lb.Address, "8080"))
	if err != nil {
		t.Fatalf("asking through the balancer: %v", err)
	}
	defer func() { _ = resp.Body.Close() }()
	answer, _ := io.ReadAll(resp.Body)
	fmt.Println(string(answer))
	// Output: hello
}

// serveHello serves HTTP on an address, and returns the port.
func serveHello(t testing.TB, address string) (port int) {
	l, err := net.Listen("tcp", net.JoinHostPort(address, "0"))
	if err != nil {
		t.Fatalf("listening: %v", err)
	}
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "hello")
	}))
	_ = srv.Listener.Close()
	srv.Listener = l
	srv.Start()
	t.Cleanup(srv.Close)
	_, text, _ := net.SplitHostPort(l.Addr().String())
	port, _ = strconv.Atoi(text)
	return port
}
