// This file answers: is a target well?

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
	suspectPause = 100 * time.Millisecond
	// maxHistory is how many changes of a target's health are remembered.
	maxHistory = 16
)

// watched is one target and what is known of it.
type watched struct {
	backend cloud.Backend
	stop    context.CancelFunc
	suspect chan struct{}      // has one when it is to be asked at once
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
			backend: backend, stop: stop, suspect: make(chan struct{}, 1),
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
			b.running.Go(func() { b.check(ctx, w, how) })
		}
	}
}

// remember adds what is known now to the history. The caller holds Plane.mu.
func (w *watched) remember() {
	is := cloud.HealthChange{Health: w.health.Health, Reason: w.health.Reason, At: w.health.Since}
	// A new one: who was given the old one reads on.
	w.health.History = append([]cloud.HealthChange{is}, w.health.History[:min(len(w.health.History), maxHistory-1)]...)
}

// suspect has a target asked at once that a client's connection or datagram was
// refused or broken off by. If that goes wrong too, it is unhealthy without
// waiting for more checks.
func (b *balancer) suspect(target string) {
	b.plane.mu.Lock()
	defer b.plane.mu.Unlock()
	if w := b.watched[target]; w != nil {
		select {
		case w.suspect <- struct{}{}:
		default:
		}
	}
}

func sameCheck(a, b *cloud.HealthCheck) bool {
	return a == b || a != nil && b != nil && *a == *b
}

// check asks a target at intervals, the first time now, and when it is suspect.
func (b *balancer) check(ctx context.Context, w *watched, how cloud.HealthCheck) {
	interval := max(how.Interval, minInterval)
	timeout := how.Timeout
	if timeout <= 0 || timeout > interval {
		timeout = interval
	}
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	var v verdict
	for suspect := false; ; {
		err := ask(ctx, timeout, how, netip.AddrPortFrom(w.backend.Address, uint16(how.Port)))
		if ctx.Err() != nil {
			return
		}
		if suspect && err != nil {
			v = verdict{} // The next decides alone.
		}
		b.note(w, v.after(err == nil, how), err)
		if !b.rest(min(interval, suspectPause)) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			suspect = false
		case <-w.suspect:
			suspect = true
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

// after counts one more check. The first decides alone.
func (v *verdict) after(ok bool, how cloud.HealthCheck) cloud.Health {
	seen, threshold := cloud.Unhealthy, how.UnhealthyThreshold
	if ok {
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
		return fmt.Errorf("connection refused by %s", at)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("no answer from %s within %s", at, timeout)
	}
	return err
}

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
