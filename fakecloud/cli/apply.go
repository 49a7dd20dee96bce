// This file answers: how is the cloud made to be as a manifest says?

package cli

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

// What becomes of a resource.
const (
	created   = "created"
	updated   = "updated"
	unchanged = "unchanged"
	failed    = "failed"
)

// applied is one resource and what became of it.
type applied struct {
	Kind   string `json:"kind"`
	Name   string `json:"name"`
	ID     string `json:"id,omitempty"`
	Action string `json:"action"`
	// Changes are the fields that an update is about.
	Changes []string `json:"changes,omitempty"`
}

type appliedList struct {
	DryRun bool       `json:"dryRun,omitempty"`
	Items  []*applied `json:"items"`
}

func (a *app) apply() *cobra.Command {
	var file string
	var dryRun bool
	var w waiter
	cmd := &cobra.Command{
		Use: "apply -f FILE", Short: "Create what a manifest asks for, and update what differs", Args: cobra.NoArgs,
		Long: `Create what a manifest asks for, and update what differs. Resources are found by
their names. A field that the manifest leaves out is left alone, tags that it
does not name are kept, and so are resources that it does not name: nothing is
ever deleted. Applying the same manifest again changes nothing. It is checked as
a whole before anything is changed.

The manifest is YAML:

  quotas: {instances: 100}    # the project's; this needs an admin's token
  networks:                   # as in POST /v1/networks
  - {name: backend, cidr: 10.20.0.0/16}
  addresses:                  # as in POST /v1/addresses
  - name: web
  instances:                  # as in POST /v1/instances, and
  - name: node-1
    zone: nebula-1a
    network: backend          # by name
    state: stopped            # running or stopped
  loadBalancers:              # as in POST /v1/load-balancers, but
  - name: web
    listeners: [{protocol: tcp, port: 8080, targetPort: 30080}]
    targets: [node-1]         # instances by name
    reservedAddress: web      # by name
  routes:                     # as in POST /v1/routes, but
  - name: node-1
    destination: 10.244.1.0/24
    instance: node-1          # an instance by name`,
		Example: `  fakecloud apply -f cloud.yaml --wait
  fakecloud apply -f - --dry-run < cloud.yaml`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if file == "" {
				return misuse("give the manifest with -f FILE, or -f - for standard input")
			}
			wanted, err := readManifest(cmd, file)
			if err != nil {
				return usageError{err}
			}
			c, err := a.client()
			if err != nil {
				return usageError{err}
			}
			p := &plan{cmd: cmd, client: c, waiter: &w, instances: map[string]*api.Instance{}, ids: map[string]string{}}
			if err := p.make(cmd.Context(), wanted); err != nil {
				return err
			}
			if dryRun {
				_, _ = fmt.Fprintln(cmd.ErrOrStderr(), "a dry run: nothing was changed")
			} else {
				err = p.run(cmd.Context())
			}
			return errors.Join(err, a.printApplied(cmd, appliedList{dryRun, p.results()}))
		},
	}
	a.addOutput(cmd)
	w.flags(a, cmd)
	cmd.Flags().StringVarP(&file, "filename", "f", "", "the manifest, or - for standard input")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only show what would become of each resource")
	return cmd
}

func readManifest(cmd *cobra.Command, file string) ([]*wanted, error) {
	if file == "-" {
		return parseManifest("standard input", cmd.InOrStdin())
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return parseManifest(file, io.Reader(f))
}

func (a *app) printApplied(cmd *cobra.Command, list appliedList) error {
	var rows [][]string
	for _, r := range list.Items {
		changes := "-"
		if len(r.Changes) > 0 {
			changes = strings.Join(r.Changes, ",")
		}
		rows = append(rows, []string{r.Kind, r.Name, r.Action, changes})
	}
	return a.print(cmd.OutOrStdout(), list, "KIND NAME ACTION CHANGES", rows)
}

// plan is what has to be done.
type plan struct {
	cmd    *cobra.Command
	client *client.Client
	waiter *waiter
	steps  []*step
	// instances are those there are, and those created, by name.
	instances map[string]*api.Instance
	// ids are those of all that is there, by kind and name.
	ids       map[string]string
	project   string
	balancers []api.LoadBalancer // those changed, to be waited for
}

// step brings one resource to what is wanted. Its patch holds the fields that
// differ.
type step struct {
	applied
	want  *wanted
	patch map[string]any
	// version is that of the resource whose tags the patch goes out from.
	version int64
}

func (p *plan) results() []*applied {
	out := []*applied{}
	for _, s := range p.steps {
		out = append(out, &s.applied)
	}
	return out
}

// make compares what is wanted with what there is. The error is all that cannot
// be done.
func (p *plan) make(ctx context.Context, all []*wanted) error {
	there, err := p.look(ctx, all)
	if err != nil {
		return err
	}
	named := map[string]bool{}
	for _, w := range all {
		named[w.kind.key+"/"+w.name] = true
	}
	known := func(kind, name string) bool { return named[kind+"/"+name] || p.ids[kind+"/"+name] != "" }
	var errs []error
	for _, k := range kinds {
		for _, w := range all {
			if w.kind != k {
				continue
			}
			for _, ref := range w.refs {
				if !known(ref.kind, ref.name) {
					errs = append(errs, fmt.Errorf("%s: %s %q is not there, neither here nor in the cloud", w.at, ref.field, ref.name))
				}
			}
			for _, name := range w.targets {
				if !known("instances", name) {
					errs = append(errs, fmt.Errorf("%s: no instance is named %q, here or in the cloud", w.at, name))
				}
			}
			s, err := p.compare(w, there[k.key+"/"+w.name])
			errs = append(errs, err)
			p.steps = append(p.steps, s)
		}
	}
	return errors.Join(errs...)
}

// look finds what there is of the kinds that matter.
func (p *plan) look(ctx context.Context, all []*wanted) (map[string]any, error) {
	matters := map[string]bool{"instances": true}
	for _, w := range all {
		matters[w.kind.key] = true
		for _, ref := range w.refs {
			matters[ref.kind] = true
		}
	}
	there := map[string]any{}
	put := func(kind, name, id string, v any) {
		there[kind+"/"+name], p.ids[kind+"/"+name] = v, id
	}
	instances, err := p.client.ListInstances(ctx, client.InstanceFilter{States: liveStates})
	errs := []error{err}
	for _, in := range instances {
		if in.State != api.InstanceTerminating {
			p.instances[in.Name] = &in
			put("instances", in.Name, in.ID, in)
		}
	}
	if matters["loadBalancers"] {
		items, err := p.client.ListLoadBalancers(ctx, client.LoadBalancerFilter{})
		errs = append(errs, err)
		for _, lb := range items {
			put("loadBalancers", lb.Name, lb.ID, lb)
		}
	}
	if matters["routes"] {
		items, err := p.client.ListRoutes(ctx, client.RouteFilter{})
		errs = append(errs, err)
		for _, r := range items {
			put("routes", r.Name, r.ID, r)
		}
	}
	if matters["networks"] {
		items, err := p.client.ListNetworks(ctx, client.NetworkFilter{})
		errs = append(errs, err)
		for _, n := range items {
			put("networks", n.Name, n.ID, n)
		}
	}
	if matters["addresses"] {
		items, err := p.client.ListAddresses(ctx, client.AddressFilter{})
		errs = append(errs, err)
		for _, a := range items {
			put("addresses", a.Name, a.ID, a)
		}
	}
	if matters["quotas"] {
		project, err := p.client.Project(ctx)
		quotas, err2 := p.client.Quotas(ctx)
		if errs = append(errs, err, err2); err == nil && err2 == nil {
			p.project = project.ID
			put("quotas", "quotas", project.ID, *quotas)
		}
	}
	return there, errors.Join(errs...)
}

// compare finds what differs between a resource that is wanted and the one
// there is, which may be nil.
func (p *plan) compare(w *wanted, there any) (*step, error) {
	s := &step{applied: applied{Kind: w.kind.singular, Name: w.name, Action: unchanged}, want: w, patch: map[string]any{}}
	if there == nil {
		s.Action = created
		return s, nil
	}
	s.ID = p.ids[w.kind.key+"/"+w.name]
	has, given := toMap(there), maps.Clone(w.given)
	s.version = versionOf(has)
	for _, ref := range w.refs {
		given[ref.id] = p.ids[ref.kind+"/"+ref.name]
	}
	switch of := there.(type) {
	case api.Quotas:
		for name, quota := range has {
			has[name] = quota.(map[string]any)["limit"]
		}
	case api.Instance:
		if at := slices.IndexFunc(of.Addresses, func(a api.Address) bool { return a.Type == api.AddressInternal }); at >= 0 {
			has["address"] = of.Addresses[at].IP
		}
		if w.state != "" && w.state != settled(of.State) {
			s.Changes = append(s.Changes, "state")
		}
	case api.LoadBalancer:
		if w.targets != nil && !p.sameTargets(w.targets, of.Targets) {
			s.Changes = append(s.Changes, "targets")
		}
		if check, ok := given["healthCheck"].(map[string]any); ok && check["protocol"] == "none" && of.HealthCheck == nil {
			delete(given, "healthCheck")
		}
	}
	var errs []error
	for _, field := range slices.Sorted(maps.Keys(given)) {
		switch {
		case covers(has[field], given[field]):
			continue
		case slices.Contains(w.kind.fixed, field):
			errs = append(errs, fmt.Errorf("%s: %s is %v in the cloud (%s), which cannot be changed: take the field out, or end that one first", w.at, field, has[field], s.ID))
			continue
		case field == "tags":
			s.patch[field] = mergedTags(has, given)
		default:
			s.patch[field] = given[field]
		}
		s.Changes = append(s.Changes, field)
	}
	if len(s.Changes) > 0 {
		s.Action = updated
	}
	return s, errors.Join(errs...)
}

func versionOf(has map[string]any) int64 {
	version, _ := has["version"].(float64) // Quotas have none.
	return int64(version)
}

func mergedTags(has, given map[string]any) map[string]any {
	merged := maps.Clone(has["tags"].(map[string]any))
	maps.Copy(merged, given["tags"].(map[string]any))
	return merged
}

// settled is the state that an instance is in or on its way to.
func settled(state api.InstanceState) string {
	switch state {
	case api.InstanceStopping:
		return "stopped"
	case api.InstancePending:
		return "running"
	}
	return string(state)
}

func (p *plan) sameTargets(names []string, has []api.Target) bool {
	if len(names) != len(has) {
		return false
	}
	return !slices.ContainsFunc(names, func(name string) bool {
		in := p.instances[name]
		return in == nil || !slices.Contains(has, api.Target{InstanceID: in.ID})
	})
}

// toMap is a resource as its JSON has it.
func toMap(v any) map[string]any {
	text, err := json.Marshal(v)
	var out map[string]any
	if err == nil {
		err = json.Unmarshal(text, &out)
	}
	if err != nil {
		panic(fmt.Sprintf("%T has no JSON form: %v", v, err)) // The API's types have one.
	}
	return out
}

// covers tells whether a value has all that is given. What is not there is
// zero, and the order of lists means nothing.
func covers(has, given any) bool {
	switch want := given.(type) {
	case map[string]any:
		have, _ := has.(map[string]any)
		for key, v := range want {
			if !covers(have[key], v) {
				return false
			}
		}
		return have != nil || len(want) == 0
	case []any:
		have, _ := has.([]any)
		return !slices.ContainsFunc(want, func(v any) bool {
			return !slices.ContainsFunc(have, func(h any) bool { return covers(h, v) })
		}) && !slices.ContainsFunc(have, func(h any) bool {
			return !slices.ContainsFunc(want, func(v any) bool { return covers(h, v) })
		})
	}
	return has == given || has == nil && given != nil && reflect.ValueOf(given).IsZero()
}

// run does it, whatever becomes of single resources; what refers to one that
// failed fails with it.
func (p *plan) run(ctx context.Context) error {
	var errs []error
	do := func(kind string, what func(context.Context, *step) error) {
		for _, s := range p.steps {
			if s.want.kind.key != kind || s.Action == unchanged || s.Action == failed {
				continue
			}
			if err := what(ctx, s); err != nil {
				s.Action = failed
				errs = append(errs, fmt.Errorf("%s: %w", s.want.at, err))
			}
		}
	}
	do("quotas", p.setQuotas)
	do("networks", p.applyNetwork)
	do("addresses", p.applyAddress)
	do("instances", p.applyInstance)
	do("instances", p.bringToState)
	do("loadBalancers", p.applyBalancer)
	do("routes", p.applyRoute)
	var waited []api.Instance
	for _, s := range p.steps {
		if s.want.kind.key == "instances" && (s.Action == created || s.Action == updated) {
			waited = append(waited, *p.instances[s.Name])
		}
	}
	return errors.Join(errors.Join(errs...), p.waiter.awaitInstances(p.cmd, p.client, waited), p.waiter.awaitBalancers(p.cmd, p.client, p.balancers))
}

// into gives a request the form that the client takes.
func into[T any](fields map[string]any) (T, error) {
	var out T
	text, err := json.Marshal(fields)
	if err == nil {
		d := json.NewDecoder(strings.NewReader(string(text)))
		d.DisallowUnknownFields()
		err = d.Decode(&out)
	}
	return out, err
}

// once makes a create that breaks on the way safe to send again.
func once(ctx context.Context) context.Context {
	return client.IdempotencyKey(ctx, "apply-"+rand.Text())
}

// sent are the fields of a step's request, with the IDs of what it refers to.
func (p *plan) sent(s *step) (map[string]any, error) {
	if s.Action != created {
		return s.patch, nil
	}
	fields := maps.Clone(s.want.given)
	for _, ref := range s.want.refs {
		id := p.ids[ref.kind+"/"+ref.name]
		if id == "" {
			return nil, fmt.Errorf("%s %q is not there", ref.field, ref.name)
		}
		fields[ref.id] = id
	}
	return fields, nil
}

// bring creates or updates one resource, and notes its ID.
func bring[C, U, R any](ctx context.Context, p *plan, s *step, create func(context.Context, C) (R, error), get func(context.Context, string) (R, error), update func(context.Context, string, U) (R, error), id func(R) string) (done R, err error) {
	fields, err := p.sent(s)
	if err != nil {
		return done, err
	}
	if s.Action == created {
		body, err := into[C](fields)
		if err != nil {
			return done, err
		}
		done, err = create(once(ctx), body)
		if err == nil {
			s.ID = id(done)
			p.ids[s.want.kind.key+"/"+s.Name] = s.ID
		}
		return done, err
	}
	done, err = change(ctx, s, update)
	if !client.HasCode(err, api.PreconditionFailed) {
		return done, err
	}
	now, err := get(ctx, s.ID) // It has changed meanwhile: its new tags stay, too.
	if err != nil {
		return done, err
	}
	has := toMap(now)
	s.version, s.patch["tags"] = versionOf(has), mergedTags(has, s.want.given)
	return change(ctx, s, update)
}

// change sends a step's patch. Tags are merged from those read, so that it is for
// that version only.
func change[U, R any](ctx context.Context, s *step, update func(context.Context, string, U) (R, error)) (done R, err error) {
	body, err := into[U](s.patch)
	if err != nil {
		return done, fmt.Errorf("%s cannot be changed: %w", strings.Join(s.Changes, ", "), err)
	}
	if s.patch["tags"] != nil {
		ctx = client.IfMatch(ctx, s.version)
	}
	return update(ctx, s.ID, body)
}

func (p *plan) setQuotas(ctx context.Context, s *step) error {
	body, err := into[api.QuotasUpdate](s.patch)
	if err == nil {
		_, err = p.client.UpdateProjectQuotas(ctx, p.project, body)
	}
	return err
}

func (p *plan) applyNetwork(ctx context.Context, s *step) error {
	_, err := bring(ctx, p, s, p.client.CreateNetwork, p.client.GetNetwork, p.client.UpdateNetwork, func(n *api.Network) string { return n.ID })
	return err
}

func (p *plan) applyAddress(ctx context.Context, s *step) error {
	_, err := bring(ctx, p, s, p.client.ReserveAddress, p.client.GetAddress, p.client.UpdateAddress, func(a *api.ReservedAddress) string { return a.ID })
	return err
}

func (p *plan) applyRoute(ctx context.Context, s *step) error {
	_, err := bring(ctx, p, s, p.client.CreateRoute, p.client.GetRoute, p.client.UpdateRoute, func(r *api.Route) string { return r.ID })
	return err
}

func (p *plan) applyInstance(ctx context.Context, s *step) error {
	if s.Action == updated && len(s.patch) == 0 {
		return nil // Only its state differs.
	}
	return p.waiter.note(ctx, func(ctx context.Context) (string, error) {
		in, err := bring(ctx, p, s, p.client.CreateInstance, p.client.GetInstance, p.client.UpdateInstance, func(in *api.Instance) string { return in.ID })
		if err != nil {
			return "", err
		}
		p.instances[s.Name] = in
		return in.ID, nil
	})
}

// bringToState starts or stops an instance. One that is on its way to another
// state gets there first.
func (p *plan) bringToState(ctx context.Context, s *step) error {
	in := p.instances[s.Name]
	if s.want.state == "" || s.want.state == settled(in.State) {
		return nil
	}
	first := waiter{wait: true, timeout: p.waiter.timeout, operations: p.waiter.operations}
	if in.State == api.InstancePending || in.State == api.InstanceStopping {
		here := []api.Instance{*in}
		if err := first.awaitInstances(p.cmd, p.client, here); err != nil {
			return err
		}
		in = &here[0]
	}
	act := p.client.StopInstance
	if s.want.state == "running" {
		act = p.client.StartInstance
	}
	return p.waiter.note(ctx, func(ctx context.Context) (string, error) {
		now, err := act(ctx, in.ID)
		if err == nil {
			p.instances[s.Name] = now
		}
		return in.ID, err
	})
}

func (p *plan) applyBalancer(ctx context.Context, s *step) error {
	if s.want.targets != nil && (s.Action == created || slices.Contains(s.Changes, "targets")) {
		targets := []api.Target{}
		for _, name := range s.want.targets {
			in := p.instances[name]
			if in == nil {
				return fmt.Errorf("its target %q is not there", name)
			}
			targets = append(targets, api.Target{InstanceID: in.ID})
		}
		s.patch["targets"], s.want.given["targets"] = targets, targets
	}
	return p.waiter.note(ctx, func(ctx context.Context) (string, error) {
		lb, err := bring(ctx, p, s, p.client.CreateLoadBalancer, p.client.GetLoadBalancer, p.client.UpdateLoadBalancer, func(lb *api.LoadBalancer) string { return lb.ID })
		if err != nil {
			return "", err
		}
		p.balancers = append(p.balancers, *lb)
		return lb.ID, nil
	})
}
