package cloud

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/identity"
	"github.com/ccmlab/ccmlab/fakecloud/store"
)

const (
	maxTagKey   = 128
	maxTagValue = 256
	maxName     = 253
)

// validName is a DNS subdomain.
var validName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)

func checkName(name string) error {
	if len(name) > maxName || !validName.MatchString(name) {
		return refuse(
			InvalidRequest,
			"%q cannot be a name: names are DNS subdomains, of lower-case letters, digits, \"-\" and \".\", such as node-1",
			name,
		).withField("name", "must be a DNS subdomain of at most %d characters", maxName)
	}
	return nil
}

// validResourceName is what openapi.yaml has for names of all kinds of resources but instances.
var validResourceName = regexp.MustCompile(`^[!$&-+.0-;@-\[\]-~]([ !$&-+.0-;@-\[\]-~-]*[!$&-+.0-;@-\[\]-~-])?$`)

// checkResourceName refuses what cannot be the name of a resource that is no instance.
func checkResourceName(name string) error {
	if len(name) <= maxName && validResourceName.MatchString(name) {
		return nil
	}
	const want = "must be 1 to %d printable ASCII characters, without any of \"#%%,/<=>?\\, without a space at " +
		"either end and a \"-\" in front"
	return refuse(InvalidRequest, "%q cannot be a name: names "+want, name, maxName).withField("name", want, maxName)
}

// validInstanceName is a DNS subdomain, which may have capitals.
var validInstanceName = regexp.MustCompile(
	`^[A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?(\.[A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?)*$`,
)

// checkInstanceName refuses what cannot be an instance's name. Capitals are allowed, as many clouds do.
func checkInstanceName(name string) error {
	if len(name) <= maxName && validInstanceName.MatchString(name) {
		return nil
	}
	return refuse(
		InvalidRequest,
		"%q cannot be an instance's name: such names are DNS subdomains, of letters, digits, \"-\" and \".\", such as node-1",
		name,
	).withField("name", "must be a DNS subdomain of at most %d characters", maxName)
}

// ToAPI gives the instance as the API shows it.
func (in Instance) ToAPI() api.Instance {
	addresses := []api.Address{}
	for _, ip := range in.Internal() {
		addresses = append(addresses, api.Address{Type: api.AddressInternal, IP: ip.String()})
	}
	for _, ip := range in.External {
		addresses = append(addresses, api.Address{Type: api.AddressExternal, IP: ip.String()})
	}
	return api.Instance{
		ID: in.ID, Serial: in.Serial, Identities: identity.Of(in.Serial), Project: in.Project, Name: in.Name,
		Region: in.Region, Zone: in.Zone, Type: in.Type, NetworkID: in.Network,
		State: in.State, StateReason: in.StateReason, Addresses: addresses,
		Tags: in.Tags, Records: in.Records, Version: in.Version, CreatedAt: in.CreatedAt, UpdatedAt: in.UpdatedAt,
	}
}

// CreateInstance gives the new instance in state pending.
func (c *Cloud) CreateInstance(ctx context.Context, p Project, spec api.InstanceCreate) (Instance, Outcome, error) {
	if err := c.checkInstanceSpec(spec); err != nil {
		return Instance{}, Outcome{}, err
	}
	return createWithOperation(ctx, c, p, "createInstance", func(ctx context.Context, tx *changeTx) (Instance, error) {
		return c.newInstance(ctx, tx, p, spec)
	})
}

func (c *Cloud) newInstance(ctx context.Context, tx *changeTx, p Project, spec api.InstanceCreate) (Instance, error) {
	if err := c.withinQuota(ctx, tx.Tx, p, QuotaInstances); err != nil {
		return Instance{}, err
	}
	name, err := c.unusedName(ctx, tx.Tx, api.ResourceInstance, p, spec.Name, "instance-")
	if err != nil {
		return Instance{}, err
	}
	zone, err := c.instanceZone(ctx, tx.Tx, p, spec.Zone)
	if err != nil {
		return Instance{}, err
	}
	if err := c.checkZoneAvailable(p, zone); err != nil {
		return Instance{}, err
	}
	network, err := instanceNetwork(ctx, tx.Tx, p, spec.NetworkID)
	if err != nil {
		return Instance{}, err
	}
	address, secondary, err := c.instanceAddresses(ctx, tx.Tx, p, network, spec)
	if err != nil {
		return Instance{}, err
	}
	metadata, err := c.newMetadata(ctx, tx, p, "i", name, spec.Tags)
	metadata.Records = spec.Records
	if err != nil {
		return Instance{}, err
	}
	rule, _ := findRule(InstanceRules, instanceNone, Create)
	in := Instance{
		Metadata: metadata, Region: c.cfg.Region, Zone: zone, Type: cmp.Or(spec.Type, api.InstanceTypeSmall),
		Network: network.ID, State: rule.To, Address: address, Secondary: secondary,
	}
	in.due = c.stateEnd(tx.now, rule.Wait)
	return in, insertResource(ctx, tx, in)
}

func (c *Cloud) checkInstanceSpec(spec api.InstanceCreate) error {
	if spec.Zone != "" && !slices.Contains(c.cfg.Zones, spec.Zone) {
		return refuse(UnknownZone, "no zone %q: choose one of %s", spec.Zone, strings.Join(c.cfg.Zones, ", ")).
			withField("zone", "is not a zone of this cloud")
	}
	if spec.Type != "" && !spec.Type.Valid() {
		return refuse(InvalidRequest, "no instance type %q: choose small, medium or large", spec.Type).
			withField("type", "is not an instance type")
	}
	if spec.Name != "" {
		if err := checkInstanceName(spec.Name); err != nil {
			return err
		}
	}
	if len(spec.SecondaryAddresses) > maxSecondary {
		return refuse(
			InvalidRequest, "%d secondary addresses: an instance can have %d", len(spec.SecondaryAddresses), maxSecondary,
		).withField("secondaryAddresses", "are too many")
	}
	return joinRefusals(checkTags(spec.Tags), checkRecords(spec.Records))
}

func checkTags(tags map[string]string) error {
	for k, v := range tags {
		if k == "" || len(k) > maxTagKey || strings.Contains(k, "=") {
			return refuse(
				InvalidRequest, "tag key %q cannot be used: keys have 1 to %d bytes and no \"=\"", k, maxTagKey,
			).withField("tags."+k, "is not a valid key")
		}
		if len(v) > maxTagValue {
			return refuse(InvalidRequest, "the value of tag %q is too long: at most %d bytes", k, maxTagValue).
				withField("tags."+k, "is too long")
		}
	}
	return nil
}

func withDefaults(tags, defaults map[string]string) map[string]string {
	out := tagsOrEmpty(maps.Clone(defaults))
	maps.Copy(out, tags)
	return out
}

func tagsOrEmpty(tags map[string]string) map[string]string {
	if tags == nil {
		return map[string]string{}
	}
	return tags
}

// instanceZone is the zone asked for, or the available one with the fewest instances.
func (c *Cloud) instanceZone(ctx context.Context, tx *store.Tx, p Project, want string) (string, error) {
	if want != "" {
		return want, nil
	}
	rows, err := tx.LiveInstancesPerZone(ctx, p.ID)
	if err != nil {
		return "", err
	}
	live := make(map[string]int64, len(rows))
	for _, r := range rows {
		live[r.Zone] = r.Live
	}
	return slices.MinFunc(c.availableZones(p), func(a, b string) int { return int(live[a] - live[b]) }), nil
}

// GetInstance reads one instance.
func (c *Cloud) GetInstance(ctx context.Context, p Project, id string) (Instance, error) {
	return getResource[Instance](ctx, c, p, id)
}

// ListInstances gives one page, oldest first, and whether more follow.
func (c *Cloud) ListInstances(ctx context.Context, p Project, f Filter) (page []Instance, more bool, err error) {
	return listResources[Instance](ctx, c, p, f)
}

// instanceToUse finds the instance that a request names by its instanceId. purpose says what it is needed for,
// and instead what to do if it is terminated.
func instanceToUse(ctx context.Context, tx *store.Tx, p Project, id, purpose, instead string) (Instance, error) {
	in, err := loadResource[Instance](ctx, tx, p, id)
	var refused *Error
	switch {
	case errors.As(err, &refused):
		return in, refuse(UnknownInstance, "no instance %q in project %q%s", id, p.Name, purpose).
			withField("instanceId", "is not an instance of the project")
	case err == nil && in.State == api.InstanceTerminated:
		return in, refuse(UnknownInstance, "instance %q (%s) is terminated: %s", in.Name, id, instead).
			withField("instanceId", "is terminated")
	}
	return in, err
}

func listJSON[T any](v []T) string {
	if len(v) == 0 {
		return "[]"
	}
	return toJSON(v)
}

func mapAll[A, B any](in []A, fn func(A) (B, error)) ([]B, error) {
	out := make([]B, 0, len(in))
	for _, a := range in {
		b, err := fn(a)
		if err != nil {
			return nil, err
		}
		out = append(out, b)
	}
	return out, nil
}

// UpdateInstance replaces what is given. A terminated instance cannot be updated.
func (c *Cloud) UpdateInstance(ctx context.Context, p Project, id string, u api.ResourceUpdate) (Instance, error) {
	return updateResource(ctx, c, p, id, u, func(_ context.Context, _ *changeTx, in *Instance, name string) error {
		if in.State == api.InstanceTerminated {
			return refuse(
				WrongState, "cannot update instance %q (%s) while it is %s: this is final", in.Name, in.ID, in.State,
			)
		}
		return checkInstanceName(name)
	})
}

// StartInstance starts an instance that is stopped or in error. A pending or running one
// stays as it is.
func (c *Cloud) StartInstance(ctx context.Context, p Project, id string) (Instance, Outcome, error) {
	return c.actOnInstance(ctx, p, id, Start)
}

// StopInstance stops an instance that runs or is in error. A stopping or stopped one stays
// as it is.
func (c *Cloud) StopInstance(ctx context.Context, p Project, id string) (Instance, Outcome, error) {
	return c.actOnInstance(ctx, p, id, Stop)
}

// RebootInstance makes a running instance pending again. A pending one stays as it is.
func (c *Cloud) RebootInstance(ctx context.Context, p Project, id string) (Instance, Outcome, error) {
	return c.actOnInstance(ctx, p, id, Reboot)
}

// TerminateInstance ends an instance, whatever its state.
func (c *Cloud) TerminateInstance(ctx context.Context, p Project, id string) (Instance, Outcome, error) {
	return c.actOnInstance(ctx, p, id, Terminate)
}

func (c *Cloud) actOnInstance(ctx context.Context, p Project, id string, on Action) (Instance, Outcome, error) {
	var in Instance
	var outcome Outcome
	var moved bool
	err := c.change(ctx, func(ctx context.Context, tx *changeTx) (err error) {
		if in, err = loadToChange[Instance](ctx, tx, p, id); err != nil {
			return err
		}
		rule, ok := findRule(InstanceRules, in.State, on)
		if ok && on == Start && !rule.Same {
			if err := c.checkZoneAvailable(p, in.Zone); err != nil {
				return err
			}
		}
		switch {
		case !ok:
			return refuse(
				WrongState, "cannot %s instance %q (%s) while it is %s%s", on, in.Name, in.ID, in.State,
				wrongStateHint(on, in.State),
			)
		case rule.Same:
			return nil
		}
		moved = true
		if err := c.moveInstance(ctx, tx, &in, rule); err != nil {
			return err
		}
		outcome.Operation, err = c.beginOperation(ctx, tx, p.ID, api.ResourceInstance, in.ID, on)
		return err
	})
	if err != nil {
		return Instance{}, Outcome{}, err
	}
	if moved {
		c.refreshBalancersOf(context.WithoutCancel(ctx), in.ID)
	}
	return in, outcome, nil
}

// wrongStateHint says what to do instead of an action that the state does not allow.
func wrongStateHint(on Action, state api.InstanceState) string {
	switch {
	case state == api.InstanceTerminating || state == api.InstanceTerminated:
		return ": this is final; create another instance"
	case on == Start && state == api.InstanceStopping:
		return ": wait until it is stopped"
	case on == Stop && state == api.InstancePending:
		return ": wait until it is running"
	case on == Reboot:
		return ": it must be running; start it instead"
	}
	return ""
}

// moveInstance makes one transition of an instance, with everything that follows from it
// in other resources.
func (c *Cloud) moveInstance(ctx context.Context, tx *changeTx, in *Instance, rule Rule[api.InstanceState]) error {
	from := in.State
	if rule.To == instanceNone {
		if err := deleteResource(ctx, tx, in); err != nil {
			return err
		}
		return updateRoutesVia(ctx, tx, in.ID, instanceNone)
	}
	in.State, in.StateReason, in.due = rule.To, rule.Reason, c.stateEnd(tx.now, rule.Wait)
	if rule.To == api.InstanceTerminated {
		for _, a := range in.Internal() {
			c.markAddress(tx.Tx, a, false)
		}
		in.Address, in.Secondary = netip.Addr{}, nil
		if err := releaseExternalAddresses(ctx, tx, in); err != nil {
			return err
		}
	}
	if err := saveResource(ctx, tx, from, in); err != nil {
		return err
	}
	if err := updateRoutesVia(ctx, tx, in.ID, in.State); err != nil {
		return err
	}
	if rule.To == api.InstanceTerminated {
		return removeTargetEverywhere(ctx, tx, in.ID)
	}
	return nil
}

// removeTargetEverywhere takes a terminated instance out of the targets of every balancer.
func removeTargetEverywhere(ctx context.Context, tx *changeTx, id string) error {
	balancers, err := resourcesFrom[LoadBalancer](tx.LoadBalancersTargeting(ctx, id))
	if err != nil {
		return err
	}
	return removeTargets(ctx, tx, balancers, []string{id})
}

func removeTargets(ctx context.Context, tx *changeTx, balancers []LoadBalancer, ids []string) error {
	isGone := func(t api.Target) bool { return slices.Contains(ids, t.InstanceID) }
	for _, lb := range balancers {
		lb.Targets = slices.DeleteFunc(lb.Targets, isGone)
		for i, l := range lb.Listeners {
			lb.Listeners[i].Targets = slices.DeleteFunc(l.Targets, isGone)
		}
		if err := saveResource(ctx, tx, lb.State, &lb); err != nil {
			return err
		}
	}
	return nil
}
