package dataplane

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/cloud"
)

const (
	// minInterval keeps a careless check from flooding its target.
	minInterval = 10 * time.Millisecond
	// suspectPause keeps clients that a target fails from having it flooded.
	suspectPause = time.Second
	// maxHistory is how many changes of a target's health are remembered.
	maxHistory = 16
)

// watched is one target and what is known of it.
type watched struct {
	backend cloud.Backend
	stop    context.CancelFunc
	health  cloud.TargetHealth // guarded by Plane.mu
}

// watch asks a balancer's targets as it is to from now on. Of those that stay
// and are asked as before, what is known stays too. The caller holds Plane.mu.
func (b *balancer) watch(f cloud.Forwarding) {
	same := sameCheck(b.forwarding.HealthCheck, f.HealthCheck)
	before, stays := maps.Clone(b.watched), make(map[cloud.Backend]bool, len(f.Backends))
	for _, backend := range f.Backends {
		stays[backend] = same
	}
	for name, w := range b.watched {
		if !stays[w.backend] {
			w.stop()
			delete(b.watched, name)
		}
	}
	for _, backend := range f.Backends {
		if b.watched[backend.Target] != nil {
			continue
		}
		ctx, stop := context.WithCancel(b.ctx)
		w := &watched{
			backend: backend, stop: stop,
			health: cloud.TargetHealth{Target: backend.Target, Health: cloud.Unknown, Reason: "there is no health check", Since: time.Now()},
		}
		if f.HealthCheck != nil {
			w.health.Reason = "not checked yet"
		}
		if old := before[backend.Target]; old != nil {
			w.health.History = old.health.History
		}
		w.remember()
		b.watched[backend.Target] = w
		if f.HealthCheck != nil {
			how := *f.HealthCheck
			suspect := b.endpoints[backend.Target].suspect
			b.running.Go(func() { b.check(ctx, w, how, suspect) })
		}
	}
}

// remember adds what is known now to the history. The caller holds Plane.mu.
func (w *watched) remember() {
	is := cloud.HealthChange{Health: w.health.Health, Reason: w.health.Reason, At: w.health.Since}
	// A new one: who was given the old one reads on.
	w.health.History = append([]cloud.HealthChange{is}, w.health.History[:min(len(w.health.History), maxHistory-1)]...)
}

func sameCheck(a, b *cloud.HealthCheck) bool {
	return a == b || a != nil && b != nil && *a == *b
}

// check asks a target at intervals, the first time now, and when it is suspect.
func (b *balancer) check(ctx context.Context, w *watched, how cloud.HealthCheck, suspect <-chan struct{}) {
	interval := max(how.Interval, minInterval)
	timeout := how.Timeout
	if timeout <= 0 || timeout > interval {
		timeout = interval
	}
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	var v verdict
	doubts, pause := suspect, (<-chan time.Time)(nil)
	for doubted := false; ; {
		err := ask(ctx, timeout, how, netip.AddrPortFrom(w.backend.Address, uint16(how.Port)))
		if ctx.Err() != nil {
			return
		}
		b.note(w, v.after(err, doubted, how), err)
		for waiting := true; waiting; {
			select {
			case <-ctx.Done():
				return
			case <-pause:
				doubts, pause = suspect, nil
			case <-ticker.C:
				doubted, waiting = false, false
			case <-doubts:
				doubted, waiting = true, false
				doubts, pause = nil, time.After(suspectPause)
			}
		}
	}
}

// note records what a check made of a target.
func (b *balancer) note(w *watched, health cloud.Health, err error) {
	b.plane.mu.Lock()
	defer b.plane.mu.Unlock()
	if b.watched[w.backend.Target] != w {
		return // It is asked otherwise by now, or no longer.
	}
	switch {
	case health == cloud.Healthy:
		w.health.Reason = ""
	case err != nil:
		w.health.Reason = err.Error()
	}
	if w.health.Health == health {
		return
	}
	w.health.Health, w.health.Since = health, time.Now()
	w.remember()
	b.log.Info("a target's health changed", "target", w.backend.Target, "health", health, "reason", w.health.Reason)
	b.reroute()
}

// verdict is what a target's checks amount to.
type verdict struct {
	health  cloud.Health // empty before the first
	against int          // checks in a row that say otherwise
}

// after counts one more check. The first decides alone. So does one that was made
// because a client met with a failure, if nobody listens there any more; what
// else such a one says counts for nothing, so that clients can neither hasten a
// verdict nor put it off.
func (v *verdict) after(err error, doubted bool, how cloud.HealthCheck) cloud.Health {
	if doubted && v.health != "" {
		if v.health == cloud.Healthy && errors.Is(err, syscall.ECONNREFUSED) {
			*v = verdict{health: cloud.Unhealthy}
		}
		return v.health
	}
	seen, threshold := cloud.Unhealthy, how.UnhealthyThreshold
	if err == nil {
		seen, threshold = cloud.Healthy, how.HealthyThreshold
	}
	v.against++
	switch {
	case seen == v.health:
		v.against = 0
	case v.health == "" || v.against >= threshold:
		*v = verdict{health: seen}
	}
	return v.health
}

// ask checks a target once; the error says what is wrong with it.
func ask(ctx context.Context, timeout time.Duration, how cloud.HealthCheck, at netip.AddrPort) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var err error
	if how.Protocol == cloud.CheckHTTP {
		err = get(ctx, at, how)
	} else {
		var conn net.Conn
		if conn, err = dialer.DialContext(ctx, "tcp", at.String()); err == nil {
			_ = conn.Close()
		}
	}
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return failedCheck{fmt.Sprintf("connection refused by %s", at), err}
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return failedCheck{fmt.Sprintf("no answer from %s within %s", at, timeout), err}
	}
	return err
}

// failedCheck says what is wrong with a target as people read it.
type failedCheck struct {
	says string
	error
}

func (f failedCheck) Error() string { return f.says }

func (f failedCheck) Unwrap() error { return f.error }

// asker sees what is at a target, not what that points at, and anew each time.
var asker = &http.Client{
	Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, at string) (net.Conn, error) {
			return dialer.DialContext(ctx, "tcp", at)
		},
		DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: 64 << 10,
	},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

func get(ctx context.Context, at netip.AddrPort, how cloud.HealthCheck) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+at.String()+"/"+strings.TrimPrefix(how.Path, "/"), http.NoBody)
	if err != nil {
		return err
	}
	req.Header.Set("User-Agent", "fakecloud-health-check")
	resp, err := asker.Do(req)
	if err != nil {
		return err
	}
	_ = resp.Body.Close()
	if !how.Expects(resp.StatusCode) {
		return fmt.Errorf("HTTP %s from %s", resp.Status, at)
	}
	return nil
}
