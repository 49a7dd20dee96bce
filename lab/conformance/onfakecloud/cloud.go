// Package onfakecloud lets the conformance suite see and steer fakecloud, over
// its REST API like everybody else.
package onfakecloud

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/dns"
	"github.com/ccmlab/ccmlab/fakecloud/identity"
	"github.com/ccmlab/ccmlab/lab/conformance"
	"github.com/ccmlab/ccmlab/lab/conformance/driver/protocol"
	"github.com/ccmlab/ccmlab/lab/conformance/faultproxy"
)

// Cloud is one project of a fakecloud, with one cluster in it.
type Cloud struct {
	// API calls the cloud in the suite's name, with the right to make faults.
	API *client.Client
	// Cluster is the cluster's name in tags; Token is the name of the CCM's
	// token.
	Cluster, Token string
	// Names are those by which the CCM marks what is its cluster's.
	Names Names
	// Gate is the CCM's way to the cloud.
	Gate *faultproxy.Gate
	// Machines, Traffic and PassThrough say what the cluster around it can do. With PassThrough, a
	// Service without annotations gets a balancer of kind network.
	Machines, Traffic, PassThrough bool
	// KubeletProviderIDs tells that the cluster's kubelets are given provider IDs.
	KubeletProviderIDs bool
	// TokenFile and CAFile have the CCM's token and the cloud's CA. The driver changes them; "" for what it may not.
	TokenFile, CAFile string

	protocol.Injections

	externalAddresses sync.Map // the IDs of reserved addresses, by instance ID
}

var _ protocol.Operations = (*Cloud)(nil)

// Hello implements protocol.Operations.
func (c *Cloud) Hello(context.Context, protocol.Hello) (protocol.Driver, error) {
	described := protocol.Driver{Name: "fakecloud"}
	for _, f := range slices.Concat(shownFeatures, conformance.OperationFeatures(), c.faultFeatures()) {
		if c.hasFeature(f) {
			described.Features = append(described.Features, string(f))
		}
	}
	return described, nil
}

// shownFeatures are those that answers show, and what the cluster can do.
var shownFeatures = []conformance.Feature{
	conformance.FeatureNodeNames, conformance.FeatureZones, conformance.FeatureInstanceTypes, conformance.FeatureUDP,
	conformance.FeatureBlackholes, conformance.FeatureUnlikeInstances, conformance.FeatureSeveralAddresses,
	conformance.FeatureDualStack, conformance.FeatureCapitalNames, conformance.FeatureListeners,
	conformance.FeatureTargets, conformance.FeatureSourceRanges, conformance.FeatureAffinity,
	conformance.FeatureAffinityTimeout, conformance.FeatureHealthCheck, conformance.FeaturePassThrough,
	conformance.FeatureNodePorts, conformance.FeatureMachines, conformance.FeatureKubeletProviderIDs,
}

// hasFeature tells whether the cloud, as it was set up, has one of the features that it can have.
func (c *Cloud) hasFeature(f conformance.Feature) bool {
	switch f {
	case conformance.FeatureSeveralAddresses, conformance.FeatureDualStack, conformance.FeatureCapitalNames:
		return c.Names.Dialect == "" // Others show an instance's first address alone, and may have rules for names.
	case conformance.FeatureListeners, conformance.FeatureTargets, conformance.FeatureSourceRanges,
		conformance.FeatureAffinity, conformance.FeatureAffinityTimeout, conformance.FeatureHealthCheck:
		return !c.balancersAreAddresses() // An address has all ports, and leads to one Node.
	case conformance.FeaturePassThrough:
		return c.PassThrough
	case conformance.FeatureNodePorts:
		return !c.PassThrough && !c.balancersAreAddresses()
	case conformance.FeatureMachines:
		return c.Machines
	case conformance.FeatureTraffic:
		return c.Traffic
	case conformance.FeatureKubeletProviderIDs:
		return c.KubeletProviderIDs
	case conformance.FeatureExpiry, conformance.FeatureOtherProject:
		return c.TokenFile != ""
	case conformance.FeatureCARenewal:
		return c.CAFile != ""
	}
	return true
}

// CreateInstance implements protocol.Operations. One that is no machine is the
// cluster's all the same: a CCM may look at no others.
func (c *Cloud) CreateInstance(ctx context.Context, spec conformance.InstanceSpec) (conformance.Instance, error) {
	made, err := c.requestDualStackInstance(ctx, spec)
	if err != nil {
		return conformance.Instance{}, err
	}
	i, err := c.awaitState(ctx, made.ID, api.InstanceRunning)
	if err == nil && spec.External {
		i, err = c.attachExternalAddress(ctx, made.ID)
	}
	return c.toInstance(i, err)
}

// CreateNamesakeInstance implements protocol.Operations.
func (c *Cloud) CreateNamesakeInstance(ctx context.Context, body protocol.Name) (conformance.Instance, error) {
	tags := c.Names.instanceTags(c.stranger(), false)
	made, err := c.API.CreateInstance(ctx, api.InstanceCreate{Name: body.Name, Tags: tags})
	if err == nil {
		made, err = c.awaitState(ctx, made.ID, api.InstanceRunning)
	}
	return c.toInstance(made, err)
}

// requestDualStackInstance requests an instance with two further addresses, unless it is a machine, or the
// cloud speaks as another.
func (c *Cloud) requestDualStackInstance(
	ctx context.Context, spec conformance.InstanceSpec,
) (made *api.Instance, err error) {
	if spec.Machine || c.Names.Dialect != "" {
		return c.requestInstance(ctx, spec)
	}
	for {
		secondary, err := c.drawAddresses(ctx)
		if err != nil {
			return nil, err
		}
		made, err = c.requestInstance(ctx, spec, secondary...)
		if !client.HasCode(err, api.AddressInUse) {
			return made, err
		}
	}
}

// drawAddresses draws an IPv6 address, and an IPv4 one of the network that instances are in.
func (c *Cloud) drawAddresses(ctx context.Context) ([]string, error) {
	networks, err := c.API.ListNetworks(ctx, client.NetworkFilter{})
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(networks, func(n api.Network) bool { return n.Default })
	if i < 0 {
		return nil, errors.New("the project has no default network")
	}
	network, err := netip.ParsePrefix(networks[i].Cidr)
	if err != nil {
		return nil, err
	}
	v4, v6 := network.Addr().As4(), netip.MustParseAddr("fd00:cc::").As16()
	first := binary.BigEndian.Uint32(v4[:])
	binary.BigEndian.PutUint32(v4[:], first|rand.Uint32()>>network.Bits()) //nolint:gosec // No secret.
	binary.BigEndian.PutUint64(v6[8:], rand.Uint64())                      //nolint:gosec // No secret.
	return []string{netip.AddrFrom16(v6).String(), netip.AddrFrom4(v4).String()}, nil
}

func (c *Cloud) requestInstance(
	ctx context.Context, spec conformance.InstanceSpec, secondary ...string,
) (*api.Instance, error) {
	tags := c.Names.instanceTags(c.Cluster, spec.Machine)
	create := api.InstanceCreate{Name: spec.Name, Zone: spec.Zone, SecondaryAddresses: secondary, Tags: tags}
	if spec.Unlike != "" {
		if err := c.setUnlike(ctx, &create, spec.Unlike); err != nil {
			return nil, err
		}
	}
	return c.API.CreateInstance(ctx, create)
}

// setUnlike asks for another zone, if there is one, and another type than an instance has.
func (c *Cloud) setUnlike(ctx context.Context, create *api.InstanceCreate, id string) error {
	other, err := c.API.GetInstance(ctx, id)
	if err != nil {
		return err
	}
	zones, err := c.zoneNames(ctx)
	if err != nil {
		return err
	}
	if i := slices.IndexFunc(zones, func(zone string) bool { return zone != other.Zone }); i >= 0 {
		create.Zone = zones[i]
	}
	unlike := api.InstanceTypeMedium
	if other.Type == unlike {
		unlike = api.InstanceTypeSmall
	}
	create.Type = unlike
	return nil
}

// toInstance returns the instance of the cloud's answer, unless that is an error.
func (c *Cloud) toInstance(i *api.Instance, err error) (conformance.Instance, error) {
	if err != nil {
		return conformance.Instance{}, err
	}
	return c.instanceOf(i), nil
}

func (c *Cloud) instanceOf(i *api.Instance) conformance.Instance {
	out := conformance.Instance{
		ID: i.ID, Name: i.Name, ProviderID: c.Names.providerID(i), Zone: i.Zone,
		Type:   cmp.Or(c.Names.InstanceTypes[string(i.Type)], string(i.Type)),
		Region: cmp.Or(c.Names.Region, i.Region),
	}
	if c.Names.RegionIsZone {
		out.Region = i.Zone
	}
	for _, a := range i.Addresses {
		if a.Type == api.AddressExternal {
			out.ExternalIPs = append(out.ExternalIPs, a.IP)
		} else {
			out.InternalIPs = append(out.InternalIPs, a.IP)
		}
	}
	if c.Names.ExternalAddresses {
		for _, ip := range out.InternalIPs {
			out.ExternalIPs = append(out.ExternalIPs, ip, identity.IPv6Of(ip))
		}
		out.InternalIPs = nil
	}
	return out
}

// StopInstance implements protocol.Operations.
func (c *Cloud) StopInstance(ctx context.Context, id string) error {
	return c.bringTo(ctx, api.InstanceStopped, c.API.StopInstance, id)
}

// StartInstance implements protocol.Operations.
func (c *Cloud) StartInstance(ctx context.Context, id string) error {
	return c.bringTo(ctx, api.InstanceRunning, c.API.StartInstance, id)
}

// TerminateInstance implements protocol.Operations.
func (c *Cloud) TerminateInstance(ctx context.Context, id string) error {
	if _, err := c.API.TerminateInstance(ctx, id); err != nil {
		return unlessNotFound(err)
	}
	if _, err := c.awaitState(ctx, id, api.InstanceTerminated); err != nil {
		return err
	}
	return c.releaseExternalAddress(ctx, id)
}

// attachExternalAddress gives an instance an external address, which it has until its end.
func (c *Cloud) attachExternalAddress(ctx context.Context, instance string) (*api.Instance, error) {
	made, err := c.API.ReserveAddress(ctx, api.ReservedAddressCreate{})
	if err != nil {
		return nil, err
	}
	c.externalAddresses.Store(instance, made.ID)
	if _, err := c.API.AttachAddress(ctx, made.ID, api.AddressAttach{InstanceID: instance}); err != nil {
		return nil, err
	}
	return c.API.GetInstance(ctx, instance)
}

// releaseExternalAddress releases the address of an instance that has ended, if it had one.
func (c *Cloud) releaseExternalAddress(ctx context.Context, instance string) error {
	id, exposed := c.externalAddresses.LoadAndDelete(instance)
	if !exposed {
		return nil
	}
	return unlessNotFound(c.API.ReleaseAddress(ctx, id.(string)))
}

// ChangeAddresses implements protocol.Operations. The external address is another then.
func (c *Cloud) ChangeAddresses(ctx context.Context, instanceID string) (conformance.Instance, error) {
	if id, exposed := c.externalAddresses.Load(instanceID); exposed {
		if _, err := c.API.DetachAddress(ctx, id.(string)); err != nil {
			return conformance.Instance{}, err
		}
		if err := c.releaseExternalAddress(ctx, instanceID); err != nil {
			return conformance.Instance{}, err
		}
	}
	return c.toInstance(c.attachExternalAddress(ctx, instanceID))
}

// RenameInstance implements protocol.Operations.
func (c *Cloud) RenameInstance(ctx context.Context, id string, body protocol.Name) (conformance.Instance, error) {
	return c.toInstance(c.API.UpdateInstance(ctx, id, api.ResourceUpdate{Name: &body.Name}))
}

// RebootInstance implements protocol.Operations.
func (c *Cloud) RebootInstance(ctx context.Context, id string) error {
	return c.bringTo(ctx, api.InstanceRunning, c.API.RebootInstance, id)
}

// bringTo changes an instance, and returns when it is in that state.
func (c *Cloud) bringTo(
	ctx context.Context, want api.InstanceState, change func(context.Context, string) (*api.Instance, error), id string,
) error {
	if _, err := change(ctx, id); err != nil {
		return err
	}
	_, err := c.awaitState(ctx, id, want)
	return err
}

func (c *Cloud) awaitState(ctx context.Context, id string, want api.InstanceState) (i *api.Instance, err error) {
	return i, pollUntil(ctx, func() (done bool, err error) {
		i, err = c.API.GetInstance(ctx, id)
		if client.IsNotFound(err) && want == api.InstanceTerminated {
			return true, nil
		}
		return err == nil && i.State == want, err
	})
}

// ListBalancers implements protocol.Operations. The cluster may have been renamed, so that all that
// are somebody's are the cluster's, but for the stranger's.
func (c *Cloud) ListBalancers(ctx context.Context) (protocol.BalancerList, error) {
	if c.balancersAreAddresses() {
		return c.listAttachedAddresses(ctx)
	}
	all, err := c.API.ListLoadBalancers(ctx, client.LoadBalancerFilter{Tags: []string{c.Names.serviceTag()}})
	if err != nil {
		return protocol.BalancerList{}, err
	}
	all = slices.DeleteFunc(all, func(lb api.LoadBalancer) bool { return lb.Tags[c.Names.clusterTag()] == c.stranger() })
	out := make([]conformance.Balancer, len(all))
	for i, lb := range all {
		out[i] = c.balancerOf(&lb)
	}
	return protocol.BalancerList{Balancers: out}, nil
}

// GetBalancer implements protocol.Operations.
func (c *Cloud) GetBalancer(ctx context.Context, id string) (conformance.Balancer, error) {
	if c.balancersAreAddresses() {
		return c.getAttachedAddress(ctx, id)
	}
	lb, err := c.API.GetLoadBalancer(ctx, id)
	return c.toBalancer(lb, orNotFound(err))
}

// orNotFound returns protocol.ErrNotFound where the error says that there is no such thing.
func orNotFound(err error) error {
	if client.IsNotFound(err) {
		return protocol.ErrNotFound
	}
	return err
}

// unlessNotFound returns the error, or nil where it says that there is no such thing.
func unlessNotFound(err error) error {
	if client.IsNotFound(err) {
		return nil
	}
	return err
}

// toBalancer returns the balancer of the cloud's answer, unless that is an error.
func (c *Cloud) toBalancer(lb *api.LoadBalancer, err error) (conformance.Balancer, error) {
	if err != nil {
		return conformance.Balancer{}, err
	}
	return c.balancerOf(lb), nil
}

func (c *Cloud) balancerOf(lb *api.LoadBalancer) conformance.Balancer {
	b := conformance.Balancer{
		ID: lb.ID, Name: lb.Name, Service: types.UID(lb.Tags[c.Names.serviceTag()]), Address: lb.PublicAddresses()[0],
		Active: lb.State == api.LoadBalancerActive, SourceRanges: lb.SourceRanges,
		Affinity:        lb.ClientAffinitySeconds > 0,
		AffinitySeconds: int32(lb.ClientAffinitySeconds), //nolint:gosec // At most a day.
		Tags:            slices.Sorted(maps.Keys(lb.Tags)),
	}
	if address, err := netip.ParseAddr(b.Address); err == nil && address.Is4() {
		byNumber, byParts := dns.NamesOf(address)
		b.HostNames = []string{byNumber, byParts}
	}
	for _, l := range lb.Listeners {
		b.Listeners = append(b.Listeners, conformance.Listener{
			Protocol: strings.ToUpper(string(l.Transport())), Port: int32(l.Port), TargetPort: int32(l.TargetPort), //nolint:gosec // Ports.
		})
	}
	for _, t := range lb.Targets {
		b.Targets = append(b.Targets, t.InstanceID)
	}
	b.HealthChecked, b.HealthCheckPort = healthCheckOf(lb)
	return b
}

// healthCheckOf tells whether all of a balancer's listeners check their targets, and the port
// that all of them ask by HTTP; 0 if there is none.
func healthCheckOf(lb *api.LoadBalancer) (checked bool, port int32) {
	checks := []api.HealthCheck{}
	for _, l := range lb.Listeners {
		checks = append(checks, l.CheckInForce(lb.HealthCheck))
	}
	if len(checks) == 0 {
		checks = append(checks, api.ValueOf(lb.HealthCheck))
	}
	if slices.Contains(checks, api.HealthCheck{}) {
		return false, 0
	}
	asksElsewhere := func(h api.HealthCheck) bool {
		return h.Protocol != api.HealthCheckHTTP || h.Port != checks[0].Port
	}
	if slices.ContainsFunc(checks, asksElsewhere) {
		return true, 0
	}
	return true, int32(checks[0].Port) //nolint:gosec // A port.
}

// DeleteBalancer implements protocol.Operations.
func (c *Cloud) DeleteBalancer(ctx context.Context, id string) error {
	if c.balancersAreAddresses() {
		return c.deleteAttachedAddress(ctx, id)
	}
	if _, err := c.API.DeleteLoadBalancer(ctx, id); err != nil && !client.IsNotFound(err) {
		return err
	}
	return pollUntil(ctx, func() (bool, error) {
		_, err := c.API.GetLoadBalancer(ctx, id)
		return client.IsNotFound(err), unlessNotFound(err)
	})
}

// RenameBalancer implements protocol.Operations.
func (c *Cloud) RenameBalancer(ctx context.Context, id string, body protocol.Name) error {
	_, err := c.API.UpdateLoadBalancer(ctx, id, api.LoadBalancerUpdate{Name: &body.Name})
	return err
}

// ChangeBalancer implements protocol.Operations.
func (c *Cloud) ChangeBalancer(ctx context.Context, id string, body protocol.BalancerChange) error {
	update := api.LoadBalancerUpdate{Listeners: &api.Listeners{}, Targets: &api.Targets{}}
	for _, l := range body.Listeners {
		if c.PassThrough { // A network balancer changes no ports.
			l.TargetPort = l.Port
		}
		*update.Listeners = append(*update.Listeners, api.Listener{
			Protocol: api.Protocol(strings.ToLower(l.Protocol)), Port: int(l.Port), TargetPort: int(l.TargetPort),
		})
	}
	for _, t := range body.Targets {
		*update.Targets = append(*update.Targets, api.Target{InstanceID: t})
	}
	_, err := c.API.UpdateLoadBalancer(ctx, id, update)
	return err
}

// ResetBalancer implements protocol.Operations.
func (c *Cloud) ResetBalancer(ctx context.Context, id string) (conformance.Balancer, error) {
	return c.toBalancer(c.API.UpdateLoadBalancer(ctx, id, api.LoadBalancerUpdate{
		HealthCheck:  &api.HealthCheck{Protocol: api.HealthCheckNone},
		SourceRanges: &api.SourceRanges{}, ClientAffinitySeconds: new(api.ClientAffinitySeconds),
	}))
}

// TagBalancer implements protocol.Operations.
func (c *Cloud) TagBalancer(ctx context.Context, id string, body protocol.Name) error {
	return pollUntil(ctx, func() (done bool, err error) {
		lb, err := c.API.GetLoadBalancer(ctx, id)
		if err != nil {
			return false, err
		}
		tags := api.Tags{body.Name: "somebody"}
		maps.Copy(tags, lb.Tags)
		_, err = c.API.UpdateLoadBalancer(client.IfMatch(ctx, lb.Version), id, api.LoadBalancerUpdate{Tags: &tags})
		if client.HasCode(err, api.PreconditionFailed) { // The CCM has changed it meanwhile.
			return false, nil
		}
		return err == nil, err
	})
}

// ReserveAddress implements protocol.Operations.
func (c *Cloud) ReserveAddress(ctx context.Context) (protocol.ReservedAddress, error) {
	made, err := c.API.ReserveAddress(ctx, api.ReservedAddressCreate{})
	if err != nil {
		return protocol.ReservedAddress{}, err
	}
	return protocol.ReservedAddress{ID: made.ID, Address: made.IP}, nil
}

// ReleaseAddress implements protocol.Operations.
func (c *Cloud) ReleaseAddress(ctx context.Context, id string) error {
	return unlessNotFound(c.API.ReleaseAddress(ctx, id))
}

// CreateForeignBalancer implements protocol.Operations. It belongs to another cluster
// and to a Service there, as a neighbour's in the same project would.
func (c *Cloud) CreateForeignBalancer(ctx context.Context, body protocol.Name) (conformance.Balancer, error) {
	return c.createStrangersBalancer(ctx, body.Name, api.Tags{c.Names.clusterTag(): c.stranger()})
}

// CreateNamesakeBalancer implements protocol.Operations.
func (c *Cloud) CreateNamesakeBalancer(ctx context.Context, body protocol.Name) (conformance.Balancer, error) {
	tags := c.namesakeTags()
	tags[contract.TagService] = "default/namesake" // Of which there is none here.
	return c.createStrangersBalancer(ctx, body.Name, tags)
}

// namesakeUID is that of another cluster with the same name.
const namesakeUID = "b1c6f1ba-0000-4000-8000-000000000001"

// namesakeTags are on what another cluster of the same name has.
func (c *Cloud) namesakeTags() api.Tags {
	return api.Tags{c.Names.clusterTag(): c.Cluster, c.Names.clusterUIDTag(): namesakeUID}
}

// createStrangersBalancer makes a balancer of a Service that is in another cluster, by these tags.
func (c *Cloud) createStrangersBalancer(
	ctx context.Context, name string, tags api.Tags,
) (conformance.Balancer, error) {
	tags[c.Names.serviceTag()] = "b1c6f1ba-0000-4000-8000-000000000000"
	return c.createBalancer(ctx, api.LoadBalancerCreate{
		Name:      name,
		Listeners: []api.Listener{{Protocol: api.ProtocolTCP, Port: strangersPort, TargetPort: strangersPort}},
		Tags:      tags,
	})
}

// CreateTwinBalancer implements protocol.Operations.
func (c *Cloud) CreateTwinBalancer(ctx context.Context, id string) (conformance.Balancer, error) {
	lb, err := c.API.GetLoadBalancer(ctx, id)
	if err != nil {
		return conformance.Balancer{}, err
	}
	return c.createBalancer(ctx, api.LoadBalancerCreate{
		Name: lb.Name + "-twin", Listeners: lb.Listeners, Targets: lb.Targets, Tags: lb.Tags,
	})
}

// LimitBalancers implements protocol.Operations.
func (c *Cloud) LimitBalancers(ctx context.Context) (protocol.Injection, error) {
	return c.exhaustQuota(ctx, func(q *api.Quotas) api.QuotasUpdate {
		if c.balancersAreAddresses() {
			return api.QuotasUpdate{Addresses: &q.Addresses.Limit}
		}
		return api.QuotasUpdate{LoadBalancers: &q.LoadBalancers.Limit}
	})
}

// exhaustQuota sets a limit of the project to 0, and back when that is lifted. limitOf has that of these quotas.
func (c *Cloud) exhaustQuota(
	ctx context.Context, limitOf func(*api.Quotas) api.QuotasUpdate,
) (protocol.Injection, error) {
	project, err := c.API.Project(ctx)
	if err != nil {
		return protocol.Injection{}, err
	}
	before, err := c.API.ProjectQuotas(ctx, project.ID)
	if err != nil {
		return protocol.Injection{}, err
	}
	set := func(ctx context.Context, quotas *api.Quotas) error {
		_, err := c.API.UpdateProjectQuotas(ctx, project.ID, limitOf(quotas))
		if err != nil {
			err = fmt.Errorf("limiting what the project may have: %w", err)
		}
		return err
	}
	lift := func(ctx context.Context) error { return set(ctx, before) }
	return c.Hold(exhaustedQuota{lift}, set(ctx, &api.Quotas{}))
}

// exhaustedQuota counts no hits.
type exhaustedQuota struct {
	lift func(context.Context) error
}

func (exhaustedQuota) Hits(context.Context) (int, error) { return 0, nil }

func (q exhaustedQuota) Lift(ctx context.Context) error { return q.lift(ctx) }

// createBalancer returns when the balancer serves.
func (c *Cloud) createBalancer(ctx context.Context, create api.LoadBalancerCreate) (conformance.Balancer, error) {
	lb, err := c.API.CreateLoadBalancer(ctx, create)
	if err != nil {
		return conformance.Balancer{}, err
	}
	var b conformance.Balancer
	return b, pollUntil(ctx, func() (bool, error) {
		var err error
		b, err = c.GetBalancer(ctx, lb.ID)
		return b.Active, err
	})
}

const strangersPort = 32123

// stranger is another cluster's name.
func (c *Cloud) stranger() string { return c.Cluster + ".stranger" }

// CountConnections implements protocol.Operations.
func (c *Cloud) CountConnections(ctx context.Context, id string) (counts protocol.ConnectionCounts, err error) {
	if c.balancersAreAddresses() {
		return protocol.ConnectionCounts{Uncounted: true}, nil
	}
	stats, err := c.API.LoadBalancerStats(ctx, id)
	if err != nil {
		return counts, err
	}
	for _, l := range stats.Listeners {
		counts.Ports = append(counts.Ports, protocol.PortConnections{
			Port: int32(l.Port), Connections: l.Connections, //nolint:gosec // A port.
		})
	}
	return counts, nil
}

// CountCalls implements protocol.Operations.
func (c *Cloud) CountCalls(ctx context.Context) (protocol.CallCounts, error) {
	counted, err := c.API.SumAudit(ctx, client.AuditFilter{Token: c.Token}, api.AuditByOperation)
	return sumOf(counted).ToProtocol(), err
}

// sumOf sums calls up by what they are about.
func sumOf(counted []api.AuditSum) conformance.Calls {
	sum := conformance.Calls{Of: map[conformance.Thing]conformance.Count{}}
	for _, n := range counted {
		count := conformance.Count{Reads: int(n.Calls)}
		if isWrite(n.Operation) {
			count = conformance.Count{Writes: int(n.Calls)}
		}
		sum.Count = sum.And(count)
		if thing, known := thingOf(n.Operation); known {
			sum.Of[thing] = sum.Of[thing].And(count)
		}
	}
	return sum
}

// thingOf is the thing that an operation of the API is about, if it is one that
// the suite knows. Addresses are what balancers have.
func thingOf(operation string) (conformance.Thing, bool) {
	switch {
	case strings.Contains(operation, "InstanceType"):
		return "", false
	case strings.Contains(operation, "Instance"):
		return conformance.Instances, true
	case strings.Contains(operation, "LoadBalancer"), strings.Contains(operation, "Address"):
		return conformance.Balancers, true
	case strings.Contains(operation, "Route"):
		return conformance.Routes, true
	}
	return "", false
}

// isWrite tells whether an operation of the API changes something. A dialect's call that came to no operation has
// its method in its name.
func isWrite(operation string) bool {
	if _, wire, ok := strings.Cut(operation, " "); ok {
		return !strings.HasPrefix(wire, http.MethodGet+" ")
	}
	return !slices.ContainsFunc([]string{"get", "list", "stream"}, func(p string) bool {
		return strings.HasPrefix(operation, p)
	})
}

const pollEvery = 50 * time.Millisecond

// pollUntil looks until done, an error or the end of ctx.
func pollUntil(ctx context.Context, look func() (done bool, err error)) error {
	var failed error
	if wait.PollUntilContextCancel(ctx, pollEvery, true, func(context.Context) (done bool, err error) {
		done, failed = look()
		return done, failed
	}) == nil || failed != nil {
		return failed
	}
	return fmt.Errorf("waiting for the cloud: %w", context.Cause(ctx))
}
