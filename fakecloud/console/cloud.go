package console

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/console/scene"
	"github.com/ccmlab/ccmlab/fakecloud/console/story"
)

const (
	// Path is where a cloud alone has its page.
	Path = "/console"
	// linkLifetime is how long a link that the CLI prints opens the page.
	linkLifetime = 10 * time.Minute
	// userAgent tells the page's own calls from others.
	userAgent = "fakecloud-console"
)

// CloudConfig is what the page of a cloud alone needs.
type CloudConfig struct {
	// API is the cloud's own: the page is a client as others are, with the token of who looks at it.
	API http.Handler
	// Access is what a token that the API takes may do.
	Access func(ctx context.Context, token string) Access
	// IsHost tells the names under which the API answers; nil takes any.
	IsHost func(host string) bool
	// Run, unless nil, runs a command of the CLI with a token; without, the page changes nothing.
	Run   func(ctx context.Context, token string, command []string) error
	HTTPS bool
	// RateLimit is how many calls a second a token may make; 0 is any number.
	RateLimit int
	Log       *slog.Logger
}

// NewCloudPage is the page of a cloud alone. Tokens of the API open it, and show their project.
func NewCloudPage(cfg CloudConfig) *Page {
	p := &Page{
		Title: "fakecloud", Server: "the cloud", Log: cfg.Log,
		Guard: Guard{
			Path: Path, HTTPS: cfg.HTTPS, IsHost: cfg.IsHost, Access: cfg.Access,
			LinkLifetime: linkLifetime, LinkCommand: "fakecloud console",
			Admit: func(r *http.Request, token string) error {
				// The API slows down who guesses. No fault is ever applied to this call, whatever it is answered.
				_, err := cfg.newClient(Session{Token: token, RemoteAddr: r.RemoteAddr}).ListFaults(r.Context())
				if client.HasCode(err, api.RateLimited) || client.HasCode(err, api.Unauthenticated) {
					return err
				}
				return nil
			},
		},
		Stream: func(ctx context.Context, s Session, send func(Batch) error) error {
			return cfg.streamCloud(ctx, cfg.newClient(s), send)
		},
	}
	if cfg.Run != nil {
		p.Run = func(ctx context.Context, s Session, command []string) error { return cfg.Run(ctx, s.Token, command) }
		p.Acts = func(ctx context.Context, s Session, subject string) ([]Act, error) {
			if subject == "" {
				return CloudActs(ctx, cfg.newClient(s), "")
			}
			t, err := findObject(ctx, cfg.newClient(s), subject)
			return ActsOn(t), err
		}
	}
	return p
}

func (cfg CloudConfig) newClient(s Session) *client.Client {
	c, err := client.New(client.Config{
		URL: "http://fakecloud.invalid", UserAgent: userAgent, Transport: inProcess{cfg.API, s},
	})
	if err != nil {
		panic(err) // Of a configuration that is always the same.
	}
	return c
}

// memory is a scene in memory, with the changes that were not sent yet.
type memory struct {
	mu      sync.Mutex
	scene   scene.Scene
	changes []scene.Change
}

// Get implements scene.Store.
func (m *memory) Get(id string) (t scene.Object, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	t, ok = m.scene[id]
	return t, ok
}

// FindByCloudID implements scene.Store.
func (m *memory) FindByCloudID(id string) (scene.Object, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.scene.FindByCloudID(id)
}

// Objects implements scene.Store.
func (m *memory) Objects() []scene.Object {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.scene.Objects()
}

// Add implements scene.Store.
func (m *memory) Add(c scene.Change) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.scene.Changes(c) {
		m.scene.Apply(c)
		m.changes = append(m.changes, c)
	}
	return nil
}

// takeChanges returns at most so many of the changes that were not sent yet.
func (m *memory) takeChanges(limit int) []scene.Change {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := min(limit, len(m.changes))
	taken := slices.Clone(m.changes[:n])
	m.changes = slices.Delete(m.changes, 0, n)
	return taken
}

// viewing is one page that is open.
type viewing struct {
	cloud    *client.Client
	store    memory
	follower *scene.Follower
	queue    StoryQueue

	mu    sync.Mutex
	began time.Time // of the story
	// newestCall is the last call that the story tells of.
	newestCall string
}

// streamCloud sends what has happened and what happens until ctx ends or send fails.
func (cfg CloudConfig) streamCloud(ctx context.Context, cloud *client.Client, send func(Batch) error) error {
	v := &viewing{cloud: cloud, store: memory{scene: scene.Scene{}}, began: time.Now()}
	v.follower = scene.NewFollower(&v.store, 0, time.Time{})
	var followers sync.WaitGroup
	ctx, cancel := context.WithCancel(ctx)
	defer followers.Wait()
	defer cancel()
	followers.Go(func() {
		for ctx.Err() == nil {
			err := v.catchUp(ctx)
			if err == nil {
				err = cloud.Follow(ctx, v.follower.Seq, v.addEvent, v.setStream)
			}
			v.setStream(err)
			waitForPoll(ctx)
		}
	})
	followers.Go(func() {
		for ctx.Err() == nil {
			v.setNote(errors.Join(v.follower.Poll(ctx, cloud), v.addCalls(ctx)))
			waitForPoll(ctx)
		}
	})
	tick := time.NewTicker(SendInterval)
	defer tick.Stop()
	for b := (Batch{Reset: true, Bounds: Bounds{Limit: cfg.RateLimit}}); ; b = (Batch{}) {
		b.Scene = v.store.takeChanges(MaxBatch)
		b.More = len(b.Scene) == MaxBatch
		v.queue.MoveTo(&b)
		if err := send(b); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

func waitForPoll(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(scene.PollInterval):
	}
}

// catchUp adds what the cloud still has events of, and what it has none of any more.
func (v *viewing) catchUp(ctx context.Context) error {
	var events []api.Event
	if err := v.cloud.Watch(ctx, client.FromOldest, false, func(ev api.Event) error {
		events = append(events, ev)
		return nil
	}); err != nil {
		return err
	}
	v.mu.Lock()
	v.began = time.Now()
	if len(events) > 0 {
		v.began = events[0].Time
	}
	v.mu.Unlock()
	told := map[string]bool{}
	for _, ev := range events {
		told[ev.ID] = true
	}
	objects, err := listObjects(ctx, v.cloud)
	if err != nil {
		return err
	}
	for _, t := range objects {
		if !told[t.CloudID] {
			_ = v.store.Add(scene.Change{Time: v.began, Object: &t}) // It stays in memory, and cannot fail.
		}
	}
	for _, ev := range events {
		_ = v.addEvent(ev)
	}
	return nil
}

// listObjects lists what events are about.
func listObjects(ctx context.Context, cloud *client.Client) (objects []scene.Object, err error) {
	instances, err1 := cloud.ListInstances(ctx, client.InstanceFilter{})
	balancers, err2 := cloud.ListLoadBalancers(ctx, client.LoadBalancerFilter{})
	routes, err3 := cloud.ListRoutes(ctx, client.RouteFilter{})
	addresses, err4 := cloud.ListAddresses(ctx, client.AddressFilter{})
	firewalls, err5 := cloud.ListFirewalls(ctx, client.FirewallFilter{})
	certificates, err6 := cloud.ListCertificates(ctx, client.CertificateFilter{})
	ofCertificate := func(c api.Certificate) scene.Object { return scene.OfCertificate(c, time.Now()) }
	return slices.Concat(
		toObjects(instances, scene.OfInstance), toObjects(balancers, scene.OfBalancer), toObjects(routes, scene.OfRoute),
		toObjects(addresses, scene.OfAddress), toObjects(firewalls, scene.OfFirewall),
		toObjects(certificates, ofCertificate),
	), errors.Join(err1, err2, err3, err4, err5, err6)
}

func toObjects[T any](items []T, toObject func(T) scene.Object) (objects []scene.Object) {
	for _, item := range items {
		objects = append(objects, toObject(item))
	}
	return objects
}

// findObject returns an object as it is now; the zero value if there is none.
func findObject(ctx context.Context, cloud *client.Client, id string) (t scene.Object, err error) {
	m := &memory{scene: scene.Scene{}}
	if kind, _, _ := strings.Cut(id, "/"); kind == string(scene.KindFault) {
		// Faults can be seen, and ended, whatever else fails by them.
		err = scene.NewFollower(m, 0, time.Time{}).PollFaults(ctx, cloud)
	} else {
		var objects []scene.Object
		objects, err = listObjects(ctx, cloud)
		for _, t := range objects {
			_ = m.Add(scene.Change{Object: &t}) // It stays in memory, and cannot fail.
		}
	}
	t, _ = m.Get(id)
	return t, err
}

func (v *viewing) addEvent(ev api.Event) error {
	if ev.Seq <= v.follower.Seq {
		return nil
	}
	if c, ok := story.OfEvent(ev, nil); ok {
		v.addEntry(ev.Time, c)
	}
	return v.follower.Event(ev)
}

// addCalls adds the calls since it was called before.
func (v *viewing) addCalls(ctx context.Context) error {
	listed, err := v.cloud.ListAuditUntil(ctx, client.AuditFilter{}, func(a api.AuditEntry) bool {
		return a.RequestID == v.newestCall || v.newestCall == ""
	})
	if err != nil {
		return fmt.Errorf("the audit: %w", err)
	}
	if at := slices.IndexFunc(listed, func(a api.AuditEntry) bool { return a.RequestID == v.newestCall }); at >= 0 {
		listed = listed[:at]
	}
	if len(listed) > 0 {
		v.newestCall = listed[0].RequestID
	}
	for _, a := range slices.Backward(listed) {
		if a.UserAgent != userAgent {
			v.addEntry(story.OfCall(a))
		}
	}
	return nil
}

// setStream tells that the stream of events is open (nil) or broken.
func (v *viewing) setStream(err error) {
	v.follower.SetStream("events", err)
	v.setNote(err)
}

// setNote has the page say what keeps it from being complete; nothing if err is nil.
func (v *viewing) setNote(err error) {
	if err == nil {
		return
	}
	v.queue.SetNote(err.Error())
}

func (v *viewing) addEntry(at time.Time, c story.Change) {
	v.mu.Lock()
	began := v.began
	v.mu.Unlock()
	v.queue.Add(story.NewEntry(began, at, c))
}
