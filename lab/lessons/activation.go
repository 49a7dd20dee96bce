package lessons

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/lab"
	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/cluster/local"
	"github.com/ccmlab/ccmlab/lab/process"
	"github.com/ccmlab/ccmlab/lab/state"
	"github.com/ccmlab/ccmlab/lab/status"
	"github.com/ccmlab/ccmlab/lab/timeline"
)

// objects are the API server's paths, by variable.
var objects = map[string]string{
	"nodes": "/api/v1/nodes", "pods": "/api/v1/pods", "services": "/api/v1/services",
	"configmaps":  "/api/v1/configmaps",
	"deployments": "/apis/apps/v1/deployments", "leases": "/apis/coordination.k8s.io/v1/leases",
	"roles": rbacPath + "roles", "clusterroles": rbacPath + "clusterroles",
	"rolebindings": rbacPath + "rolebindings", "clusterrolebindings": rbacPath + "clusterrolebindings",
}

const rbacPath = "/apis/rbac.authorization.k8s.io/v1/"

// fetchTimeout bounds the query for one variable.
const fetchTimeout = 10 * time.Second

// fetchError says which variable could not be queried, and why.
type fetchError struct {
	what string
	err  error
}

func (f *fetchError) Error() string { return fmt.Sprintf("cannot look at %s: %v", f.what, f.err) }
func (f *fetchError) Unwrap() error { return f.err }

// labsActivation gives the conditions of a lesson the current state of its labs. A
// variable is queried when a condition first uses it, and then kept.
type labsActivation struct {
	ctx  context.Context //nolint:containedctx // CEL asks for variables without one.
	labs map[string]*lab.Lab
	have map[string]any
	// entries are those of the timeline, and calls, once a condition has asked for them.
	entries map[bool][]timeline.Entry
}

// openLabs opens the labs of a folder, by role. The role of the lesson's own lab is "". Without that one the error is
// state.ErrNone: the progress names no lab once another command has ended the lesson.
func openLabs(ctx context.Context, root string, names map[string]string) (*labsActivation, error) {
	if names[""] == "" {
		return nil, fmt.Errorf("%w: another command has ended the lesson meanwhile", state.ErrNone)
	}
	w := &labsActivation{ctx: ctx, labs: map[string]*lab.Lab{}, have: map[string]any{}, entries: map[bool][]timeline.Entry{}}
	for role, name := range names {
		l, err := lab.OpenDir(filepath.Join(root, name))
		if err != nil {
			return nil, err
		}
		w.labs[role] = l
	}
	return w, nil
}

var _ cel.Activation = (*labsActivation)(nil)

// Parent implements cel.Activation.
func (l *labsActivation) Parent() cel.Activation { return nil }

// ResolveName implements cel.Activation.
func (l *labsActivation) ResolveName(name string) (any, bool) {
	if v, ok := l.have[name]; ok {
		return v, true
	}
	role, variable := "", name
	if before, after, dotted := strings.Cut(name, "."); dotted {
		role, variable = before, after
	}
	from := l.labs[role]
	if from == nil || !slices.Contains(variables, variable) {
		return nil, false
	}
	v, err := l.fetchVariable(from, variable)
	if err != nil {
		return types.WrapErr(&fetchError{name, err}), true
	}
	l.have[name] = v
	return v, true
}

// objectsOf returns the objects of a variable, by name, in the lab of a role.
func (l *labsActivation) objectsOf(role, variable string) (map[string]any, error) {
	name := variable
	if role != "" {
		name = role + "." + variable
	}
	v, _ := l.ResolveName(name)
	found, ok := v.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("%v", v)
	}
	return found, nil
}

func (l *labsActivation) fetchVariable(from *lab.Lab, variable string) (any, error) {
	ctx, cancel := context.WithTimeout(l.ctx, fetchTimeout)
	defer cancel()
	if path := objects[variable]; path != "" {
		kube, err := from.Cluster.Operator()
		if err != nil {
			return nil, err
		}
		return listObjects(ctx, kube, path)
	}
	switch variable {
	case "logs":
		return podLogs(ctx, from)
	case "runs":
		return componentsRunning(ctx, from)
	case "processes":
		return runningProcesses(from.Host)
	case "log":
		lines, err := process.Tail(local.Site{Lab: from.State}.LogFile(local.ComponentCCM), maxLogLines)
		if errors.Is(err, fs.ErrNotExist) { // The CCM was never started.
			err = nil
		}
		return lines, err
	case "own":
		return from.OwnCCM()
	case "calls":
		return l.callsByID()
	case "timeline":
		entries, err := l.timelineEntries(false, time.Time{})
		if err != nil {
			return nil, err
		}
		return asJSON(entries)
	}
	caller := cluster.CallerLab
	if variable == "faults" || variable == "tokens" { // They are shown to admins only.
		caller = cluster.CallerOperator
	}
	cloud, err := from.Cluster.Cloud().Client(caller)
	if err != nil {
		return nil, err
	}
	return fetchFromCloud(ctx, cloud, variable)
}

// listObjects lists the objects of an API path by key.
func listObjects(ctx context.Context, kube kubernetes.Interface, path string) (map[string]any, error) {
	data, err := kube.CoreV1().RESTClient().Get().AbsPath(path).Do(ctx).Raw()
	if err != nil {
		return nil, err
	}
	var found struct {
		Items []map[string]any `json:"items"`
	}
	if err := json.Unmarshal(data, &found); err != nil {
		return nil, err
	}
	out := map[string]any{}
	for _, o := range found.Items {
		namespace, _ := fieldAt(o, "metadata", "namespace").(string)
		name, _ := fieldAt(o, "metadata", "name").(string)
		out[keyOf(namespace, name)] = o
	}
	return out, nil
}

// podLogs returns the latest lines of the pods in namespace "default". A pod whose container has not started has none.
func podLogs(ctx context.Context, l *lab.Lab) (map[string]any, error) {
	kube, err := l.Cluster.Operator()
	if err != nil {
		return nil, err
	}
	api := kube.CoreV1().Pods(corev1.NamespaceDefault)
	pods, err := api.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	out := map[string]any{}
	for _, p := range pods.Items {
		lines, err := api.GetLogs(p.Name, &corev1.PodLogOptions{TailLines: new(int64(200))}).DoRaw(ctx)
		if err == nil {
			out[p.Name] = string(lines)
		}
	}
	return out, nil
}

// keyOf leaves out the namespace "default".
func keyOf(namespace, name string) string {
	if namespace == "" || namespace == "default" {
		return name
	}
	return namespace + "/" + name
}

func componentsRunning(ctx context.Context, l *lab.Lab) (map[string]any, error) {
	st, err := status.Of(ctx, l)
	if err != nil {
		return nil, err
	}
	out := map[string]any{local.ComponentCCM: false} // Which a lab without one does not list.
	for _, c := range st.Components {
		out[c.Name] = c.State == cluster.StateRunning
	}
	return out, nil
}

// maxLogLines is how many lines of the CCM's log a condition is evaluated on.
const maxLogLines = 1000

// runningProcesses describes the processes of the lab's components.
func runningProcesses(host process.Host) (any, error) {
	running, err := host.Running()
	out := map[string]any{}
	for name, p := range running {
		out[name] = map[string]any{"began": p.Started().Format(time.RFC3339Nano), "paused": p.Paused()}
	}
	return out, err
}

func fetchFromCloud(ctx context.Context, cloud *client.Client, variable string) (any, error) {
	switch variable {
	case "instances":
		all, err := cloud.ListInstances(ctx, client.InstanceFilter{})
		return mapByKey(all, err, func(i api.Instance) string { return i.Name })
	case "routes":
		all, err := cloud.ListRoutes(ctx, client.RouteFilter{})
		return mapByKey(all, err, func(r api.Route) string { return r.Name })
	case "faults":
		all, err := cloud.ListFaults(ctx)
		return mapByKey(all, err, func(f api.Fault) string { return f.ID })
	case "tokens":
		own, err := cloud.Project(ctx)
		if err != nil {
			return nil, err
		}
		all, err := cloud.ListTokens(ctx, own.ID)
		return mapByKey(all, err, func(t api.Token) string { return t.Name })
	case "balancers":
		all, err := cloud.ListLoadBalancers(ctx, client.LoadBalancerFilter{})
		return mapByKey(all, err, balancerKey)
	case "stats":
		all, err := listStats(ctx, cloud)
		return mapByKey(all, err, func(s balancerStats) string { return s.key })
	default:
		return countCalls(ctx, cloud)
	}
}

// balancerKey is the key of the balancer's Service in the variable services.
func balancerKey(lb api.LoadBalancer) string {
	namespace, name, ok := strings.Cut(lb.Tags[contract.TagService], "/")
	if !ok {
		return lb.Name
	}
	return keyOf(namespace, name)
}

type balancerStats struct {
	*api.LoadBalancerStats
	key string
}

func listStats(ctx context.Context, cloud *client.Client) ([]balancerStats, error) {
	all, err := cloud.ListLoadBalancers(ctx, client.LoadBalancerFilter{})
	if err != nil {
		return nil, err
	}
	var out []balancerStats
	for _, lb := range all {
		s, err := cloud.LoadBalancerStats(ctx, lb.ID)
		if client.IsNotFound(err) {
			continue // It went meanwhile.
		}
		if err != nil {
			return nil, err
		}
		out = append(out, balancerStats{s, balancerKey(lb)})
	}
	return out, nil
}

// countCalls counts the cloud's calls by caller and operation.
func countCalls(ctx context.Context, cloud *client.Client) (map[string]any, error) {
	sums, err := cloud.SumAudit(ctx, client.AuditFilter{}, api.AuditByToken, api.AuditByOperation)
	if err != nil {
		return nil, err
	}
	out := map[string]any{}
	for _, s := range sums {
		caller, operation := s.Token, s.Operation
		of, ok := out[caller].(map[string]any)
		if !ok {
			of = map[string]any{}
			out[caller] = of
		}
		of[operation] = s.Calls
	}
	return out, nil
}

// mapByKey returns the JSON of each object, by key.
func mapByKey[T any](all []T, err error, key func(T) string) (map[string]any, error) {
	if err != nil {
		return nil, err
	}
	out := map[string]any{}
	for _, v := range all {
		if out[key(v)], err = asJSON(v); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func asJSON(v any) (any, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	var out any
	return out, json.Unmarshal(data, &out)
}

// maxCalls is how many of each caller's latest calls a task's condition is evaluated on.
const maxCalls = 2000

// timelineEntries returns the timeline's entries since a time, or the calls of the
// cloud's API.
func (l *labsActivation) timelineEntries(calls bool, since time.Time) ([]timeline.Entry, error) {
	if _, ok := l.entries[calls]; !ok {
		from := l.labs[""]
		all, err := from.Timeline().Read()
		if err == nil && calls {
			all, err = l.listCalls(from, all)
		}
		if err != nil {
			return nil, &fetchError{"the timeline", err}
		}
		l.entries[calls] = all
	}
	early := func(e timeline.Entry) bool { return e.Time.Before(since) }
	return slices.DeleteFunc(slices.Clone(l.entries[calls]), early), nil
}

// callsByID returns the latest calls of the cloud's API by their request IDs.
func (l *labsActivation) callsByID() (any, error) {
	entries, err := l.timelineEntries(true, time.Time{})
	return mapByKey(entries, err, func(e timeline.Entry) string { return e.Call.RequestID })
}

// listCalls returns the latest calls as entries, with subjects by name as in `lab
// watch`. The names come from the entries recorded. The lab's own calls are left out: they
// are most, and would push out the others.
func (l *labsActivation) listCalls(from *lab.Lab, recorded []timeline.Entry) ([]timeline.Entry, error) {
	ctx, cancel := context.WithTimeout(l.ctx, fetchTimeout)
	defer cancel()
	cloud, err := from.Cloud()
	if err != nil {
		return nil, err
	}
	var merge timeline.Merge
	merge.Add(time.Now(), recorded...)
	tokens, err := cloud.SumAudit(ctx, client.AuditFilter{}, api.AuditByToken)
	if err != nil {
		return nil, err
	}
	for _, t := range tokens {
		if t.Token == "" || t.Token == cluster.CallerLab {
			continue
		}
		newest, err := cloud.ListAudit(ctx, client.AuditFilter{Token: t.Token}, maxCalls)
		if err != nil {
			return nil, err
		}
		for _, a := range slices.Backward(newest) {
			merge.Add(time.Now(), from.Timeline().Call(a))
		}
	}
	return slices.DeleteFunc(merge.All(), func(e timeline.Entry) bool { return e.Source != timeline.SourceCall }), nil
}

// withEntry adds an entry as the variable e.
func (l *labsActivation) withEntry(e timeline.Entry) (cel.Activation, error) {
	v, err := asJSON(e)
	if err != nil {
		return nil, err
	}
	return entryActivation{l, v}, nil
}

type entryActivation struct {
	*labsActivation
	entry any
}

// ResolveName implements cel.Activation.
func (e entryActivation) ResolveName(name string) (any, bool) {
	if name == entryName {
		return e.entry, true
	}
	return e.labsActivation.ResolveName(name)
}
