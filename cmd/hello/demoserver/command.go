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
	// maxFor bounds how long a command lasts that is to end by itself.
	maxFor = 24 * time.Hour
)

// Help lists all that a container understands.
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

// The kinds of probes, in the order in which a kubelet comes to them.
const (
	Startup   = "startup"
	Liveness  = "liveness"
	Readiness = "readiness"
	allProbes = "all"
)

var probeKinds = []string{Startup, Liveness, Readiness}

// consequence is what the kubelet makes of a probe that fails failureThreshold
// times in a row.
var consequence = map[string]string{
	Startup:   "It is asked only until it succeeds for the first time; the other probes wait for that, and the container is restarted when that takes too long.",
	Liveness:  "After failureThreshold failures in a row the kubelet restarts the container.",
	Readiness: "After failureThreshold failures in a row the pod is not Ready, and Services send it no new connections. It runs on.",
}

// Probe is how the kubelet asks a container.
type Probe struct {
	// Port and URI (the path and query) are where an HTTP probe asks.
	Port uint16
	URI  string
	// Unfit says, unless empty, why such a probe cannot be told to fail, and what
	// to do instead.
	Unfit string
}

func (p Probe) String() string { return fmt.Sprintf("GET %s on port %d", p.URI, p.Port) }

// told is what a container was told. It is not changed but replaced, so a copy
// stays true to its moment.
type told struct {
	// failing is until when, by kind. The zero time has no end, here and below.
	failing  map[string]time.Time
	delay    time.Duration
	delayEnd time.Time
}

func over(end time.Time) bool { return !end.IsZero() && !time.Now().Before(end) }

func (t told) fails(kind string) bool {
	end, failing := t.failing[kind]
	return failing && !over(end)
}

// late is by how much every answer is.
func (t told) late() time.Duration {
	if over(t.delayEnd) {
		return 0
	}
	return t.delay
}

// lines tell what still holds.
func (t told) lines() []string {
	lines := []string{}
	for _, kind := range probeKinds {
		if t.fails(kind) {
			lines = append(lines, fmt.Sprintf("the %s probe fails, %s", kind, until(t.failing[kind])))
		}
	}
	if late := t.late(); late > 0 {
		lines = append(lines, fmt.Sprintf("answers come %s late, %s", late, until(t.delayEnd)))
	}
	return lines
}

func (a *Answerer) now() told {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.told
}

// tell replaces what the container was told.
func (a *Answerer) tell(change func(*told)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.told.failing = maps.Clone(a.told.failing)
	if a.told.failing == nil {
		a.told.failing = map[string]time.Time{}
	}
	change(&a.told)
}

// refusal answers a command that changes nothing.
type refusal struct {
	code int
	text string
}

func (r refusal) Error() string { return r.text }

func badRequest(format string, arguments ...any) error {
	return refusal{http.StatusBadRequest, fmt.Sprintf(format, arguments...)}
}

// answered is the answer to a command, as JSON.
type answered struct {
	Message string   `json:"message"`
	Told    []string `json:"told"`
	Help    []string `json:"help,omitempty"`
}

// obeyed is a command that was carried out; then, unless nil, is what remains to
// be done when the answer is out.
type obeyed struct {
	text string
	then func()
}

// command obeys, and reports whether the request was a command. Commands are
// answered at once, however slow the container was told to be.
func (a *Answerer) command(w http.ResponseWriter, r *http.Request) bool {
	obey, parameters := a.obeys(r.URL.Path)
	if obey == nil {
		return false
	}
	query, err := parametersOf(r, parameters)
	if err == nil {
		var done obeyed
		if done, err = obey(query); err == nil {
			a.reply(w, r, done.text)
			if done.then != nil {
				done.then()
			}
			return true
		}
	}
	var refused refusal
	if !errors.As(err, &refused) {
		refused = refusal{http.StatusBadRequest, err.Error()}
	}
	a.refuse(w, r, refused)
	return true
}

// obeys returns what obeys a command, and its parameters.
func (a *Answerer) obeys(path string) (func(url.Values) (obeyed, error), []string) {
	switch path {
	case "/help":
		return func(url.Values) (obeyed, error) { return obeyed{text: Help}, nil }, nil
	case "/fail":
		return a.fail, []string{"probe", "for"}
	case "/recover":
		return a.restore, []string{"probe"}
	case "/slow":
		return a.slow, []string{"delay", "for"}
	case "/exit":
		return a.end, []string{"code", "after"}
	}
	return nil, nil
}

// parametersOf refuses those that would do nothing: a typing error is not to
// look like obedience.
func parametersOf(r *http.Request, known []string) (url.Values, error) {
	if r.Method != http.MethodPost && r.URL.Path != "/help" {
		return nil, refusal{http.StatusMethodNotAllowed, fmt.Sprintf("%s is a command: it needs POST, and this was %s.", r.URL.Path, r.Method)}
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

// reply is complete once it has been flushed, with its length known, whatever
// then becomes of a container that was told to exit.
func (a *Answerer) reply(w http.ResponseWriter, r *http.Request, message string) {
	lines := a.now().lines()
	if wantsJSON(r) {
		writeJSON(w, http.StatusOK, answered{Message: message, Told: lines})
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

func (a *Answerer) refuse(w http.ResponseWriter, r *http.Request, why refusal) {
	if why.code == http.StatusMethodNotAllowed {
		w.Header().Set("Allow", http.MethodPost)
	}
	if wantsJSON(r) {
		writeJSON(w, why.code, answered{Message: why.text, Told: a.now().lines(), Help: strings.Split(Help, "\n")})
		return
	}
	http.Error(w, why.text+"\n\n"+Help, why.code)
}

// fail makes probes fail. Those that ask at one place fail together.
func (a *Answerer) fail(query url.Values) (obeyed, error) {
	kind := query.Get("probe")
	end, err := endOf(query)
	if err != nil {
		return obeyed{}, err
	}
	chosen, err := a.fit(kind)
	if err != nil {
		return obeyed{}, err
	}
	var said []string
	for _, k := range chosen {
		said = append(said, fmt.Sprintf("The %s probe (%s) fails from now on, %s. %s", k, a.Probes[k], until(end), consequence[k]))
	}
	if kind != allProbes && len(chosen) > 1 {
		said = append(said, "They ask at one place, so they fail together: give each a path of its own to part them.")
	}
	a.tell(func(t *told) {
		for _, k := range chosen {
			t.failing[k] = end
		}
	})
	return obeyed{text: strings.Join(said, "\n")}, nil
}

// fit are the probes that a command is about, with those that ask at the same
// place.
func (a *Answerer) fit(kind string) ([]string, error) {
	if kind != allProbes && !slices.Contains(probeKinds, kind) {
		return nil, badRequest("probe=%q: readiness, liveness, startup or all is needed.", kind)
	}
	var fit, unfit []string
	for _, k := range probeKinds {
		p, declared := a.Probes[k]
		switch {
		case !declared:
			unfit = append(unfit, fmt.Sprintf("The container has no %s probe: add a %sProbe with httpGet to the pod's template.", k, k))
		case p.Unfit != "":
			unfit = append(unfit, fmt.Sprintf("The %s probe %s", k, p.Unfit))
		default:
			fit = append(fit, k)
			continue
		}
		if k == kind {
			return nil, refusal{http.StatusConflict, unfit[len(unfit)-1]}
		}
	}
	if len(fit) == 0 {
		return nil, refusal{http.StatusConflict, strings.Join(unfit, "\n")}
	}
	if kind == allProbes {
		return fit, nil
	}
	return slices.DeleteFunc(fit, func(k string) bool { return a.Probes[k] != a.Probes[kind] }), nil
}

// restore ends what fail and slow began.
func (a *Answerer) restore(query url.Values) (obeyed, error) {
	if !query.Has("probe") {
		a.tell(func(t *told) { *t = told{} })
		return obeyed{text: "All probes succeed again, and nothing is slow."}, nil
	}
	chosen, err := a.fit(query.Get("probe"))
	if err != nil {
		return obeyed{}, err
	}
	a.tell(func(t *told) {
		for _, k := range chosen {
			delete(t.failing, k)
		}
	})
	return obeyed{text: "These probes are answered with 200 again: " + strings.Join(chosen, ", ") + "."}, nil
}

// slow makes every answer late.
func (a *Answerer) slow(query url.Values) (obeyed, error) {
	if !query.Has("delay") {
		return obeyed{}, badRequest("delay is missing: a duration from 0s to %s is needed, such as 2s.", maxDelay)
	}
	delay, err := duration(query, "delay", maxDelay)
	if err != nil {
		return obeyed{}, err
	}
	end, err := endOf(query)
	if err != nil {
		return obeyed{}, err
	}
	a.tell(func(t *told) { t.delay, t.delayEnd = delay, end })
	if delay == 0 {
		return obeyed{text: "Every answer comes at once."}, nil
	}
	return obeyed{text: fmt.Sprintf("Every answer but those to commands comes %s late, %s. A probe fails that waits for longer than its timeoutSeconds (1 unless given).",
		delay, until(end))}, nil
}

// end ends the container.
func (a *Answerer) end(query url.Values) (obeyed, error) {
	code := uint64(0)
	if text := query.Get("code"); text != "" {
		var err error
		if code, err = strconv.ParseUint(text, 10, 8); err != nil {
			return obeyed{}, badRequest("code=%q: a number from 0 to 255 is needed.", text)
		}
	}
	after, err := duration(query, "after", maxDelay)
	if err != nil {
		return obeyed{}, err
	}
	when := "now"
	if after > 0 {
		when = "in " + after.String()
	}
	return obeyed{
		text: fmt.Sprintf("Container %s exits with code %d %s. Whether it is started again is the restartPolicy's to say, and when, the kubelet's back-off.",
			a.Identity().Container, code, when),
		then: func() { time.AfterFunc(after, func() { a.Exit(uint8(code), "asked to exit over HTTP") }) },
	}, nil
}

// endOf is the end of a command that is to last for=.
func endOf(query url.Values) (time.Time, error) {
	lasts, err := duration(query, "for", maxFor)
	if err != nil || !query.Has("for") {
		return time.Time{}, err
	}
	return time.Now().Add(lasts), nil
}

func until(end time.Time) string {
	if end.IsZero() {
		return "until POST /recover"
	}
	return "until " + end.UTC().Format("15:04:05") + " UTC or POST /recover"
}

// probedBy are the kinds of probes that a request is.
func (a *Answerer) probedBy(r *http.Request) []string {
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
		if p, declared := a.Probes[kind]; declared && p.Unfit == "" && p.Port == port && p.URI == r.URL.RequestURI() {
			kinds = append(kinds, kind)
		}
	}
	return kinds
}
