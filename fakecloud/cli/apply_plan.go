package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

// plan compares a manifest with the cloud (computeSteps), and makes the difference disappear
// (run, in apply_run.go).
type plan struct {
	app    *app
	cmd    *cobra.Command
	client *client.Client
	waiter *waiter
	steps  []*step
	// instances are the existing and the created instances, by name.
	instances map[string]*api.Instance
	// ids are the IDs of the existing and created resources, by "kind/name".
	ids       map[string]string
	balancers []api.LoadBalancer // created or updated, to wait for
}

// step is what has to be done with one resource. Its patch holds the fields that differ.
type step struct {
	applied
	want  *wantedResource
	patch map[string]any
	// version of the existing resource, whose tags the patch is merged with.
	version int64
}

func (p *plan) appliedResources() []*applied {
	out := []*applied{}
	for _, s := range p.steps {
		out = append(out, &s.applied)
	}
	return out
}

// computeSteps compares the manifest with the cloud, and fills p.steps. The error joins all
// that cannot be done.
func (p *plan) computeSteps(ctx context.Context, all []*wantedResource) error {
	existing, err := p.listExisting(ctx, all)
	if err != nil {
		return err
	}
	named := map[string]bool{}
	for _, w := range all {
		named[w.kind.key+"/"+w.name] = true
	}
	exists := func(kind, name string) bool { return named[kind+"/"+name] || p.ids[kind+"/"+name] != "" }
	var errs []error
	for _, k := range manifestKinds {
		for _, w := range all {
			if w.kind != k {
				continue
			}
			for _, ref := range w.refs {
				if !exists(ref.kind, ref.name) {
					errs = append(errs, fmt.Errorf("%s: %v exists neither here nor in the cloud", w.position, ref))
				}
			}
			s, err := p.compareResource(w, existing[k.key+"/"+w.name])
			errs = append(errs, err)
			p.steps = append(p.steps, s)
		}
	}
	return errors.Join(errs...)
}

// listExisting lists the existing resources of the kinds that the manifest has or refers
// to, by "kind/name".
func (p *plan) listExisting(ctx context.Context, all []*wantedResource) (map[string]any, error) {
	listedKinds := map[string]bool{"instances": true}
	for _, w := range all {
		listedKinds[w.kind.key] = true
		for _, ref := range w.refs {
			listedKinds[ref.kind] = true
		}
	}
	existing := map[string]any{}
	var errs []error
	for _, k := range manifestKinds {
		if listedKinds[k.key] {
			errs = append(errs, k.list(ctx, p, func(name, id string, one any) {
				existing[k.key+"/"+name], p.ids[k.key+"/"+name] = one, id
			}))
		}
	}
	return existing, errors.Join(errs...)
}

// compareResource finds the fields that differ between a wanted resource and the existing
// one. existing is nil if there is none.
func (p *plan) compareResource(w *wantedResource, existing any) (*step, error) {
	s := &step{
		applied: applied{Kind: w.kind.singular, Name: w.name, Action: unchanged}, want: w, patch: map[string]any{},
	}
	if existing == nil {
		s.Action = created
		return s, nil
	}
	s.ID = p.ids[w.kind.key+"/"+w.name]
	w.setIDs(p.ids)
	has, given := toMap(existing), maps.Clone(w.given)
	s.version = versionOf(has)
	switch of := existing.(type) {
	case api.Quotas:
		for name, quota := range has {
			has[name] = quota.(map[string]any)["limit"]
		}
	case api.Instance:
		var internal []any
		for _, a := range of.Addresses {
			if a.Type == api.AddressInternal {
				internal = append(internal, a.IP)
			}
		}
		if len(internal) > 0 { // One that is terminating may have none left.
			has["address"], has["secondaryAddresses"] = internal[0], internal[1:]
		}
		if w.state != "" && w.state != settledState(of.State) {
			s.Changes = append(s.Changes, "state")
		}
	case api.LoadBalancer:
		fillInTargets(has)
		if check, ok := given["healthCheck"].(map[string]any); ok && check["protocol"] == "none" &&
			of.HealthCheck == nil {
			delete(given, "healthCheck")
		}
	}
	var errs []error
	for _, field := range slices.Sorted(maps.Keys(given)) {
		switch {
		case includesAll(has[field], given[field]), w.kind.isWriteOnly(field):
			continue
		case w.kind.isFixed(field):
			errs = append(errs, fmt.Errorf(
				"%s: %s is %v in the cloud (%s), which cannot be changed: take the field out, or end that one first",
				w.position, field, has[field], s.ID,
			))
			continue
		case field == "tags":
			s.patch[field] = mergedTags(has, given)
		default:
			s.patch[field] = given[field]
		}
		s.Changes = append(s.Changes, w.kind.fieldInManifest(field))
	}
	if len(s.Changes) > 0 {
		s.Action = updated
	}
	return s, errors.Join(errs...)
}

// fillInTargets adds what answers leave out of targets, so that it can be compared: weights of 1 and, of a listener, that
// it has the balancer's targets rather than none.
func fillInTargets(balancer map[string]any) {
	lists := []any{balancer["targets"]}
	for _, listener := range balancer["listeners"].([]any) {
		of := listener.(map[string]any)
		if of["targets"] == nil {
			of["targets"] = []any{"the balancer's"}
			continue
		}
		lists = append(lists, of["targets"])
	}
	for _, list := range lists {
		for _, target := range list.([]any) {
			if of := target.(map[string]any); of["weight"] == nil {
				of["weight"] = 1.0
			}
		}
	}
}

func versionOf(has map[string]any) int64 {
	version, _ := has["version"].(float64) // Quotas have no version.
	return int64(version)
}

func mergedTags(has, given map[string]any) map[string]any {
	merged := maps.Clone(has["tags"].(map[string]any))
	maps.Copy(merged, given["tags"].(map[string]any))
	return merged
}

// settledState is the state that an instance is in or will be in after its transition.
func settledState(state api.InstanceState) string {
	switch state {
	case api.InstanceStopping:
		return "stopped"
	case api.InstancePending:
		return "running"
	}
	return string(state)
}

// toMap converts a resource to its JSON fields.
func toMap(v any) map[string]any {
	text, err := json.Marshal(v)
	var out map[string]any
	if err == nil {
		err = json.Unmarshal(text, &out)
	}
	if err != nil {
		panic(fmt.Sprintf("%T has no JSON form: %v", v, err)) // All types of the API have one.
	}
	return out
}

// includesAll tells whether has contains everything in given, also within objects and
// lists. A missing value counts as the zero value, and lists are compared as sets.
func includesAll(has, given any) bool {
	switch want := given.(type) {
	case map[string]any:
		have, _ := has.(map[string]any)
		for key, v := range want {
			if !includesAll(have[key], v) {
				return false
			}
		}
		return have != nil || len(want) == 0
	case []any:
		have, _ := has.([]any)
		return !slices.ContainsFunc(want, func(v any) bool {
			return !slices.ContainsFunc(have, func(h any) bool { return includesAll(h, v) })
		}) && !slices.ContainsFunc(have, func(h any) bool {
			return !slices.ContainsFunc(want, func(v any) bool { return includesAll(h, v) })
		})
	}
	return has == given || has == nil && given != nil && reflect.ValueOf(given).IsZero()
}
