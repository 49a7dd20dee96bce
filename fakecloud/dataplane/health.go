package dataplane

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/api"
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

// checkKey is a target and how it is checked. Listeners with the same check share what is known.
type checkKey struct {
	backend cloud.Backend
	check   cloud.HealthCheck // the zero value: it is not checked
}

// checkedTarget is a target and what is known of its health by one check.
type checkedTarget struct {
	checkKey
	stop     context.CancelFunc
	requests chan struct{}    // holds a value when the target is to be checked soon
	health   api.TargetHealth // guarded by Plane.mu
}

// keyOf is the key of a backend, whose checks go on when its share of connections changes.
func keyOf(backend cloud.Backend, check cloud.HealthCheck) checkKey {
	return checkKey{backend.WithoutShare(), check}
}

// checksInForce gives the different health checks that decide for the listeners that have a target, in their order.
// Without any it is the balancer's own.
func checksInForce(f cloud.Forwarding, listeners []*cloud.Listener) []cloud.HealthCheck {
	var checks []cloud.HealthCheck
	for _, l := range listeners {
		if check := l.CheckInForce(f.HealthCheck); !slices.Contains(checks, check) {
			checks = append(checks, check)
		}
	}
	if checks == nil {
		return []cloud.HealthCheck{cloud.Listener{}.CheckInForce(f.HealthCheck)}
	}
	return checks
}

// listenersOf finds the listeners that have a target. Without targets of listeners' own, each has all.
func listenersOf(f cloud.Forwarding) func(target string) []*cloud.Listener {
	var all []*cloud.Listener
	byTarget := map[string][]*cloud.Listener{}
	for i := range f.Listeners {
		l := &f.Listeners[i]
		all = append(all, l)
		if len(f.Own) > 0 {
			for _, backend := range f.BackendsOf(*l) {
				byTarget[backend.Target] = append(byTarget[backend.Target], l)
			}
		}
	}
	return func(target string) []*cloud.Listener {
		if len(f.Own) == 0 {
			return all
		}
		return byTarget[target]
	}
}

// updateHealthChecks starts and stops checks so that f's backends are checked as f says.
// A backend that stays, and whose check is unchanged, keeps its health. The caller holds
// Plane.mu.
func (b *balancer) updateHealthChecks(f cloud.Forwarding) {
	history := map[string][]api.HealthChange{}
	for _, backend := range b.forwarding.AllBackends() {
		history[backend.Target] = b.healthOf(backend).History
	}
	b.listenersOf = listenersOf(f)
	backends, wanted := f.AllBackends(), map[checkKey]bool{}
	keys := make([][]checkKey, len(backends)) // of each backend
	for i, backend := range backends {
		for _, check := range checksInForce(f, b.listenersOf(backend.Target)) {
			key := keyOf(backend, check)
			wanted[key], keys[i] = true, append(keys[i], key)
		}
	}
	for key, w := range b.checkedTargets {
		if !wanted[key] {
			w.stop()
			delete(b.checkedTargets, key)
		}
	}
	for i, backend := range backends {
		var requests []chan struct{}
		for _, key := range keys[i] {
			if b.checkedTargets[key] == nil {
				b.checkedTargets[key] = b.startCheck(key, history[backend.Target])
			}
			requests = append(requests, b.checkedTargets[key].requests)
		}
		b.endpoints[backend.Target].checkRequests.Store(&requests)
	}
}

// startCheck starts to check a target, whose health has a history already.
func (b *balancer) startCheck(key checkKey, history []api.HealthChange) *checkedTarget {
	ctx, stop := context.WithCancel(b.ctx)
	w := &checkedTarget{
		checkKey: key, stop: stop, requests: make(chan struct{}, 1),
		health: api.TargetHealth{
			InstanceID: key.backend.Target, Health: api.TargetUnknown, Reason: "there is no health check",
			Since: new(time.Now().UTC()), History: history,
		},
	}
	isChecked := key.check != cloud.HealthCheck{}
	if isChecked {
		w.health.Reason = "not checked yet"
	}
	w.appendHistory()
	if isChecked {
		b.goroutines.Go(func() { b.checkPeriodically(ctx, w) })
	}
	return w
}

// healthOf gives a target's health: the worst that the checks in force say, and, if a listener has
// a check of its own, what each listener's says. The caller holds Plane.mu.
func (b *balancer) healthOf(backend cloud.Backend) api.TargetHealth {
	var worst *checkedTarget
	listeners := b.listenersOf(backend.Target)
	for _, check := range checksInForce(b.forwarding, listeners) {
		if w := b.checkedTargets[keyOf(backend, check)]; worst == nil || w.severity() > worst.severity() {
			worst = w
		}
	}
	health := worst.health
	differs := func(l cloud.Listener) bool { return l.HealthCheck != cloud.HealthCheck{} || l.Targets != nil }
	if slices.ContainsFunc(b.forwarding.Listeners, differs) {
		for _, l := range listeners {
			if l.RedirectPort > 0 {
				continue
			}
			of := b.checkedTargets[keyOf(backend, l.CheckInForce(b.forwarding.HealthCheck))].health
			health.Listeners = append(health.Listeners, api.ListenerHealth{
				Protocol: l.Protocol, Port: l.Port, Health: of.Health, Reason: of.Reason,
			})
		}
	}
	return health
}

// severity ranks what the checks of one target say. One that is not made says the least.
func (w *checkedTarget) severity() int {
	switch {
	case w.check == cloud.HealthCheck{}:
		return 0
	case w.health.Health == api.TargetHealthy:
		return 1
	case w.health.Health == api.TargetUnknown:
		return 2
	}
	return 3
}

// appendHistory puts the present health at the head of the history. The caller holds
// Plane.mu.
func (w *checkedTarget) appendHistory() {
	current := api.HealthChange{Health: w.health.Health, Reason: w.health.Reason, At: *w.health.Since}
	// A new slice: callers of Plane.Health may still read the old one.
	w.health.History = append(
		[]api.HealthChange{current}, w.health.History[:min(len(w.health.History), maxHistory-1)]...,
	)
}

// checkPeriodically checks a target now, then at intervals and when a check is requested,
// until ctx ends.
func (b *balancer) checkPeriodically(ctx context.Context, w *checkedTarget) {
	settings := w.check
	interval := max(settings.IntervalSeconds.Duration(), minInterval)
	timeout := settings.TimeoutSeconds.Duration()
	if timeout <= 0 || timeout > interval {
		timeout = interval
	}
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	var v verdict
	requests, pause := w.requests, (<-chan time.Time)(nil)
	for requested := false; ; {
		err := w.checkThroughFirewall(ctx, timeout)
		if ctx.Err() != nil {
			return
		}
		b.recordCheck(w, v.addCheck(err, requested, settings), err)
		for waiting := true; waiting; {
			select {
			case <-ctx.Done():
				return
			case <-pause:
				requests, pause = w.requests, nil
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
func (b *balancer) recordCheck(w *checkedTarget, health api.TargetHealthState, err error) {
	b.plane.mu.Lock()
	defer b.plane.mu.Unlock()
	if b.checkedTargets[w.checkKey] != w {
		return // The target was taken out, or its check was replaced.
	}
	switch {
	case isShortage(err) && health != api.TargetUnknown:
		b.log.Debug("a target cannot be checked", "target", w.backend.Target, "err", err)
	case health == api.TargetHealthy:
		w.health.Reason = ""
	case err != nil:
		w.health.Reason = err.Error()
	}
	if w.health.Health == health {
		return
	}
	w.health.Health, w.health.Since = health, new(time.Now().UTC())
	w.appendHistory()
	b.log.Info("a target's health changed", "target", w.backend.Target, "health", health, "reason", w.health.Reason)
	b.resyncNetwork()
	b.updateRoutes()
}

// verdict is a target's health, as its checks so far decide it.
type verdict struct {
	health         api.TargetHealthState // empty before the first
	contradictions int                   // checks in a row that contradict health
}

// addCheck takes the result of one more check into account and returns the health. The
// first check decides alone; later ones must contradict the health several times in a
// row, by the thresholds. A check that was requested because a client's connection failed
// counts only if the target refuses connections, and then decides alone. Any other
// result of a requested check is ignored, so that clients can neither hasten a verdict
// nor put it off. A check that this machine could not make says nothing of the target.
func (v *verdict) addCheck(err error, requested bool, settings cloud.HealthCheck) api.TargetHealthState {
	if isShortage(err) {
		return cmp.Or(v.health, api.TargetUnknown)
	}
	if requested && v.health != "" {
		if v.health == api.TargetHealthy && errors.Is(err, syscall.ECONNREFUSED) {
			*v = verdict{health: api.TargetUnhealthy}
		}
		return v.health
	}
	observed, threshold := api.TargetUnhealthy, settings.UnhealthyThreshold
	if err == nil {
		observed, threshold = api.TargetHealthy, settings.HealthyThreshold
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

// checkThroughFirewall checks the target once, which cannot be reached where its firewalls let nothing in.
func (w *checkedTarget) checkThroughFirewall(ctx context.Context, timeout time.Duration) error {
	if port := w.check.Port; !w.backend.LetIn.Has(api.ProtocolTCP, port) {
		return fmt.Errorf("no firewall of the instance lets anything in to tcp port %d", port)
	}
	return checkTarget(ctx, timeout, w.check, netip.AddrPortFrom(w.backend.Address, uint16(w.check.Port)))
}

// checkTarget checks a target once. The error says what is wrong with the target.
func checkTarget(ctx context.Context, timeout time.Duration, settings cloud.HealthCheck, at netip.AddrPort) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var err error
	if settings.Protocol.IsHTTP() {
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

// healthCheckClient opens a new connection for each check, to the checkedAddress of its request, and follows no
// redirects: it is the target itself that is checked. A target may have any certificate.
var healthCheckClient = &http.Client{
	Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, "tcp", ctx.Value(checkedAddress{}).(netip.AddrPort).String())
		},
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // As clouds do.
		DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: 64 << 10,
	},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

type checkedAddress struct{}

// maxCheckedBody is how much of an answer is searched for the text that a check expects.
const maxCheckedBody = 64 << 10

// checkHTTP sends one GET request and fails if the answer is not what settings expect.
func checkHTTP(ctx context.Context, at netip.AddrPort, settings cloud.HealthCheck) error {
	ctx = context.WithValue(ctx, checkedAddress{}, at)
	path := "/" + strings.TrimPrefix(settings.Path, "/")
	url := string(settings.Protocol) + "://" + cmp.Or(settings.Host, at.String()) + path
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	req.Header.Set("User-Agent", "fakecloud-health-check")
	resp, err := healthCheckClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if !cloud.ExpectsStatus(settings, resp.StatusCode) {
		return fmt.Errorf("HTTP %s from %s", resp.Status, at)
	}
	if settings.Response == "" {
		return nil
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxCheckedBody))
	if !bytes.Contains(body, []byte(settings.Response)) {
		return cmp.Or(err, fmt.Errorf("the answer from %s does not contain %q", at, settings.Response))
	}
	return nil
}
