package explain

// What Nodes and Services have in common: the lab's processes, the CCM's calls
// of the cloud, faults, and Events.

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/lab/cluster"
)

// Names of components, as `lab status` shows them.
const (
	componentCloud     = "fakecloud"
	componentCCM       = "ccm"
	componentAgent     = "lab-agent"
	componentAPIServer = "kube-apiserver"
	componentEtcd      = "etcd"
	componentKCM       = "kube-controller-manager"
	componentScheduler = "kube-scheduler"
)

// Around is what Nodes and Services depend on.
type Around struct {
	// LabName is the lab's, for commands.
	LabName string
	// NoProvider tells that the cluster has no external cloud provider, so no CCM.
	NoProvider bool
	Now        time.Time
	// Project is the ID of the lab's project in the cloud, "" if unknown.
	Project string
	// Components are the lab's processes. What the lab does not run itself, as
	// the control plane of somebody's cluster, is not among them.
	Components []cluster.Component
	// Processes are those of components on this machine, by the components' names.
	Processes map[string]Process
	// ClusterError and CloudError are why the API server and the cloud could not
	// be asked; "" if they could.
	ClusterError, CloudError string
	// ClusterForbids tells that the API server did answer, and refused.
	ClusterForbids bool
	// Faults are the rules in the cloud, Calls the CCM's newest calls, the
	// newest first.
	Faults []api.Fault
	Calls  []api.AuditEntry
	// Missing is what else could not be found out, and why.
	Missing []string
}

// Process is what is known of a component's process on this machine.
type Process struct {
	PID int
	// Began is when it was started, zero if that is not known.
	Began time.Time
	// Paused tells that a signal or a debugger has stopped it: it is there, and
	// answers nobody.
	Paused bool
}

// bootTime is for how long a machine may be about to say what it has to say.
const bootTime = 15 * time.Second

// booting tells whether a process was started just now.
func (a Around) booting(name string) bool { return a.Now.Sub(a.Processes[name].Began) < bootTime }

// lab is a command of the lab.
func (a Around) lab(args string) string {
	if a.LabName == "lab" {
		return "lab " + args
	}
	return "lab " + args + " --name " + a.LabName
}

// stopped tells whether a component is known not to run.
func (a Around) stopped(name string) bool {
	c := a.component(name)
	return c != nil && c.State != cluster.StateRunning
}

func (a Around) component(name string) *cluster.Component {
	if i := slices.IndexFunc(a.Components, func(c cluster.Component) bool { return c.Name == name }); i >= 0 {
		return &a.Components[i]
	}
	return nil
}

// halted is what keeps a component from its work; "" if nothing is known to.
func (a Around) halted(name string) string {
	switch {
	case a.stopped(name):
		return "does not run"
	case a.Processes[name].Paused:
		return "is stopped by a signal"
	}
	return ""
}

// down tells which of the components do not run that should, or are paused, and
// how they come back.
func (a Around) down(f *finding, names ...string) *finding {
	ended := false
	for _, name := range names {
		switch p := a.Processes[name]; {
		case a.stopped(name):
			f.fact(Lab, "%s does not run", name)
			ended = true
		case p.Paused:
			f.fact(Lab, "%s (pid %d) is stopped by a signal, and answers nobody", name, p.PID).step("have it go on", "kill -CONT %d", p.PID)
		}
	}
	if !ended {
		return f
	}
	up := "up"
	if ccm := a.component(componentCCM); ccm != nil && !ccm.Wanted { // It stays as the person wants it.
		up += " --without-ccm"
	}
	return f.step("bring back what has ended", "%s", a.lab(up))
}

// unanswered is when the API server does not answer: of the object nothing is
// known then.
func (a Around) unanswered() *finding {
	f := found(Unknown, "cannot be explained: the API server does not answer")
	if a.ClusterForbids {
		return found(Unknown, "cannot be explained: the lab's own user may not look at all of it").fact(Cluster, "%s", a.ClusterError).
			step("give the lab the rights of this version", "%s", a.lab("up"))
	}
	switch {
	case a.stopped(componentAPIServer), a.stopped(componentEtcd):
		f.what = "cannot be explained: the control plane does not run"
	case a.halted(componentAPIServer)+a.halted(componentEtcd) != "":
		f.what = "cannot be explained: the control plane is stopped by a signal"
	}
	f.fact(Cluster, "%s", a.ClusterError)
	a.down(f, componentEtcd, componentAPIServer, componentKCM, componentScheduler, componentCloud, componentAgent)
	if len(f.next) == 0 {
		f.step("see what there is", "%s", a.lab("status"))
	}
	return f
}

// idleCCM is why there is no CCM at work, nil if there is one.
func (a Around) idleCCM() *finding {
	c := a.component(componentCCM)
	switch {
	case a.NoProvider:
		return found(NotReady, "this cluster has no cloud controller manager").
			fact(Lab, "the lab was brought up with --cloud-provider none").
			step("bring up another lab, that has one", "lab up --name with-ccm")
	case a.Processes[componentCCM].Paused:
		return a.down(found(NotReady, "the cloud controller manager is stopped by a signal"), componentCCM)
	case c == nil || c.State == cluster.StateRunning:
		return nil
	case !c.Wanted:
		return found(NotReady, "no cloud controller manager runs").
			fact(Lab, "the CCM is stopped, as it was asked to be").
			step("start the CCM", "%s", a.lab("ccm start"))
	}
	f := found(NotReady, "the cloud controller manager does not run, though it should").fact(Lab, "the CCM has ended, though it is wanted")
	if a.halted(componentAgent) != "" {
		return a.down(f, componentAgent)
	}
	return f.step("see why it ended; it is started again by itself", "%s", a.lab("logs ccm --tail 30"))
}

// about is what a Node's or a Service's calls of the cloud are about.
type about struct {
	// operations have one of these words in their name.
	words []string
	// kind is the cloud's, of the resource, which may have no ID yet.
	kind api.FaultMatchKinds
	id   string
	tags api.Tags
}

// Words in the names of the operations that the CCM needs for either.
var (
	nodeWords    = []string{"Instance", "Project"}
	serviceWords = []string{"LoadBalancer", "Address", "Project"}
)

// aboutCloud are the CCM's reasons that are not about the object, in words.
var aboutCloud = map[string]string{
	contract.ReasonCloudUnavailable: "the CCM cannot use the cloud", contract.ReasonCloudThrottled: "the cloud throttles the CCM",
	contract.ReasonCloudAccessDenied: "the cloud refuses the CCM's token", contract.ReasonWrongProject: "the CCM's token is of another project",
}

// ccmTrouble is why a CCM that may run cannot do its work, nil if nothing speaks
// against it: it is off, the cloud is, or the cloud refuses it.
func (a Around) ccmTrouble(of about, events []corev1.Event) *finding {
	if f := a.idleCCM(); f != nil {
		return f
	}
	if why := a.halted(componentCloud); why != "" {
		return a.down(found(NotReady, "the cloud %s", why), componentCloud)
	}
	if f := a.faulty(of); f != nil {
		return f
	}
	if f := a.refused(of); f != nil {
		return f
	}
	e := a.standing(events)
	if e == nil || aboutCloud[e.Reason] == "" {
		return nil
	}
	return found(NotReady, "%s", aboutCloud[e.Reason]).event(a.Now, e).step("see what the CCM says", "%s", a.lab("logs ccm --tail 30"))
}

// faulty is a fault that was made to happen to the CCM's calls.
func (a Around) faulty(of about) *finding {
	var f *finding
	for _, rule := range a.Faults {
		if effect := effectOnCalls(rule.Effect); effect != "" && rule.Hits > 0 && a.inForce(rule) && a.meant(rule, of) {
			if f == nil {
				f = found(NotReady, "the cloud answers the CCM wrongly, by a fault rule")
			}
			f.fact(Cloud, "fault %s: %s, applied to %s so far", rule.ID, effect, count(rule.Hits, "call"))
			f.step("lift the fault", "fakecloud faults delete %s", rule.ID)
		}
	}
	if f != nil {
		a.tellRefusals(f, of)
	}
	return f
}

func (a Around) inForce(rule api.Fault) bool {
	return !rule.Spent && (rule.Match.Project == "" || a.Project == "" || rule.Match.Project == a.Project)
}

// meant tells whether a rule is about the CCM's calls for this object.
func (a Around) meant(rule api.Fault, of about) bool {
	m := rule.Match
	key, value, valued := strings.Cut(m.Tag, "=")
	tag, tagged := of.tags[key]
	return (m.Token == "" || m.Token == cluster.CallerCCM) &&
		(m.Resource == "" || m.Resource == of.id) &&
		(m.Tag == "" || tagged && (!valued || tag == value)) &&
		(len(m.Operations) == 0 || slices.ContainsFunc(m.Operations, of.needs))
}

func (of about) needs(operation string) bool {
	return slices.ContainsFunc(of.words, func(w string) bool { return strings.Contains(operation, w) })
}

// lifeCycle tells of rules that keep a resource from becoming what it should.
func (a Around) lifeCycle(f *finding, of about) *finding {
	for _, rule := range a.Faults {
		what := ""
		switch e := rule.Effect; {
		case e.Stuck:
			what = "keeps resources in states like pending and provisioning"
		case e.Fail != "":
			what = fmt.Sprintf("has what is built end in error (%s)", e.Fail)
		case e.Crash && of.kind == api.FaultInstance:
			what = "crashes instances"
		case e.ZoneOutage != "" && of.kind == api.FaultInstance:
			what = "has zone " + e.ZoneOutage + " lost"
		}
		if what == "" || !a.inForce(rule) || !a.meant(rule, of) || len(rule.Match.Kinds) > 0 && !slices.Contains(rule.Match.Kinds, of.kind) {
			continue
		}
		f.fact(Cloud, "fault %s %s", rule.ID, what).step("lift the fault", "fakecloud faults delete %s", rule.ID)
	}
	return f
}

// effectOnCalls says what becomes of a call; "" for a delay alone, which a CCM
// lives with, and for what is no matter of calls.
func effectOnCalls(e api.FaultEffect) string {
	switch {
	case e.Status != 0:
		return fmt.Sprintf("calls are answered %d %s", e.Status, http.StatusText(e.Status))
	case e.Hang:
		return "calls are never answered"
	case e.Drop:
		return "connections are reset"
	case e.Body != nil:
		return "calls are answered with garbage"
	case e.EmptyList:
		return "lists are answered as empty"
	case e.PartialList > 0:
		return "lists are cut short"
	case e.Stale:
		return "reads are answered as they were before"
	case len(e.OmitFields) > 0:
		return "answers lack " + strings.Join(e.OmitFields, ", ")
	case e.Throttle != nil:
		return fmt.Sprintf("calls beyond %g a second are answered 429", e.Throttle.PerSecond)
	}
	return ""
}

// refusalFresh is for how long a call that failed says how things are, if none
// of its operation has been made since.
const refusalFresh = 5 * time.Minute

// refusals are the newest calls of each operation that the object needs, if they
// failed in a way that is not about the object itself.
func (a Around) refusals(of about) (all []api.AuditEntry) {
	seen := map[string]bool{}
	for _, c := range a.Calls {
		if !of.needs(c.Operation) || seen[c.Operation] {
			continue
		}
		seen[c.Operation] = true
		denied := c.Status == 0 || c.Status == http.StatusUnauthorized || c.Status == http.StatusForbidden || c.Status == http.StatusTooManyRequests || c.Status >= 500
		quota := deref(c.Code) == string(api.QuotaExceeded) // Not about who calls, but about what is asked for.
		if denied && !quota && a.Now.Sub(c.Time) < refusalFresh {
			all = append(all, c)
		}
	}
	return all
}

// tellRefusals adds the CCM's calls that failed.
func (a Around) tellRefusals(f *finding, of about) {
	for _, c := range a.refusals(of) {
		answer := strconv.Itoa(c.Status) + " " + deref(c.Code)
		if c.Status == 0 {
			answer = "no answer: it was broken off"
		}
		f.fact(Cloud, "the CCM's latest call of %s, %s ago: %s", c.Operation, age(a.Now, c.Time), strings.TrimSpace(answer))
	}
}

// refused is when the cloud's audit shows that the CCM's calls fail.
func (a Around) refused(of about) *finding {
	all := a.refusals(of)
	if len(all) == 0 {
		return nil
	}
	f := found(NotReady, "the cloud does not answer the CCM as it should")
	switch all[0].Status {
	case http.StatusUnauthorized, http.StatusForbidden:
		f.what = "the cloud refuses the CCM's token"
	case http.StatusTooManyRequests:
		f.what = "the cloud throttles the CCM"
	}
	a.tellRefusals(f, of)
	return f.step("see all of its calls that failed", "fakecloud audit list --token ccm --status %s", statusClass(all[0].Status))
}

func statusClass(status int) string {
	if status == 0 {
		return string(api.AuditStatusNone)
	}
	return fmt.Sprintf("%dxx", status/100)
}

// fromCCM are the sources of Events that a CCM writes: this one's, and those of
// upstream's controllers in it.
var fromCCM = []string{contract.EventSource, "cloud-node-controller", "cloud-node-lifecycle-controller", "service-controller", "route_controller"}

func byCCM(e *corev1.Event) bool {
	return slices.Contains(fromCCM, e.Source.Component) || slices.Contains(fromCCM, e.ReportingController)
}

// newestWarning of the CCM itself, which says a cause once; upstream's
// controllers only repeat what it returned to them.
func newestWarning(events []corev1.Event) *corev1.Event {
	return newest(events, func(e *corev1.Event) bool {
		return e.Type == corev1.EventTypeWarning && e.Source.Component == contract.EventSource
	})
}

// standing is the newest of these warnings that may still hold. What is about the
// object is said once and holds until it is mended; the cloud's troubles pass
// without a word, but for what the CCM does then.
func (a Around) standing(events []corev1.Event) *corev1.Event {
	e := newestWarning(events)
	if e == nil || aboutCloud[e.Reason] == "" {
		return e
	}
	done := newestOf(events, "EnsuredLoadBalancer", "UpdatedLoadBalancer")
	if a.Now.Sub(eventTime(e)) >= refusalFresh || done != nil && !eventTime(e).After(eventTime(done)) {
		return nil
	}
	return e
}

func newestOf(events []corev1.Event, reasons ...string) *corev1.Event {
	return newest(events, func(e *corev1.Event) bool { return slices.Contains(reasons, e.Reason) })
}

func newest(events []corev1.Event, which func(*corev1.Event) bool) (last *corev1.Event) {
	for i := range events {
		if e := &events[i]; which(e) && (last == nil || !eventTime(e).Before(eventTime(last))) {
			last = e
		}
	}
	return last
}

// eventTime is when an Event was last seen: which field says so differs from one
// recorder to another.
func eventTime(e *corev1.Event) time.Time {
	last := e.CreationTimestamp.Time
	times := []time.Time{e.FirstTimestamp.Time, e.LastTimestamp.Time, e.EventTime.Time}
	if e.Series != nil {
		times = append(times, e.Series.LastObservedTime.Time)
	}
	for _, t := range times {
		if t.After(last) {
			last = t
		}
	}
	return last
}

// event adds what an Event says; nil adds nothing.
func (f *finding) event(now time.Time, e *corev1.Event) *finding {
	if e == nil {
		return f
	}
	where := Cluster
	if byCCM(e) {
		where = CCM
	}
	return f.fact(where, "event %s, %s ago: %s", e.Reason, age(now, eventTime(e)), strings.TrimSpace(e.Message))
}

// meantNames are those of all that somebody may have meant by name.
func meantNames(name string, all []string) []string {
	var near []string
	for _, other := range all {
		if distance(name, other) <= 2 || len(name) > 2 && strings.Contains(other, name) {
			near = append(near, other)
		}
	}
	slices.Sort(near)
	return slices.Compact(near)
}

// distance is Levenshtein's: how many letters differ.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := before
			if a[i] != b[j] {
				change++
			}
			before = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
