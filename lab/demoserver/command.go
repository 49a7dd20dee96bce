package demoserver

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	// maxDelay bounds what is held back, so that a typing error cannot hold a
	// connection for an hour.
	maxDelay = 5 * time.Minute
	// maxFaultDuration bounds for=, after which a fault ends by itself.
	maxFaultDuration = 24 * time.Hour
)

// Help lists the commands of a container. Every refusal ends with it.
const Help = `What this container understands, besides any request whatever:
  GET  /help                                who is told what, and this list
  GET  /anything?format=json                its identity, env and files as JSON (or Accept: application/json)
  GET  /anything?delay=2s                   this one answer comes late
  POST /fail?probe=readiness[&for=30s]      the probe is answered with 503; or liveness, startup, all
  POST /recover[?probe=readiness]           the probe succeeds again; without probe= all do, and nothing is slow
  POST /slow?delay=2s[&for=30s]             every answer comes late, to probes too; delay=0s ends it
  POST /exit?code=3[&after=2s]              the container ends with this code
With curl, POST is: curl -X POST 'http://ADDRESS:PORT/fail?probe=readiness'
A container that is restarted has forgotten what it was told.`

// The kinds of probes, in the order in which a kubelet begins with them.
const (
	Startup   = "startup"
	Liveness  = "liveness"
	Readiness = "readiness"
	allProbes = "all"
)

var probeKinds = []string{Startup, Liveness, Readiness}

// failureConsequence says what the kubelet does, by kind of probe, once the probe has failed
// failureThreshold times in a row.
var failureConsequence = map[string]string{
	Startup:   "It is asked only until it succeeds for the first time; the other probes wait for that, and the container is restarted when that takes too long.",
	Liveness:  "After failureThreshold failures in a row the kubelet restarts the container.",
	Readiness: "After failureThreshold failures in a row the pod is not Ready, and Services send it no new connections. It runs on.",
}

// Probe is a probe that a container declares.
type Probe struct {
	// Port and URI (path and query) are where a probe sends its request: HealthCheckURI for a grpc probe.
	Port uint16
	URI  string
	// UnfitReason is set for a probe that no command can make fail. It says why, and what to
	// declare instead.
	UnfitReason string
}

func (p Probe) String() string {
	if p.URI == HealthCheckURI {
		return fmt.Sprintf("grpc on port %d", p.Port)
	}
	return fmt.Sprintf("GET %s on port %d", p.URI, p.Port)
}

// faultState holds the faults that commands have set. updateFaults replaces the map in it, so
// that a copy never changes.
type faultState struct {
	// failingUntil says how long probes fail, by kind. The zero time is for good, here and in
	// delayedUntil.
	failingUntil map[string]time.Time
	// delay is how late each answer comes.
	delay        time.Duration
	delayedUntil time.Time
}

// hasPassed reports whether a fault with this end is over.
func hasPassed(end time.Time) bool { return !end.IsZero() && !time.Now().Before(end) }

// isProbeFailing reports whether probes of the kind are answered with 503 now.
func (f faultState) isProbeFailing(kind string) bool {
	end, failing := f.failingUntil[kind]
	return failing && !hasPassed(end)
}

// currentDelay returns how late answers come now.
func (f faultState) currentDelay() time.Duration {
	if hasPassed(f.delayedUntil) {
		return 0
	}
	return f.delay
}

// describeActive returns a line for each fault that has not ended.
func (f faultState) describeActive() []string {
	lines := []string{}
	for _, kind := range probeKinds {
		if f.isProbeFailing(kind) {
			lines = append(lines, fmt.Sprintf("the %s probe fails, %s", kind, describeEnd(f.failingUntil[kind])))
		}
	}
	if delay := f.currentDelay(); delay > 0 {
		lines = append(lines, fmt.Sprintf("answers come %s late, %s", delay, describeEnd(f.delayedUntil)))
	}
	return lines
}

// currentFaults returns a copy of the faults, ended ones included.
func (a *Answerer) currentFaults() faultState {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.faults
}

// updateFaults lets change edit the faults. Copies that were returned before stay as they are.
func (a *Answerer) updateFaults(change func(*faultState)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.faults.failingUntil = maps.Clone(a.faults.failingUntil)
	if a.faults.failingUntil == nil {
		a.faults.failingUntil = map[string]time.Time{}
	}
	change(&a.faults)
}

// refusal is the error of a command that is not carried out: an HTTP status and its text.
type refusal struct {
	code int
	text string
}

func (r refusal) Error() string { return r.text }

func badRequest(format string, arguments ...any) error {
	return refusal{http.StatusBadRequest, fmt.Sprintf(format, arguments...)}
}

// commandReply is the answer to a command in JSON.
type commandReply struct {
	Message      string   `json:"message"`
	ActiveFaults []string `json:"told"`
	Help         []string `json:"help,omitempty"`
}

// commandResult is what a command that was carried out answers.
type commandResult struct {
	text string
	// afterReply, unless nil, is called once the answer is sent.
	afterReply func()
}

// serveCommand answers the request if it is a command, and reports whether it was one. Commands
// are answered at once: POST /slow does not delay them.
func (a *Answerer) serveCommand(w http.ResponseWriter, r *http.Request) bool {
	run, parameters := a.findCommand(r.URL.Path)
	if run == nil {
		return false
	}
	query, err := parseParameters(r, parameters)
	if err == nil {
		var result commandResult
		if result, err = run(query); err == nil {
			a.writeReply(w, r, result.text)
			if result.afterReply != nil {
				result.afterReply()
			}
			return true
		}
	}
	var why refusal
	if !errors.As(err, &why) {
		why = refusal{http.StatusBadRequest, err.Error()}
	}
	a.writeRefusal(w, r, why)
	return true
}

// findCommand returns the function that carries out the command at a path, and the parameters
// that it takes. The function is nil for any other path.
func (a *Answerer) findCommand(path string) (func(url.Values) (commandResult, error), []string) {
	switch path {
	case "/help":
		return func(url.Values) (commandResult, error) { return commandResult{text: Help}, nil }, nil
	case "/fail":
		return a.failProbes, []string{"probe", "for"}
	case "/recover":
		return a.recoverProbes, []string{"probe"}
	case "/slow":
		return a.delayAnswers, []string{"delay", "for"}
	case "/exit":
		return a.exitContainer, []string{"code", "after"}
	}
	return nil, nil
}

// parseParameters returns a command's parameters. Unknown and repeated ones are refused, since
// they would have no effect, and a typing error must not look like a success.
func parseParameters(r *http.Request, known []string) (url.Values, error) {
	if r.Method != http.MethodPost && r.URL.Path != "/help" {
		return nil, refusal{
			http.StatusMethodNotAllowed,
			fmt.Sprintf("%s is a command: it needs POST, and this was %s.", r.URL.Path, r.Method),
		}
	}
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, badRequest("The query cannot be read: %v.", err)
	}
	for name, values := range query {
		if name != "format" && !slices.Contains(known, name) {
			return nil, badRequest("%s has no parameter %q.", r.URL.Path, name)
		}
		if len(values) > 1 {
			return nil, badRequest("%s is there %d times.", name, len(values))
		}
	}
	return query, nil
}

// writeReply answers a command that was carried out. It declares the length and flushes, so that
// the client has the whole answer even if the container then exits.
func (a *Answerer) writeReply(w http.ResponseWriter, r *http.Request, message string) {
	lines := a.currentFaults().describeActive()
	if wantsJSON(r) {
		writeJSON(w, http.StatusOK, commandReply{Message: message, ActiveFaults: lines})
	} else {
		for _, line := range lines {
			message += "\nNow: " + line
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("Content-Length", strconv.Itoa(len(message)+1))
		_, _ = io.WriteString(w, message+"\n")
	}
	_ = http.NewResponseController(w).Flush()
}

// writeRefusal answers a command that was not carried out, with the reason and Help.
func (a *Answerer) writeRefusal(w http.ResponseWriter, r *http.Request, why refusal) {
	if why.code == http.StatusMethodNotAllowed {
		w.Header().Set("Allow", http.MethodPost)
	}
	if wantsJSON(r) {
		writeJSON(w, why.code, commandReply{Message: why.text, ActiveFaults: a.currentFaults().
			describeActive(), Help: strings.Split(Help, "\n")})
		return
	}
	http.Error(w, why.text+"\n\n"+Help, why.code)
}

// failProbes carries out POST /fail. Probes with the same port and URI fail together.
func (a *Answerer) failProbes(query url.Values) (commandResult, error) {
	kind := query.Get("probe")
	until, err := parseFaultEnd(query)
	if err != nil {
		return commandResult{}, err
	}
	kinds, err := a.selectProbes(kind)
	if err != nil {
		return commandResult{}, err
	}
	var sentences []string
	for _, k := range kinds {
		sentences = append(sentences, fmt.Sprintf(
			"The %s probe (%s) fails from now on, %s. %s", k, a.Probes[k], describeEnd(until), failureConsequence[k],
		))
	}
	if kind != allProbes && len(kinds) > 1 {
		sentences = append(
			sentences, "They ask at one place, so they fail together: give each a path of its own to part them.",
		)
	}
	a.updateFaults(func(f *faultState) {
		for _, k := range kinds {
			f.failingUntil[k] = until
		}
	})
	return commandResult{text: strings.Join(sentences, "\n")}, nil
}

// selectProbes returns the kinds of probes that a command is for: the named one and those with
// the same port and URI, or all that can fail.
func (a *Answerer) selectProbes(kind string) ([]string, error) {
	if kind != allProbes && !slices.Contains(probeKinds, kind) {
		return nil, badRequest("probe=%q: readiness, liveness, startup or all is needed.", kind)
	}
	var selected, reasons []string
	for _, k := range probeKinds {
		p, declared := a.Probes[k]
		switch {
		case !declared:
			reasons = append(
				reasons,
				fmt.Sprintf("The container has no %s probe: add a %sProbe with httpGet to the pod's template.", k, k),
			)
		case p.UnfitReason != "":
			reasons = append(reasons, fmt.Sprintf("The %s probe %s", k, p.UnfitReason))
		default:
			selected = append(selected, k)
			continue
		}
		if k == kind {
			return nil, refusal{http.StatusConflict, reasons[len(reasons)-1]}
		}
	}
	if len(selected) == 0 {
		return nil, refusal{http.StatusConflict, strings.Join(reasons, "\n")}
	}
	if kind == allProbes {
		return selected, nil
	}
	return slices.DeleteFunc(selected, func(k string) bool { return a.Probes[k] != a.Probes[kind] }), nil
}

// recoverProbes carries out POST /recover: it ends what /fail and, without probe=, /slow began.
func (a *Answerer) recoverProbes(query url.Values) (commandResult, error) {
	if !query.Has("probe") {
		a.updateFaults(func(f *faultState) { *f = faultState{} })
		return commandResult{text: "All probes succeed again, and nothing is slow."}, nil
	}
	kinds, err := a.selectProbes(query.Get("probe"))
	if err != nil {
		return commandResult{}, err
	}
	a.updateFaults(func(f *faultState) {
		for _, k := range kinds {
			delete(f.failingUntil, k)
		}
	})
	return commandResult{text: "These probes are answered with 200 again: " + strings.Join(kinds, ", ") + "."}, nil
}

// delayAnswers carries out POST /slow.
func (a *Answerer) delayAnswers(query url.Values) (commandResult, error) {
	if !query.Has("delay") {
		return commandResult{}, badRequest(
			"delay is missing: a duration from 0s to %s is needed, such as 2s.", maxDelay,
		)
	}
	delay, err := parseDuration(query, "delay", maxDelay)
	if err != nil {
		return commandResult{}, err
	}
	until, err := parseFaultEnd(query)
	if err != nil {
		return commandResult{}, err
	}
	a.updateFaults(func(f *faultState) { f.delay, f.delayedUntil = delay, until })
	if delay == 0 {
		return commandResult{text: "Every answer comes at once."}, nil
	}
	return commandResult{text: fmt.Sprintf("Every answer but those to commands comes %s late, %s. A probe fails that waits for longer than its timeoutSeconds (1 unless given).",
		delay, describeEnd(until))}, nil
}

// exitContainer carries out POST /exit.
func (a *Answerer) exitContainer(query url.Values) (commandResult, error) {
	code := uint64(0)
	if text := query.Get("code"); text != "" {
		var err error
		if code, err = strconv.ParseUint(text, 10, 8); err != nil {
			return commandResult{}, badRequest("code=%q: a number from 0 to 255 is needed.", text)
		}
	}
	after, err := parseDuration(query, "after", maxDelay)
	if err != nil {
		return commandResult{}, err
	}
	when := "now"
	if after > 0 {
		when = "in " + after.String()
	}
	return commandResult{
		text: fmt.Sprintf("Container %s exits with code %d %s. Whether it is started again is the restartPolicy's to say, and when, the kubelet's back-off.",
			a.Identity().Container, code, when),
		afterReply: func() { time.AfterFunc(after, func() { a.Exit(uint8(code), "asked to exit over HTTP") }) },
	}, nil
}

// parseFaultEnd returns when a fault ends that begins now, from for=; the zero time without it.
func parseFaultEnd(query url.Values) (time.Time, error) {
	duration, err := parseDuration(query, "for", maxFaultDuration)
	if err != nil || !query.Has("for") {
		return time.Time{}, err
	}
	return time.Now().Add(duration), nil
}

// describeEnd says until when a fault lasts that ends then.
func describeEnd(end time.Time) string {
	if end.IsZero() {
		return "until POST /recover"
	}
	return "until " + end.UTC().Format("15:04:05") + " UTC or POST /recover"
}

// matchProbes returns the kinds of probes that a request may be: it comes from a kubelet, and
// arrives at the port and URI of the probe.
func (a *Answerer) matchProbes(r *http.Request) []string {
	if !strings.HasPrefix(r.UserAgent(), "kube-probe/") {
		return nil
	}
	var port uint16
	if local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok {
		if at, err := netip.ParseAddrPort(local.String()); err == nil {
			port = at.Port()
		}
	}
	var kinds []string
	for _, kind := range probeKinds {
		if p, declared := a.Probes[kind]; declared && p.UnfitReason == "" && p.Port == port &&
			p.URI == r.URL.RequestURI() {
			kinds = append(kinds, kind)
		}
	}
	return kinds
}
