package hcloud

import (
	"context"
	"slices"
	"strings"

	"github.com/hetznercloud/hcloud-go/v2/hcloud/schema"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
	"github.com/ccmlab/ccmlab/fakecloud/dialect"
)

// expectedCodes makes ranges of statuses of patterns in which "?" stands for any digit, as in
// "2??".
func expectedCodes(patterns []string) string {
	var codes []string
	for _, p := range patterns {
		low, high := strings.ReplaceAll(p, "?", "0"), strings.ReplaceAll(p, "?", "9")
		if low != high {
			low += "-" + high
		}
		codes = append(codes, low)
	}
	return strings.Join(codes, ",")
}

type targetRequest struct {
	Type   string `json:"type"`
	Server *struct {
		ID int64 `json:"id"`
	} `json:"server,omitempty"`
	UsePrivateIP *bool `json:"use_private_ip,omitempty"`
}

// find gives the server of a target. Other types of targets are refused.
func (q targetRequest) find(ctx context.Context, r *dialect.Request) (*api.Instance, error) {
	if q.Type != "server" {
		return nil, &cloud.Error{Code: unsupported, Message: "this imitation has targets of type server only"}
	}
	if q.Server == nil {
		return nil, dialect.Invalid("server", "must be given")
	}
	return readInstance(ctx, r, q.Server.ID)
}

func addTarget(ctx context.Context, r *dialect.Request, b *balancer, q targetRequest) error {
	in, err := q.find(ctx, r)
	if err != nil {
		return err
	}
	target := api.Target{InstanceID: in.ID}
	private := q.UsePrivateIP != nil && *q.UsePrivateIP
	hasPublic := slices.ContainsFunc(in.Addresses, func(a api.Address) bool { return a.Type == api.AddressExternal })
	switch {
	case slices.Contains(b.Targets, target):
		return &cloud.Error{Code: targetDefined, Message: "load balancer target is already defined"}
	case private && b.NetworkID == nil:
		return &cloud.Error{Code: notAttached, Message: "load balancer is not attached to a network"}
	case !private && !hasPublic:
		return &cloud.Error{Code: missingIPv4, Message: "server " + in.Name + " has no public IPv4 address"}
	}
	if private {
		b.record.PrivateTargets = append(b.record.PrivateTargets, in.Serial)
	}
	targets := append(slices.Clone(b.Targets), target)
	b.update.Targets = &targets
	return nil
}

func removeTarget(ctx context.Context, r *dialect.Request, b *balancer, q targetRequest) error {
	if q.Type != "server" || q.Server == nil {
		return dialect.Invalid("server", "must be given, with type server")
	}
	// A server that is gone may still be a target.
	id, err := r.ResourceID(ctx, cloud.InstanceResource, q.Server.ID)
	if err != nil {
		return err
	}
	target := api.Target{InstanceID: id}
	if !slices.Contains(b.Targets, target) {
		return dialect.NotFound("server %d is no target of the load balancer", q.Server.ID)
	}
	b.record.PrivateTargets = slices.DeleteFunc(b.record.PrivateTargets, func(s int64) bool { return s == q.Server.ID })
	targets := slices.DeleteFunc(slices.Clone(b.Targets), func(t api.Target) bool { return t == target })
	b.update.Targets = &targets
	return nil
}

func changeAlgorithm(
	_ context.Context,
	_ *dialect.Request,
	b *balancer,
	q schema.LoadBalancerActionChangeAlgorithmRequest,
) error {
	algorithm, err := algorithmNamed(q.Type)
	b.update.Algorithm = &algorithm
	return err
}

func changeType(
	_ context.Context,
	_ *dialect.Request,
	b *balancer,
	q schema.LoadBalancerActionChangeTypeRequest,
) error {
	kind, err := findType(q.LoadBalancerType)
	b.update.Type = &kind
	return err
}

func changeDNSPtr(
	_ context.Context,
	_ *dialect.Request,
	b *balancer,
	q schema.LoadBalancerActionChangeDNSPtrRequest,
) error {
	if q.IP != b.Address && (b.IPv6Address == nil || q.IP != *b.IPv6Address) {
		return dialect.Invalid("ip", "%q is no public address of the load balancer", q.IP)
	}
	if b.record.DNSPtr == nil {
		b.record.DNSPtr = map[string]string{}
	}
	delete(b.record.DNSPtr, q.IP)
	if q.DNSPtr != nil {
		b.record.DNSPtr[q.IP] = *q.DNSPtr
	}
	return nil
}

type attachRequest struct {
	Network int64   `json:"network"`
	IP      *string `json:"ip,omitempty"`
	IPRange *string `json:"ip_range,omitempty"`
}

func attachToNetwork(ctx context.Context, r *dialect.Request, b *balancer, q attachRequest) error {
	n, err := readNetwork(ctx, r, q.Network)
	if err != nil {
		return err
	}
	if b.NetworkID != nil {
		return &cloud.Error{Code: alreadyAttached, Message: "load balancer is already attached to a network"}
	}
	if q.IPRange != nil && *q.IPRange != n.Cidr {
		return dialect.Invalid("ip_range", "%q is no subnet of the network: it has %s alone", *q.IPRange, n.Cidr)
	}
	b.update.NetworkID, b.update.PrivateAddress = &n.ID, q.IP
	return nil
}

type detachRequest struct {
	Network int64 `json:"network"`
}

func detachFromNetwork(ctx context.Context, r *dialect.Request, b *balancer, q detachRequest) error {
	network, err := r.ResourceID(ctx, cloud.NetworkResource, q.Network)
	switch {
	case err != nil:
		return err
	case b.NetworkID == nil || *b.NetworkID != network:
		return &cloud.Error{Code: notAttached, Message: "load balancer is not attached to the network"}
	case len(b.record.PrivateTargets) > 0:
		return &cloud.Error{Code: cloud.InUse, Message: "load balancer has targets with use_private_ip"}
	}
	b.update.NetworkID = new("")
	return nil
}

// schemeOf is the scheme of a balancer whose public interface is on, or off.
func schemeOf(public bool) *api.LoadBalancerScheme {
	if public {
		return new(api.SchemePublic)
	}
	return new(api.SchemeInternal)
}

// setPublicInterface gives the change of an action that switches the public interface on or off.
func setPublicInterface(enabled bool) func(context.Context, *dialect.Request, *balancer, struct{}) error {
	return func(_ context.Context, _ *dialect.Request, b *balancer, _ struct{}) error {
		b.update.Scheme = schemeOf(enabled)
		return nil
	}
}
