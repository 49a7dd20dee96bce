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
	// minInterval is the shortest interval between checks, whatever the check asks for:
	// it keeps a careless one from flooding its target.
	minInterval = 10 * time.Millisecond
	// requestedCheckPause is the least time between two checks that failures of clients'
	// connections have requested: clients must not cause a flood of checks.
	requestedCheckPause = time.Second
	// maxHistory is how many changes of a target's health are kept.
	maxHistory = 16
)

// checkedTarget is a target and what is known of its health.
type checkedTarget struct {
	backend cloud.Backend
	stop    context.CancelFunc
	health  cloud.TargetHealth // guarded by Plane.mu
}

// updateHealthChecks starts and stops checks so that f's backends are checked as f says.
// A backend that stays, and whose check is unchanged, keeps its health. The caller holds
// Plane.mu.
func (b *balancer) updateHealthChecks(f cloud.Forwarding) {
	checkUnchanged := sameCheck(b.forwarding.HealthCheck, f.HealthCheck)
	before, unchanged := maps.Clone(b.checkedTargets), make(map[cloud.Backend]bool, len(f.Backends))
	for _, backend := range f.Backends {
		unchanged[backend] = checkUnchanged
	}
	for name, w := range b.checkedTargets {
		if !unchanged[w.backend] {
			w.stop()
			delete(b.checkedTargets, name)
		}
	}
	for _, backend := range f.Backends {
		if b.checkedTargets[backend.Target] != nil {
			continue
		}
		ctx, stop := context.WithCancel(b.ctx)
		w := &checkedTarget{
			backend: backend, stop: stop,
			health: cloud.TargetHealth{
				Target: backend.Target, Health: cloud.Unknown, Reason: "there is no health check", Since: time.Now(),
			},
		}
		if f.HealthCheck != nil {
			w.health.Reason = "not checked yet"
		}
		if old := before[backend.Target]; old != nil {
			w.health.History = old.health.History
		}
		w.appendHistory()
		b.checkedTargets[backend.Target] = w
		if f.HealthCheck != nil {
			settings := *f.HealthCheck
			checkRequests := b.endpoints[backend.Target].checkRequests
			b.goroutines.Go(func() { b.checkPeriodically(ctx, w, settings, checkRequests) })
		}
	}
}

// appendHistory puts the present health at the head of the history. The caller holds
// Plane.mu.
func (w *checkedTarget) appendHistory() {
	current := cloud.HealthChange{Health: w.health.Health, Reason: w.health.Reason, At: w.health.Since}
	// A new slice: callers of Plane.Health may still read the old one.
	w.health.History = append(
		[]cloud.HealthChange{current}, w.health.History[:min(len(w.health.History), maxHistory-1)]...,
	)
}

func sameCheck(a, b *cloud.HealthCheck) bool {
	return a == b || a != nil && b != nil && *a == *b
}

// checkPeriodically checks a target now, then at intervals and when a check is requested,
// until ctx ends.
func (b *balancer) checkPeriodically(
	ctx context.Context,
	w *checkedTarget,
	settings cloud.HealthCheck,
	checkRequests <-chan struct{},
) {
	interval := max(settings.Interval, minInterval)
	timeout := settings.Timeout
	if timeout <= 0 || timeout > interval {
		timeout = interval
	}
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	var v verdict
	requests, pause := checkRequests, (<-chan time.Time)(nil)
	for requested := false; ; {
		err := checkTarget(ctx, timeout, settings, netip.AddrPortFrom(w.backend.Address, uint16(settings.Port)))
		if ctx.Err() != nil {
			return
		}
		b.recordCheck(w, v.addCheck(err, requested, settings), err)
		for waiting := true; waiting; {
			select {
			case <-ctx.Done():
				return
			case <-pause:
				requests, pause = checkRequests, nil
			case <-ticker.C:
				requested, waiting = false, false
			case <-requests:
				requested, waiting = true, false
				requests, pause = nil, time.After(requestedCheckPause)
			}
		}
	}
}

// recordCheck sets a target's health and reason after a check. err is the check's error.
func (b *balancer) recordCheck(w *checkedTarget, health cloud.Health, err error) {
	b.plane.mu.Lock()
	defer b.plane.mu.Unlock()
	if b.checkedTargets[w.backend.Target] != w {
		return // The target was taken out, or its check was replaced.
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
	w.appendHistory()
	b.log.Info("a target's health changed", "target", w.backend.Target, "health", health, "reason", w.health.Reason)
	b.updateRoutes()
}

// verdict is a target's health, as its checks so far decide it.
type verdict struct {
	health         cloud.Health // empty before the first
	contradictions int          // checks in a row that contradict health
}

// addCheck takes the result of one more check into account and returns the health. The
// first check decides alone; later ones must contradict the health several times in a
// row, by the thresholds. A check that was requested because a client's connection failed
// counts only if the target refuses connections, and then decides alone. Any other
// result of a requested check is ignored, so that clients can neither hasten a verdict
// nor put it off.
func (v *verdict) addCheck(err error, requested bool, settings cloud.HealthCheck) cloud.Health {
	if requested && v.health != "" {
		if v.health == cloud.Healthy && errors.Is(err, syscall.ECONNREFUSED) {
			*v = verdict{health: cloud.Unhealthy}
		}
		return v.health
	}
	observed, threshold := cloud.Unhealthy, settings.UnhealthyThreshold
	if err == nil {
		observed, threshold = cloud.Healthy, settings.HealthyThreshold
	}
	v.contradictions++
	switch {
	case observed == v.health:
		v.contradictions = 0
	case v.health == "" || v.contradictions >= threshold:
		*v = verdict{health: observed}
	}
	return v.health
}

// checkTarget checks a target once. The error says what is wrong with the target.
func checkTarget(ctx context.Context, timeout time.Duration, settings cloud.HealthCheck, at netip.AddrPort) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var err error
	if settings.Protocol == cloud.CheckHTTP {
		err = checkHTTP(ctx, at, settings)
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

// failedCheck is the error of a check, with a message for people.
type failedCheck struct {
	message string
	error
}

func (f failedCheck) Error() string { return f.message }

func (f failedCheck) Unwrap() error { return f.error }

// healthCheckClient opens a new connection for each check, and follows no redirects: it
// is the target itself that is checked.
var healthCheckClient = &http.Client{
	Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, at string) (net.Conn, error) {
			return dialer.DialContext(ctx, "tcp", at)
		},
		DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: 64 << 10,
	},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

// checkHTTP sends one GET request and fails if the status is not one that settings expect.
func checkHTTP(ctx context.Context, at netip.AddrPort, settings cloud.HealthCheck) error {
	req, err := http.NewRequestWithContext(
		ctx, http.MethodGet, "http://"+at.String()+"/"+strings.TrimPrefix(settings.Path, "/"), http.NoBody,
	)
	if err != nil {
		return err
	}
	req.Header.Set("User-Agent", "fakecloud-health-check")
	resp, err := healthCheckClient.Do(req)
	if err != nil {
		return err
	}
	_ = resp.Body.Close()
	if !settings.Expects(resp.StatusCode) {
		return fmt.Errorf("HTTP %s from %s", resp.Status, at)
	}
	return nil
}
