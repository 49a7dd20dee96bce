package hcloud

import (
	"cmp"
	"context"
	"net/netip"
	"slices"

	"github.com/hetznercloud/hcloud-go/v2/hcloud/schema"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
	"github.com/ccmlab/ccmlab/fakecloud/dialect"
)

// targetSelector is a target that stands for all servers with some labels.
type targetSelector struct {
	Selector string `json:"selector"`
	Private  bool   `json:"private"`
}

// selects tells whether a server is one of the target's: it is there, has the labels, and is in the balancer's
// network if it is reached there.
func (s targetSelector) selects(b *balancer, in cloud.Instance) bool {
	labels, err := parseSelector(s.Selector)
	return err == nil && isThere(in) && labels.matches(in.Tags) && (!s.Private || in.Network == b.NetworkID)
}

// followSelectors makes targets of the servers that selectors stand for now.
func (b *balancer) followSelectors(ctx context.Context, r *dialect.Request) error {
	instances, err := r.Instances(ctx)
	if err != nil {
		return err
	}
	b.Targets = slices.DeleteFunc(slices.Clone(b.Targets), func(t api.Target) bool {
		return slices.Contains(b.record.Selected, instances[t.InstanceID].Serial)
	})
	b.record.Selected = nil
	for id, in := range instances {
		target := api.Target{InstanceID: id}
		isSelected := slices.ContainsFunc(b.record.Selectors, func(s targetSelector) bool { return s.selects(b, in) })
		if isSelected && !slices.Contains(b.Targets, target) {
			b.Targets = append(b.Targets, target)
			b.record.Selected = append(b.record.Selected, in.Serial)
		}
	}
	slices.Sort(b.record.Selected)
	return nil
}

// serverTargets gives the servers that are targets by themselves.
func (b *balancer) serverTargets(ctx context.Context, r *dialect.Request) (serials []int64, err error) {
	instances, err := r.Instances(ctx)
	for _, t := range b.Targets {
		if serial := instances[t.InstanceID].Serial; !slices.Contains(b.record.Selected, serial) {
			serials = append(serials, serial)
		}
	}
	return serials, err
}

type targetRequest schema.LoadBalancerActionAddTargetRequest

// check refuses a target that does not say what its type needs. Fields begin with a prefix.
func (q targetRequest) check(prefix string) error {
	missing := map[string]bool{
		"server": q.Server == nil, "label_selector": q.LabelSelector == nil, "ip": q.IP == nil,
	}
	isMissing, known := missing[q.Type]
	switch {
	case !known:
		return dialect.Invalid(prefix+"type", "must be one of server, label_selector, ip")
	case isMissing:
		return dialect.Invalid(prefix+q.Type, "is missing")
	case q.Type == "ip" && q.UsePrivateIP != nil:
		return dialect.Invalid(prefix+"use_private_ip", "is for the types server and label_selector only")
	}
	if q.Type == "label_selector" {
		if labels, err := parseSelector(q.LabelSelector.Selector); err != nil || len(labels) == 0 {
			return dialect.Invalid(prefix+"label_selector.selector", "is no label selector")
		}
	}
	return nil
}

func addTarget(ctx context.Context, r *dialect.Request, b *balancer, q targetRequest) error {
	private := api.ValueOf(q.UsePrivateIP)
	err := q.check(b.prefix)
	switch {
	case err != nil:
		return err
	case q.Type == "ip":
		return b.addIP(ctx, r, q.IP.IP)
	case private && b.NetworkID == "":
		return &cloud.Error{Code: notAttached, Message: "load balancer is not attached to a network"}
	case !private && b.Scheme == api.SchemeInternal:
		return &cloud.Error{
			Code:    noPublicInterface,
			Message: "load balancer public interface is disabled, cannot add target using public IP",
		}
	case q.Type == "server":
		return b.addServer(ctx, r, q.Server.ID, private)
	}
	s := targetSelector{Selector: q.LabelSelector.Selector, Private: private}
	if slices.ContainsFunc(b.record.Selectors, func(o targetSelector) bool { return o.Selector == s.Selector }) {
		return &cloud.Error{Code: targetDefined, Message: "load balancer target is already defined"}
	}
	b.record.Selectors = append(b.record.Selectors, s)
	return nil
}

func (b *balancer) addServer(ctx context.Context, r *dialect.Request, serial int64, private bool) error {
	in, err := servers.readSerial(ctx, r, serial)
	if err != nil {
		return err
	}
	target := api.Target{InstanceID: in.ID}
	isTarget, isSelected := slices.Contains(b.Targets, target), slices.Contains(b.record.Selected, serial)
	hasPublic := slices.ContainsFunc(in.Addresses, func(a api.Address) bool { return a.Type == api.AddressExternal })
	switch {
	case isTarget && !isSelected:
		return &cloud.Error{Code: targetDefined, Message: "load balancer target is already defined"}
	case private && in.NetworkID != b.NetworkID:
		return &cloud.Error{Code: serverNotAttached, Message: "server is not attached to the load balancer's network"}
	case !private && !hasPublic:
		return &cloud.Error{Code: missingIPv4, Message: "server " + in.Name + " has no public IPv4 address"}
	}
	b.record.Selected = slices.DeleteFunc(b.record.Selected, func(s int64) bool { return s == serial })
	if private {
		b.record.PrivateTargets = append(b.record.PrivateTargets, serial)
	}
	if !isTarget {
		b.Targets = append(slices.Clone(b.Targets), target)
	}
	b.about = append(b.about, schema.ActionResourceReference{ID: serial, Type: servers.one})
	return nil
}

// addIP adds the address of what stands for a Robot server: it is in the ranges of targets, and no server has it.
func (b *balancer) addIP(ctx context.Context, r *dialect.Request, text string) error {
	ip, err := netip.ParseAddr(text)
	if err != nil {
		return dialect.Invalid(b.prefix+"ip.ip", "is no IP address")
	}
	instances, err := r.Instances(ctx)
	if err != nil {
		return err
	}
	for _, in := range instances {
		if in.Address == ip {
			return &cloud.Error{Code: cloudIP, Message: "the IP belongs to a server of the cloud: take that as a target"}
		}
	}
	target := api.Target{IP: ip.String()}
	switch {
	case !ip.Is4() || !r.Cloud.MayBeTarget(ip):
		return &cloud.Error{Code: foreignIP, Message: "the IP is not owned by the owner of the project"}
	case slices.Contains(b.Targets, target):
		return &cloud.Error{Code: targetDefined, Message: "load balancer target is already defined"}
	}
	b.Targets = append(slices.Clone(b.Targets), target)
	return nil
}

// removeTargetOf takes a native target out, if it is one.
func (b *balancer) removeTargetOf(target api.Target) (wasThere bool) {
	before := len(b.Targets)
	b.Targets = slices.DeleteFunc(slices.Clone(b.Targets), func(t api.Target) bool { return t == target })
	return len(b.Targets) < before
}

func removeTarget(ctx context.Context, r *dialect.Request, b *balancer, q targetRequest) error {
	if err := q.check(b.prefix); err != nil {
		return err
	}
	switch q.Type {
	case "ip":
		if !b.removeTargetOf(api.Target{IP: q.IP.IP}) {
			return dialect.NotFound("%s is no target of the load balancer", q.IP.IP)
		}
		return nil
	case "label_selector":
		at := slices.IndexFunc(b.record.Selectors, func(s targetSelector) bool {
			return s.Selector == q.LabelSelector.Selector
		})
		if at < 0 {
			return dialect.NotFound("%q is no target of the load balancer", q.LabelSelector.Selector)
		}
		b.record.Selectors = slices.Delete(b.record.Selectors, at, at+1)
		return nil
	}
	// A server that is gone may still be a target.
	id, err := r.ResourceID(ctx, api.ResourceInstance, q.Server.ID)
	if err != nil {
		return err
	}
	is := func(serial int64) bool { return serial == q.Server.ID }
	if slices.ContainsFunc(b.record.Selected, is) || !b.removeTargetOf(api.Target{InstanceID: id}) {
		return dialect.NotFound("server %d is no target of the load balancer", q.Server.ID)
	}
	b.record.PrivateTargets = slices.DeleteFunc(b.record.PrivateTargets, is)
	b.about = append(b.about, schema.ActionResourceReference{ID: q.Server.ID, Type: servers.one})
	return nil
}

// shownTarget is a target as it is shown: with what its type has.
type shownTarget struct {
	Type          string                                  `json:"type"`
	Server        *schema.LoadBalancerTargetServer        `json:"server,omitempty"`
	LabelSelector *schema.LoadBalancerTargetLabelSelector `json:"label_selector,omitempty"`
	IP            *schema.LoadBalancerTargetIP            `json:"ip,omitempty"`
	UsePrivateIP  bool                                    `json:"use_private_ip"`
	HealthStatus  []schema.LoadBalancerTargetHealthStatus `json:"health_status,omitzero"`
	Targets       []shownTarget                           `json:"targets,omitzero"`
}

// showTargets gives the targets: servers, addresses, and selectors with the servers that they stand for.
func (b *balancer) showTargets(ctx context.Context, r *dialect.Request) ([]shownTarget, error) {
	instances, err := r.Instances(ctx)
	if err != nil {
		return nil, err
	}
	health, err := healthByTarget(ctx, r, b.ID)
	if err != nil {
		return nil, err
	}
	show := func(in cloud.Instance, private bool) shownTarget {
		return shownTarget{
			Type: "server", Server: &schema.LoadBalancerTargetServer{ID: in.Serial}, UsePrivateIP: private,
			HealthStatus: b.healthStatus(health[in.ID]),
		}
	}
	shown := []shownTarget{}
	for _, t := range b.Targets {
		if t.IP != "" {
			ip := &schema.LoadBalancerTargetIP{IP: t.IP}
			shown = append(shown, shownTarget{Type: "ip", IP: ip, HealthStatus: b.healthStatus(health[t.IP])})
			continue
		}
		if in := instances[t.InstanceID]; !slices.Contains(b.record.Selected, in.Serial) {
			shown = append(shown, show(in, slices.Contains(b.record.PrivateTargets, in.Serial)))
		}
	}
	for _, s := range b.record.Selectors {
		all := []shownTarget{}
		for _, t := range b.Targets {
			if in := instances[t.InstanceID]; s.selects(b, in) {
				all = append(all, show(in, s.Private))
			}
		}
		shown = append(shown, shownTarget{
			Type: "label_selector", LabelSelector: &schema.LoadBalancerTargetLabelSelector{Selector: s.Selector},
			UsePrivateIP: s.Private, Targets: all,
		})
	}
	return shown, nil
}

func (b *balancer) healthStatus(health api.TargetHealth) []schema.LoadBalancerTargetHealthStatus {
	all := []schema.LoadBalancerTargetHealthStatus{}
	for _, l := range b.Listeners {
		if !isService(l) {
			continue
		}
		status := health.Health
		for _, h := range health.Listeners {
			if h.Port == l.Port {
				status = h.Health
			}
		}
		all = append(all, schema.LoadBalancerTargetHealthStatus{
			ListenPort: l.Port, Status: string(cmp.Or(status, api.TargetUnknown)),
		})
	}
	return all
}
