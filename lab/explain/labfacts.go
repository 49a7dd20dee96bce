package explain

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

// Names of components, as `lab status` prints them.
const (
	componentCloud     = "fakecloud"
	componentCCM       = "ccm"
	componentAgent     = "lab-agent"
	componentAPIServer = "kube-apiserver"
	componentEtcd      = "etcd"
	componentKCM       = "kube-controller-manager"
	componentScheduler = "kube-scheduler"
)

// LabFacts are the facts that Nodes and Services have in common: the lab's
// processes, the CCM's calls of the cloud, and fault rules.
type LabFacts struct {
	// LabName is the --name of the commands that are suggested.
	LabName string
	// NoProvider tells that the cluster has no external cloud provider, so no CCM.
	NoProvider bool
	// OtherCCM is the program that is the lab's CCM in place of its own; "" if it is its own.
	OtherCCM string
	// NoBalancers tells that this program makes no load balancers.
	NoBalancers bool
	// CCMRefusal says why the cloud refuses the CCM's calls; "" if it does not.
	CCMRefusal string
	Now        time.Time
	// Project is the ID of the lab's project in the cloud, "" if unknown.
	Project string
	// Components are the lab's processes. They leave out what the lab does not run
	// itself, such as the control plane of an external cluster.
	Components []cluster.Component
	// Processes are the components' processes on this machine, by component.
	Processes map[string]Process
	// ClusterError and CloudError say why the API server and the cloud could not be
	// queried; "" if they could.
	ClusterError, CloudError string
	// ClusterForbids tells that the API server answered 403.
	ClusterForbids bool
	// Faults are the cloud's fault rules. Calls are the CCM's latest calls, newest
	// first.
	Faults []api.Fault
	Calls  []api.AuditEntry
	// Missing lists what else could not be queried, and why.
	Missing []string
}

// Process is a component's process on this machine.
type Process struct {
	PID int
	// Began is when it was started, zero if unknown.
	Began time.Time
	// Paused tells that a signal or a debugger has stopped it: it exists and answers
	// nothing.
	Paused bool
}

// bootPeriod is how long after its start a machine counts as booting.
const bootPeriod = 15 * time.Second

// isProcessBooting tells whether a component's process was started less than
// bootPeriod ago.
func (a LabFacts) isProcessBooting(name string) bool {
	return a.Now.Sub(a.Processes[name].Began) < bootPeriod
}

// labCommand returns a `lab` command line for this lab.
func (a LabFacts) labCommand(args string) string {
	if a.LabName == "lab" {
		return "lab " + args
	}
	return "lab " + args + " --name " + a.LabName
}

// isComponentStopped tells whether a component is listed and does not run.
func (a LabFacts) isComponentStopped(name string) bool {
	c := a.findComponent(name)
	return c != nil && c.State != cluster.StateRunning
}

func (a LabFacts) findComponent(name string) *cluster.Component {
	if i := slices.IndexFunc(a.Components, func(c cluster.Component) bool { return c.Name == name }); i >= 0 {
		return &a.Components[i]
	}
	return nil
}

// haltReason says why a component does no work; "" if none is known.
func (a LabFacts) haltReason(name string) string {
	switch {
	case a.isComponentStopped(name):
		return "does not run"
	case a.Processes[name].Paused:
		return "is stopped by a signal"
	}
	return ""
}

// addHaltedComponents adds which of the components do not run or are paused, and
// the commands that bring them back.
func (a LabFacts) addHaltedComponents(f *finding, names ...string) *finding {
	ended := false
	for _, name := range names {
		switch p := a.Processes[name]; {
		case a.isComponentStopped(name):
			f.addFact(Lab, "%s does not run", name)
			ended = true
		case p.Paused:
			f.addFact(Lab, "%s (pid %d) is stopped by a signal, and answers nobody", name, p.PID).
				addStep("have it go on", "kill -CONT %d", p.PID)
		}
	}
	if !ended {
		return f
	}
	up := "up"
	if ccm := a.findComponent(componentCCM); ccm != nil && !ccm.Wanted { // It stays as the person wants it.
		up += " --without-ccm"
	}
	return f.addStep("bring back what has ended", "%s", a.labCommand(up))
}

// findAPIServerDown says why the API server does not answer. Nothing is known of
// the object then.
func (a LabFacts) findAPIServerDown() *finding {
	f := newFinding(Unknown, "cannot be explained: the API server does not answer")
	if a.ClusterForbids {
		return newFinding(Unknown, "cannot be explained: the lab's own user may not look at all of it").
			addFact(Cluster, "%s", a.ClusterError).
			addStep("give the lab the rights of this version", "%s", a.labCommand("up"))
	}
	switch {
	case a.isComponentStopped(componentAPIServer), a.isComponentStopped(componentEtcd):
		f.verdict = "cannot be explained: the control plane does not run"
	case a.haltReason(componentAPIServer)+a.haltReason(componentEtcd) != "":
		f.verdict = "cannot be explained: the control plane is stopped by a signal"
	}
	f.addFact(Cluster, "%s", a.ClusterError)
	a.addHaltedComponents(
		f, componentEtcd, componentAPIServer, componentKCM, componentScheduler, componentCloud, componentAgent,
	)
	if len(f.next) == 0 {
		f.addStep("see what there is", "%s", a.labCommand("status"))
	}
	return f
}

// findIdleCCM says why no CCM works in this lab; nil if one does.
func (a LabFacts) findIdleCCM() *finding {
	c := a.findComponent(componentCCM)
	switch {
	case a.NoProvider:
		return newFinding(NotReady, "this cluster has no cloud controller manager").
			addFact(Lab, "the lab was brought up with --cloud-provider none").
			addStep("bring up another lab, that has one", "lab up --name with-ccm")
	case a.Processes[componentCCM].Paused:
		return a.addHaltedComponents(
			newFinding(NotReady, "the cloud controller manager is stopped by a signal"), componentCCM,
		)
	case c == nil || c.State == cluster.StateRunning:
		return nil
	case !c.Wanted:
		return newFinding(NotReady, "no cloud controller manager runs").
			addFact(Lab, "the CCM is stopped, as it was asked to be").
			addStep("start the CCM", "%s", a.labCommand("ccm start"))
	}
	f := newFinding(NotReady, "the cloud controller manager does not run, though it should").
		addFact(Lab, "the CCM has ended, though it is wanted")
	if a.haltReason(componentAgent) != "" {
		return a.addHaltedComponents(f, componentAgent)
	}
	return f.addStep("see why it ended; it is started again by itself", "%s", a.labCommand("logs ccm --tail 30"))
}

// callScope selects the CCM's calls of the cloud that concern a Node or a Service.
type callScope struct {
	// words: each operation has one of them in its name.
	words []string
	// kind is the cloud's resource kind. The resource may have no ID yet.
	kind api.ResourceKind
	id   string
	tags api.Tags
}

// Words in the names of the operations that the CCM needs for Nodes and Services.
var (
	nodeWords    = []string{"Instance", "Project"}
	serviceWords = []string{"LoadBalancer", "Address", "Project"}
)

// cloudReasonText describes those of the CCM's Event reasons that concern the cloud
// and not the object.
var cloudReasonText = map[string]string{
	contract.ReasonCloudUnavailable:  "the CCM cannot use the cloud",
	contract.ReasonCloudThrottled:    "the cloud throttles the CCM",
	contract.ReasonCloudAccessDenied: "the cloud refuses the CCM's token",
	contract.ReasonWrongProject:      "the CCM's token is of another project",
}

// findCCMTrouble says why the CCM cannot work for the object: it does not run, the
// cloud does not run, or the cloud refuses the CCM's calls. It is nil if nothing
// keeps the CCM from its work.
func (a LabFacts) findCCMTrouble(of callScope, events []corev1.Event) *finding {
	if f := a.findIdleCCM(); f != nil {
		return f
	}
	if why := a.haltReason(componentCloud); why != "" {
		return a.addHaltedComponents(newFinding(NotReady, "the cloud %s", why), componentCloud)
	}
	if f := a.findFaultsOnCalls(of); f != nil {
		return f
	}
	if f := a.findRefusedCCM(); f != nil {
		return f
	}
	if f := a.findFailedCalls(of); f != nil {
		return f
	}
	e := a.newestCurrentWarning(events)
	if e == nil || cloudReasonText[e.Reason] == "" {
		return nil
	}
	return newFinding(NotReady, "%s", cloudReasonText[e.Reason]).addEvent(a.Now, e).
		addStep("see what the CCM says", "%s", a.labCommand("logs ccm --tail 30"))
}

// findRefusedCCM reports that the cloud refuses all of the CCM's calls; nil while no CCM works, or no cloud.
func (a LabFacts) findRefusedCCM() *finding {
	if a.CCMRefusal == "" || a.findIdleCCM() != nil || a.haltReason(componentCloud) != "" {
		return nil
	}
	return newFinding(NotReady, "the cloud refuses the CCM's token").addFact(Cloud, "%s", a.CCMRefusal).
		addStep("see what the CCM says", "%s", a.labCommand("logs ccm --tail 30")).
		addStep("put its token back, or end the lab, whose state stays", "%s", a.labCommand("down --keep-state")).
		addWait("delete the token's file: the cloud makes a new one").
		addStep("go on", "%s", a.labCommand("up"))
}

// findLockedOut reports about an object that is well that the CCM does not follow it any more.
func (a LabFacts) findLockedOut() *finding {
	refused := a.findRefusedCCM()
	if refused == nil {
		return nil
	}
	return newFinding(Degraded, "is as the CCM left it, and the CCM does not follow it any more: %s", refused.verdict).
		addCause(refused)
}

// findFaultsOnCalls reports fault rules that have hit the CCM's calls in scope.
func (a LabFacts) findFaultsOnCalls(of callScope) *finding {
	var f *finding
	for _, rule := range a.Faults {
		if effect := effectOnCalls(rule.Effect); effect != "" && rule.Hits > 0 && a.isFaultInForce(rule) &&
			a.matchesFault(rule, of) {
			if f == nil {
				f = newFinding(NotReady, "the cloud answers the CCM wrongly, by a fault rule")
			}
			f.addFact(Cloud, "fault %s: %s, applied to %s so far", rule.ID, effect, formatCount(rule.Hits, "call"))
			f.addStep("lift the fault", "fakecloud faults delete %s", rule.ID)
		}
	}
	if f != nil {
		a.addFailedCalls(f, of)
	}
	return f
}

func (a LabFacts) isFaultInForce(rule api.Fault) bool {
	return !rule.Spent && (rule.Match.Project == "" || a.Project == "" || rule.Match.Project == a.Project)
}

// matchesFault tells whether a rule matches the CCM's calls in scope.
func (a LabFacts) matchesFault(rule api.Fault, of callScope) bool {
	m := rule.Match
	key, value, valued := strings.Cut(m.Tag, "=")
	tag, tagged := of.tags[key]
	return (m.Token == "" || m.Token == cluster.CallerCCM) &&
		(m.Resource == "" || m.Resource == of.id) &&
		(m.Tag == "" || tagged && (!valued || tag == value)) &&
		(len(m.Operations) == 0 || slices.ContainsFunc(m.Operations, of.needsOperation))
}

func (c callScope) needsOperation(operation string) bool {
	return slices.ContainsFunc(c.words, func(w string) bool { return strings.Contains(operation, w) })
}

// addLifecycleFaults adds fault rules that keep a resource from reaching its state.
func (a LabFacts) addLifecycleFaults(f *finding, of callScope) *finding {
	for _, rule := range a.Faults {
		what := ""
		switch e := rule.Effect; {
		case e.Stuck:
			what = "keeps resources in states like pending and provisioning"
		case e.Fail != "":
			what = fmt.Sprintf("has what is built end in error (%s)", e.Fail)
		case e.Crash && of.kind == api.ResourceInstance:
			what = "crashes instances"
		case e.ZoneOutage != "" && of.kind == api.ResourceInstance:
			what = "has zone " + e.ZoneOutage + " lost"
		}
		if what == "" || !a.isFaultInForce(rule) || !a.matchesFault(rule, of) || len(rule.Match.Kinds) > 0 &&
			!slices.Contains(rule.Match.Kinds, of.kind) {
			continue
		}
		f.addFact(Cloud, "fault %s %s", rule.ID, what).addStep("lift the fault", "fakecloud faults delete %s", rule.ID)
	}
	return f
}

// effectOnCalls describes a fault's effect on a call. It is "" for a mere delay,
// which a CCM tolerates, and for effects on resources.
func effectOnCalls(e api.FaultEffect) string {
	switch {
	case e.Status != 0:
		return fmt.Sprintf("calls are answered %d %s", e.Status, http.StatusText(e.Status))
	case e.DialectCode != "":
		return "calls of a dialect are answered with its error " + e.DialectCode
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

// failedCallMaxAge is how long a failed call counts as the current situation if no
// call of the same operation follows it.
const failedCallMaxAge = 5 * time.Minute

// newestFailedCalls returns the newest call of each operation in scope if it failed
// for a reason that is not the object itself.
func (a LabFacts) newestFailedCalls(of callScope) (all []api.AuditEntry) {
	seen := map[string]bool{}
	for _, c := range a.Calls {
		if !of.needsOperation(c.Operation) || seen[c.Operation] {
			continue
		}
		seen[c.Operation] = true
		denied := c.Status == 0 || c.Status == http.StatusUnauthorized || c.Status == http.StatusForbidden ||
			c.Status == http.StatusTooManyRequests || c.Status >= 500
		quota := c.Code == string(api.QuotaExceeded) // Not about who calls, but about what is asked for.
		if denied && !quota && a.Now.Sub(c.Time) < failedCallMaxAge {
			all = append(all, c)
		}
	}
	return all
}

// addFailedCalls adds the CCM's failed calls in scope.
func (a LabFacts) addFailedCalls(f *finding, of callScope) {
	for _, c := range a.newestFailedCalls(of) {
		answer := strconv.Itoa(c.Status) + " " + c.Code
		if c.Status == 0 {
			answer = "no answer: it was broken off"
		}
		f.addFact(
			Cloud, "the CCM's latest call of %s, %s ago: %s", c.Operation, formatAge(a.Now, c.Time),
			strings.TrimSpace(answer),
		)
	}
}

// findFailedCalls reports that the CCM's calls fail, by the cloud's audit.
func (a LabFacts) findFailedCalls(of callScope) *finding {
	all := a.newestFailedCalls(of)
	if len(all) == 0 {
		return nil
	}
	f := newFinding(NotReady, "the cloud does not answer the CCM as it should")
	switch all[0].Status {
	case http.StatusUnauthorized, http.StatusForbidden:
		f.verdict = "the cloud refuses the CCM's token"
	case http.StatusTooManyRequests:
		f.verdict = "the cloud throttles the CCM"
	}
	a.addFailedCalls(f, of)
	return f.addStep(
		"see all of its calls that failed", "fakecloud audit list --token ccm --status %s", statusClass(all[0].Status),
	)
}

func statusClass(status int) string {
	if status == 0 {
		return string(api.AuditStatusNone)
	}
	return fmt.Sprintf("%dxx", status/100)
}

// ccmEventSources are the sources of the Events that a CCM process writes: its own,
// and those of upstream's controllers in it.
var ccmEventSources = []string{
	contract.EventSource, "cloud-node-controller", "cloud-node-lifecycle-controller", "service-controller",
	"route_controller",
}

func isFromCCM(e *corev1.Event) bool {
	return slices.Contains(ccmEventSources, e.Source.Component) ||
		slices.Contains(ccmEventSources, e.ReportingController)
}

// newestCCMWarning is the newest Warning of the CCM itself, which reports a cause
// once. Upstream's controllers only repeat the errors that it returned.
func newestCCMWarning(events []corev1.Event) *corev1.Event {
	return newestEvent(events, func(e *corev1.Event) bool {
		return e.Type == corev1.EventTypeWarning && e.Source.Component == contract.EventSource
	})
}

// newestCurrentWarning is the CCM's newest Warning if it may still hold. One about
// the object holds until the object changes. One about the cloud ends silently: it
// no longer holds after failedCallMaxAge, or once a later Event reports success.
func (a LabFacts) newestCurrentWarning(events []corev1.Event) *corev1.Event {
	e := newestCCMWarning(events)
	if e == nil || cloudReasonText[e.Reason] == "" {
		return e
	}
	done := newestEventWithReason(events, "EnsuredLoadBalancer", "UpdatedLoadBalancer")
	if a.Now.Sub(eventTime(e)) >= failedCallMaxAge || done != nil && !eventTime(e).After(eventTime(done)) {
		return nil
	}
	return e
}

func newestEventWithReason(events []corev1.Event, reasons ...string) *corev1.Event {
	return newestEvent(events, func(e *corev1.Event) bool { return slices.Contains(reasons, e.Reason) })
}

func newestEvent(events []corev1.Event, which func(*corev1.Event) bool) (last *corev1.Event) {
	for i := range events {
		if e := &events[i]; which(e) && (last == nil || !eventTime(e).Before(eventTime(last))) {
			last = e
		}
	}
	return last
}

// eventTime is when an Event was last observed. Recorders differ in the field that
// they write it to.
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

// addEvent adds an Event's message as a fact; nil adds nothing.
func (f *finding) addEvent(now time.Time, e *corev1.Event) *finding {
	if e == nil {
		return f
	}
	where := Cluster
	if isFromCCM(e) {
		where = CCM
	}
	return f.addFact(
		where, "event %s, %s ago: %s", e.Reason, formatAge(now, eventTime(e)), strings.TrimSpace(e.Message),
	)
}

// similarNames returns those of all that name may be a typo of.
func similarNames(name string, all []string) []string {
	var near []string
	for _, other := range all {
		if levenshteinDistance(name, other) <= 2 || len(name) > 2 && strings.Contains(other, name) {
			near = append(near, other)
		}
	}
	slices.Sort(near)
	return slices.Compact(near)
}

// levenshteinDistance counts the insertions, deletions and replacements of bytes
// that turn a into b.
func levenshteinDistance(a, b string) int {
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
