package lessons

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"k8s.io/client-go/kubernetes"

	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/lab"
	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/timeline"
)

// objects are what the API server is asked for, by variable.
var objects = map[string]string{
	"nodes": "/api/v1/nodes", "pods": "/api/v1/pods", "services": "/api/v1/services", "configmaps": "/api/v1/configmaps",
	"deployments": "/apis/apps/v1/deployments", "leases": "/apis/coordination.k8s.io/v1/leases",
}

// fetchBound is how long something may take to answer.
const fetchBound = 10 * time.Second

// fetchError says what could not be looked at.
type fetchError struct {
	what string
	err  error
}

func (e *fetchError) Error() string { return fmt.Sprintf("cannot look at %s: %v", e.what, e.err) }
func (e *fetchError) Unwrap() error { return e.err }

// world is what there is now. What a condition does not speak of is not asked for,
// and nothing is twice.
type world struct {
	ctx  context.Context //nolint:containedctx // CEL asks for variables without one.
	labs map[string]*lab.Lab
	have map[string]any
}

// look opens the labs of a folder, by role; that of the lesson itself is "".
func look(ctx context.Context, root string, names map[string]string) (*world, error) {
	w := &world{ctx: ctx, labs: map[string]*lab.Lab{}, have: map[string]any{}}
	for role, name := range names {
		l, err := lab.OpenDir(filepath.Join(root, name))
		if err != nil {
			return nil, err
		}
		w.labs[role] = l
	}
	return w, nil
}

var _ cel.Activation = (*world)(nil)

// Parent implements cel.Activation.
func (w *world) Parent() cel.Activation { return nil }

// ResolveName implements cel.Activation.
func (w *world) ResolveName(name string) (any, bool) {
	if v, ok := w.have[name]; ok {
		return v, true
	}
	role, variable := "", name
	if before, after, dotted := strings.Cut(name, "."); dotted {
		role, variable = before, after
	}
	l := w.labs[role]
	if l == nil || !slices.Contains(variables, variable) {
		return nil, false
	}
	v, err := w.fetch(l, variable)
	if err != nil {
		return types.WrapErr(&fetchError{name, err}), true
	}
	w.have[name] = v
	return v, true
}

// all are the things of a variable in the lab of a role, by name.
func (w *world) all(role, variable string) (map[string]any, error) {
	name := variable
	if role != "" {
		name = role + "." + variable
	}
	v, _ := w.ResolveName(name)
	found, ok := v.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("%v", v)
	}
	return found, nil
}

func (w *world) fetch(l *lab.Lab, variable string) (any, error) {
	ctx, cancel := context.WithTimeout(w.ctx, fetchBound)
	defer cancel()
	if path := objects[variable]; path != "" {
		kube, err := l.Cluster.Operator()
		if err != nil {
			return nil, err
		}
		return listed(ctx, kube, path)
	}
	switch variable {
	case "runs":
		return running(ctx, l)
	case "own":
		return l.OwnCCM()
	}
	caller := cluster.CallerLab
	if variable == "faults" { // They are shown to admins only.
		caller = cluster.CallerOperator
	}
	cloud, err := l.Cluster.Cloud().Client(caller)
	if err != nil {
		return nil, err
	}
	return ofCloud(ctx, cloud, variable)
}

// listed are objects by their names.
func listed(ctx context.Context, kube kubernetes.Interface, path string) (map[string]any, error) {
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
		namespace, _ := at(o, "metadata", "namespace").(string)
		name, _ := at(o, "metadata", "name").(string)
		out[keyOf(namespace, name)] = o
	}
	return out, nil
}

// keyOf leaves out the namespace that everybody works in.
func keyOf(namespace, name string) string {
	if namespace == "" || namespace == "default" {
		return name
	}
	return namespace + "/" + name
}

func running(ctx context.Context, l *lab.Lab) (map[string]any, error) {
	st, err := l.Status(ctx)
	if err != nil {
		return nil, err
	}
	out := map[string]any{}
	for _, c := range st.Components {
		out[c.Name] = c.State == cluster.StateRunning
	}
	return out, nil
}

func ofCloud(ctx context.Context, cloud *client.Client, variable string) (any, error) {
	switch variable {
	case "instances":
		all, err := cloud.ListInstances(ctx, client.InstanceFilter{})
		return byKey(all, err, func(i api.Instance) string { return i.Name })
	case "routes":
		all, err := cloud.ListRoutes(ctx, client.RouteFilter{})
		return byKey(all, err, func(r api.Route) string { return r.Name })
	case "faults":
		all, err := cloud.ListFaults(ctx)
		return byKey(all, err, func(f api.Fault) string { return f.ID })
	case "balancers":
		all, err := cloud.ListLoadBalancers(ctx, client.LoadBalancerFilter{})
		return byKey(all, err, balancerKey)
	case "stats":
		all, err := statsOf(ctx, cloud)
		return byKey(all, err, func(s balancerStats) string { return s.key })
	default:
		return spentOn(ctx, cloud)
	}
}

// balancerKey is the Service's, as services has it.
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

func statsOf(ctx context.Context, cloud *client.Client) ([]balancerStats, error) {
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

// spentOn counts calls by who made them, and by operation.
func spentOn(ctx context.Context, cloud *client.Client) (map[string]any, error) {
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

// byKey are things as their JSON has them, by what they are called.
func byKey[T any](all []T, err error, key func(T) string) (map[string]any, error) {
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

// newestCalls is how many calls are looked through for one that was waited for.
const newestCalls = 2000

// entries are those of the timeline since a time, or the calls.
func (w *world) entries(calls bool, since time.Time) ([]timeline.Entry, error) {
	l := w.labs[""]
	all, err := l.Timeline().Read()
	if err == nil && calls {
		all, err = w.calls(l, all)
	}
	if err != nil {
		return nil, &fetchError{"the timeline", err}
	}
	return slices.DeleteFunc(all, func(e timeline.Entry) bool { return e.Time.Before(since) }), nil
}

// calls have their subjects by name, as `lab watch` prints them: what is recorded tells
// the names.
func (w *world) calls(l *lab.Lab, recorded []timeline.Entry) ([]timeline.Entry, error) {
	ctx, cancel := context.WithTimeout(w.ctx, fetchBound)
	defer cancel()
	cloud, err := l.Cloud()
	if err != nil {
		return nil, err
	}
	newest, err := cloud.ListAudit(ctx, client.AuditFilter{}, newestCalls)
	if err != nil {
		return nil, err
	}
	var merge timeline.Merge
	merge.Add(time.Now(), recorded...)
	for _, a := range slices.Backward(newest) {
		merge.Add(time.Now(), l.Timeline().Call(a))
	}
	return slices.DeleteFunc(merge.All(), func(e timeline.Entry) bool { return e.Source != timeline.SourceCall }), nil
}

// of is the world with an entry to speak of.
func (w *world) of(e timeline.Entry) (cel.Activation, error) {
	v, err := asJSON(e)
	if err != nil {
		return nil, err
	}
	return entryOf{w, v}, nil
}

type entryOf struct {
	*world
	entry any
}

// ResolveName implements cel.Activation.
func (e entryOf) ResolveName(name string) (any, bool) {
	if name == entryName {
		return e.entry, true
	}
	return e.world.ResolveName(name)
}
