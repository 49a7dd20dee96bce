package hcloud

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/hetznercloud/hcloud-go/v2/hcloud/schema"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
	"github.com/ccmlab/ccmlab/fakecloud/dialect"
)

// serverRecord is what a server was told and its instance does not have. Fields are only ever added.
type serverRecord struct {
	ServerType string     `json:"serverType,omitempty"`
	Image      string     `json:"image,omitempty"`
	Protection protection `json:"protection,omitzero"`
	// UserData can be read from the metadata of the server.
	UserData string `json:"userData,omitempty"`
	// Detached tells that it is in no private network, though its instance always is.
	Detached bool              `json:"detached,omitempty"`
	DNSPtr   map[string]string `json:"dnsPtr,omitempty"`
}

// serverJSON is one as Hetzner's JSON has it, with null for what is not there.
type serverJSON struct {
	schema.Server
	PublicNet  serverPublicNet    `json:"public_net"`
	Datacenter *schema.Datacenter `json:"datacenter"`
}

type serverPublicNet struct {
	IPv4        *schema.ServerPublicNetIPv4 `json:"ipv4"`
	IPv6        *schema.ServerPublicNetIPv6 `json:"ipv6"`
	FloatingIPs []int64                     `json:"floating_ips"`
	Firewalls   []schema.ServerFirewall     `json:"firewalls"`
}

// servers are without those that are terminated: Hetzner Cloud keeps no servers that were deleted.
var servers = collection[api.Instance, serverJSON]{
	one: "server", kind: api.ResourceInstance, filters: []string{"status"}, show: toServer,
	get: (*dialect.Request).GetInstance, gone: dialect.IsGone, update: (*dialect.Request).UpdateInstance,
	list: func(ctx context.Context, r *dialect.Request, name string) ([]api.Instance, error) {
		found, err := r.ListInstances(ctx, client.InstanceFilter{Name: name})
		wanted := r.HTTP.URL.Query()["status"]
		return slices.DeleteFunc(found, func(in api.Instance) bool {
			return len(wanted) > 0 && !slices.Contains(wanted, serverStatuses[in.State])
		}), err
	},
}

var serverCalls = append(
	refusedActions(),
	dialect.Handle(http.MethodPost, servers.path(), nil, createServer).Answers(http.StatusCreated),
	dialect.Handle(http.MethodDelete, servers.path()+"/{id}", nil, deleteServer),
	instanceAction("poweron", "start_server", (*dialect.Request).StartInstance),
	instanceAction("poweroff", "stop_server", (*dialect.Request).StopInstance),
	instanceAction("shutdown", "shutdown_server", (*dialect.Request).StopInstance),
	instanceAction("reboot", "reboot_server", (*dialect.Request).RebootInstance),
	instanceAction("reset", "reset_server", (*dialect.Request).RebootInstance),
	changeAction(&servers, "change_protection", protectServer),
	resourceAction(&servers, "change_type", changeServerType),
	changeAction(&servers, "change_dns_ptr", func(s *serverRecord, q dnsPtrRequest) error {
		return q.putInto(&s.DNSPtr)
	}),
	resourceAction(&servers, "attach_to_network", attachServer),
	resourceAction(&servers, "detach_from_network", detachServer),
)

// serverStatuses are Hetzner's words for the states of instances.
var serverStatuses = map[api.InstanceState]string{
	api.InstancePending:     "initializing",
	api.InstanceRunning:     "running",
	api.InstanceStopping:    "stopping",
	api.InstanceStopped:     "off",
	api.InstanceTerminating: "deleting",
	api.InstanceError:       "unknown",
}

func toServer(ctx context.Context, r *dialect.Request, in *api.Instance) (s serverJSON, err error) {
	record, err := readRecord[serverRecord](in.Records)
	if err != nil {
		return s, err
	}
	kind := serverTypeOf(record.ServerType, in.Type)
	datacenter := datacenterOf(r, in.Zone)
	s.Datacenter = &datacenter
	s.Server = schema.Server{
		ID: in.Serial, Name: in.Name, Status: serverStatuses[in.State], Created: in.CreatedAt, Labels: in.Tags,
		Location: locationNamed(r, in.Zone), ServerType: kind.show(r), PrimaryDiskSize: kind.disk,
		Protection: schema.ServerProtection(record.Protection), OutgoingTraffic: new(uint64), IngoingTraffic: new(uint64),
		Volumes: []int64{}, LoadBalancers: []int64{}, PrivateNet: []schema.ServerPrivateNet{},
	}
	if record.Image != "" {
		image, err := findByIDOrName("image", allImages, schema.IDOrName{Name: record.Image})
		if err != nil {
			return s, err
		}
		s.Image = &image.shown
	}
	if s.PublicNet, err = publicNetOf(ctx, r, in, record); err != nil || record.Detached {
		return s, err
	}
	networks, err := r.NetworkSerials(ctx)
	for _, a := range in.Addresses {
		switch {
		case strings.Contains(a.IP, ":") || a.Type != api.AddressInternal: // Hetzner's networks have no IPv6 addresses.
		case len(s.PrivateNet) > 0:
			s.PrivateNet[0].AliasIPs = append(s.PrivateNet[0].AliasIPs, a.IP)
		default:
			s.PrivateNet = append(s.PrivateNet, schema.ServerPrivateNet{
				Network: networks[in.NetworkID], IP: a.IP, AliasIPs: []string{}, MACAddress: macOf(in.Serial),
			})
		}
	}
	return s, err
}

// publicNetOf gives the primary IPs of a server.
func publicNetOf(
	ctx context.Context,
	r *dialect.Request,
	in *api.Instance,
	record serverRecord,
) (net serverPublicNet, err error) {
	net.FloatingIPs, net.Firewalls = []int64{}, []schema.ServerFirewall{}
	addresses, err := r.Addresses(ctx)
	if err != nil {
		return net, err
	}
	for _, external := range in.Addresses {
		at := slices.IndexFunc(addresses, func(a cloud.ReservedAddress) bool { return a.IP == external.IP })
		if at < 0 || external.Type != api.AddressExternal || net.IPv4 != nil {
			continue
		}
		a := addresses[at]
		net.IPv4 = &schema.ServerPublicNetIPv4{ID: a.Serial, IP: a.IP, DNSPtr: namesOf(a.IP, record.DNSPtr)[a.IP]}
	}
	assigned, err := ipv6Of(ctx, r, in.Serial)
	for _, a := range assigned {
		net.IPv6 = &schema.ServerPublicNetIPv6{ID: a.Serial, IP: a.IP, DNSPtr: []schema.ServerPublicNetIPv6DNSPtr{}}
	}
	for ip, to := range record.DNSPtr {
		if net.IPv6 != nil && strings.Contains(ip, ":") {
			net.IPv6.DNSPtr = append(net.IPv6.DNSPtr, schema.ServerPublicNetIPv6DNSPtr{IP: ip, DNSPtr: to})
		}
	}
	return net, err
}

// ipv6Of gives the primary IPs of IPv6 that a server has.
func ipv6Of(ctx context.Context, r *dialect.Request, server int64) (has []api.ReservedAddress, _ error) {
	records, err := listRecords(ctx, r, onePrimaryIP)
	for _, d := range records {
		a := toIPv6(d)
		if record, err := readRecord[ipRecord](a.Records); err == nil && record.Assignee == server {
			has = append(has, a)
		}
	}
	return has, err
}

// macOf makes a hardware address of a server's number.
func macOf(serial int64) string {
	return fmt.Sprintf("86:00:%02x:%02x:%02x:%02x", byte(serial>>24), byte(serial>>16), byte(serial>>8), byte(serial))
}

// recordedIPv6 makes a /64 of a resource's number, in the prefix for documentation (RFC 3849): it leads nowhere.
func recordedIPv6(serial int64) netip.Prefix {
	bytes := [16]byte{0x20, 0x01, 0x0d, 0xb8, byte(serial >> 24), byte(serial >> 16), byte(serial >> 8), byte(serial)}
	return netip.PrefixFrom(netip.AddrFrom16(bytes), 64)
}

// maxUserData is the length of user data.
const maxUserData = 32 << 10

// serverRequest is what is read of a server that is created. Its keys reach no machine.
type serverRequest struct {
	schema.ServerCreateRequest
	Datacenter string            `json:"datacenter"`
	SSHKeys    []schema.IDOrName `json:"ssh_keys,omitempty"`
	PublicNet  *struct {
		EnableIPv4 *bool  `json:"enable_ipv4,omitempty"`
		EnableIPv6 *bool  `json:"enable_ipv6,omitempty"`
		IPv4       *int64 `json:"ipv4,omitempty"`
		IPv6       *int64 `json:"ipv6,omitempty"`
	} `json:"public_net,omitempty"`
}

// isThere tells whether an instance is a server: Hetzner Cloud keeps none that was deleted.
func isThere(in cloud.Instance) bool {
	return in.State != api.InstanceTerminating && in.State != api.InstanceTerminated
}

func refuseUnsupported(what string) error {
	return &cloud.Error{Code: unsupported, Message: what + " is not supported by this cloud"}
}

// unsupportedActions are those of servers that this cloud cannot do.
var unsupportedActions = []string{
	"enable_rescue", "disable_rescue", "rebuild", "reset_password", "enable_backup", "disable_backup", "attach_iso",
	"detach_iso", "add_to_placement_group", "remove_from_placement_group", "create_image", "request_console",
	"change_alias_ips",
}

func refusedActions() (calls []dialect.Call) {
	for _, action := range unsupportedActions {
		refusal := refuseUnsupported("action " + action)
		calls = append(calls, refusedCall(&servers, http.MethodPost, "actions/"+action, refusal))
	}
	return calls
}

// checkSupported refuses what this cloud can neither do nor record.
func (q serverRequest) checkSupported() error {
	for what, asked := range map[string]bool{
		"volumes": len(q.Volumes) > 0, "firewalls": len(q.Firewalls) > 0, "placement_group": q.PlacementGroup != 0,
		"more than one network":       len(q.Networks) > 1,
		"start_after_create of false": q.StartAfterCreate != nil && !*q.StartAfterCreate,
	} {
		if asked {
			return refuseUnsupported(what)
		}
	}
	if len(q.UserData) > maxUserData {
		return dialect.Invalid("user_data", "is longer than %d bytes", maxUserData)
	}
	return checkLabels(api.ValueOf(q.Labels))
}

// toCreate gives the instance that is asked for.
func (q serverRequest) toCreate(ctx context.Context, r *dialect.Request) (create api.InstanceCreate, err error) {
	if err := q.checkSupported(); err != nil {
		return create, err
	}
	if err := checkSSHKeys(ctx, r, q.SSHKeys); err != nil {
		return create, err
	}
	kind, err := findByIDOrName("server_type", allServerTypes, q.ServerType)
	if err != nil {
		return create, err
	}
	image, err := findByIDOrName("image", allImages, q.Image)
	if err != nil {
		return create, err
	}
	if q.Name == "" {
		return create, dialect.Invalid("name", "must be given")
	}
	create = api.InstanceCreate{Name: q.Name, Type: kind.native, Tags: api.ValueOf(q.Labels)}
	if create.Zone, err = zoneOf(r, q.Location, q.Datacenter); err != nil {
		return create, err
	}
	if len(q.Networks) == 1 {
		n, err := networks.readSerial(ctx, r, q.Networks[0])
		if err != nil {
			return create, err
		}
		create.NetworkID = n.ID
		if create.Address, err = freeAddressIn(ctx, r, n, ""); err != nil {
			return create, err
		}
	}
	create.Records = dialect.WithRecord(name, nil, serverRecord{
		ServerType: kind.name, Image: image.Name, UserData: q.UserData,
		Detached: len(q.Networks) == 0,
	})
	return create, err
}

type serverCreated struct {
	Server       serverJSON      `json:"server"`
	Action       schema.Action   `json:"action"`
	NextActions  []schema.Action `json:"next_actions"`
	RootPassword *string         `json:"root_password"`
}

func createServer(ctx context.Context, r *dialect.Request, q serverRequest) (any, error) {
	create, err := q.toCreate(ctx, r)
	if err != nil {
		return nil, err
	}
	reserved, release, err := q.reservePrimaryIPs(ctx, r)
	if err != nil {
		return nil, err
	}
	var operation string
	in, err := r.CreateInstance(client.OperationInto(ctx, &operation), create)
	if err != nil {
		release()
		return nil, err
	}
	for _, a := range reserved {
		if err := assignIP(ctx, r, a, in.Serial); err != nil {
			return nil, err
		}
	}
	if in, err = r.GetInstance(ctx, in.ID); err != nil {
		return nil, err
	}
	answer := serverCreated{NextActions: []schema.Action{}}
	if len(q.SSHKeys) == 0 {
		answer.RootPassword = new(newPassword())
	}
	if answer.Action, err = servers.recordAction(ctx, r, "create_server", operation, in); err != nil {
		return nil, err
	}
	answer.Server, err = toServer(ctx, r, in)
	return answer, err
}

// reservePrimaryIPs gives the primary IPs for a new server. release takes back those that were made for it.
func (q serverRequest) reservePrimaryIPs(
	ctx context.Context,
	r *dialect.Request,
) (reserved []*api.ReservedAddress, release func(), err error) {
	var made []*api.ReservedAddress
	release = func() {
		for _, a := range made {
			_ = releaseIP(ctx, r, a) // What was refused says more.
		}
	}
	reserve := func(family string, enabled *bool, given *int64) {
		var a *api.ReservedAddress
		switch {
		case err != nil || given == nil && enabled != nil && !*enabled:
			return
		case given != nil:
			a, err = freePrimaryIP(ctx, r, family, *given)
		default:
			if a, err = reserveIP(ctx, r, family, "", nil, ipRecord{AutoDelete: true}); err == nil {
				made = append(made, a)
			}
		}
		reserved = append(reserved, a)
	}
	net := api.ValueOf(q.PublicNet)
	reserve("ipv4", net.EnableIPv4, net.IPv4)
	reserve("ipv6", net.EnableIPv6, net.IPv6)
	if err != nil {
		release()
	}
	return reserved, release, err
}

// freePrimaryIP reads a primary IP that a server is to have.
func freePrimaryIP(
	ctx context.Context,
	r *dialect.Request,
	family string,
	serial int64,
) (*api.ReservedAddress, error) {
	a, err := primaryIPs.readSerial(ctx, r, serial)
	if err != nil {
		return nil, err
	}
	assignee, err := assigneeOf(ctx, r, a)
	switch {
	case err == nil && assignee != 0:
		err = &cloud.Error{Code: "primary_ip_assigned", Message: "primary IP is already assigned"}
	case err == nil && typeOfIP(a) != family:
		err = &cloud.Error{Code: "primary_ip_version_mismatch", Message: "primary IP is of the other family"}
	}
	return a, err
}

func newPassword() string { return strings.ToLower(rand.Text())[:20] }

// deleteServer terminates the instance, and releases the addresses that were made for it.
func deleteServer(ctx context.Context, r *dialect.Request, _ struct{}) (any, error) {
	in, err := servers.find(ctx, r, struct{}{})
	if err != nil {
		return nil, err
	}
	if err := servers.checkUnprotected(in); err != nil {
		return nil, err
	}
	addresses, err := r.ListAddresses(ctx, client.AddressFilter{})
	if err != nil {
		return nil, err
	}
	var operation string
	if _, err := r.TerminateInstance(client.OperationInto(ctx, &operation), in.ID); err != nil {
		return nil, err
	}
	assigned, err := ipv6Of(ctx, r, in.Serial)
	if err != nil {
		return nil, err
	}
	for _, a := range append(addresses, assigned...) {
		if !isRecord(a.ID) && api.ValueOf(a.Holder).ID != in.ID {
			continue
		}
		kept, err := readRecord[ipRecord](a.Records)
		if err == nil {
			err = unassignIP(ctx, r, &a)
		}
		if err == nil && kept.AutoDelete {
			err = releaseIP(ctx, r, &a)
		}
		if err != nil {
			return nil, err
		}
	}
	action, err := servers.recordAction(ctx, r, "delete_server", operation, in)
	return schema.ActionGetResponse{Action: action}, err
}

// instanceAction makes the call of an action on a server that an operation on its instance does.
func instanceAction(
	call, command string,
	do func(r *dialect.Request, ctx context.Context, id string) (*api.Instance, error),
) dialect.Call {
	return actionCall(&servers, call, command,
		func(ctx context.Context, r *dialect.Request, in *api.Instance, _ struct{}) (references, error) {
			_, err := do(r, ctx, in.ID)
			return nil, err
		})
}

func protectServer(s *serverRecord, q protectionRequest) error {
	_ = q.applyTo(&s.Protection)
	if s.Protection.Delete != s.Protection.Rebuild {
		return dialect.Invalid("rebuild", "must be the same as delete")
	}
	return nil
}

// changeServerType records another type. The instance keeps its size.
func changeServerType(
	_ context.Context,
	_ *dialect.Request,
	in *api.Instance,
	s *serverRecord,
	q schema.ServerActionChangeTypeRequest,
) error {
	kind, err := findByIDOrName("server_type", allServerTypes, q.ServerType)
	switch {
	case err != nil:
		return err
	case in.State != api.InstanceStopped:
		return &cloud.Error{Code: "server_not_stopped", Message: "server must be stopped for this action"}
	}
	s.ServerType = kind.name
	return nil
}

type dnsPtrRequest struct {
	IP     string  `json:"ip"`
	DNSPtr *string `json:"dns_ptr,omitempty"`
}

// putInto records a name, or that there is none.
func (q dnsPtrRequest) putInto(names *map[string]string) error {
	if _, err := netip.ParseAddr(q.IP); err != nil {
		return dialect.Invalid("ip", "%q is no IP address", q.IP)
	}
	if *names == nil {
		*names = map[string]string{}
	}
	if q.DNSPtr == nil {
		delete(*names, q.IP)
	} else {
		(*names)[q.IP] = *q.DNSPtr
	}
	return nil
}

// attachServer shows a server to be in the network that its instance is in. An instance cannot change to another.
func attachServer(
	ctx context.Context,
	r *dialect.Request,
	in *api.Instance,
	s *serverRecord,
	q schema.ServerActionAttachToNetworkRequest,
) error {
	network, err := r.ResourceID(ctx, networks.kind, q.Network)
	switch {
	case err != nil:
		return err
	case network == in.NetworkID && !s.Detached:
		return &cloud.Error{Code: "server_already_attached", Message: "server is already attached to this network"}
	case network != in.NetworkID:
		return refuseUnsupported("another network than the one that the server was created in")
	case len(q.AliasIPs) > 0 || q.IP != nil && *q.IP != in.Addresses[0].IP:
		return refuseUnsupported("an address other than the one that the server has, " + in.Addresses[0].IP + ",")
	}
	s.Detached = false
	return nil
}

func detachServer(
	ctx context.Context,
	r *dialect.Request,
	in *api.Instance,
	s *serverRecord,
	q schema.ServerActionDetachFromNetworkRequest,
) error {
	network, err := r.ResourceID(ctx, networks.kind, q.Network)
	if err == nil && (network != in.NetworkID || s.Detached) {
		err = dialect.NotFound("server is not attached to network %d", q.Network)
	}
	s.Detached = true
	return err
}
