package hcloud

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"

	"github.com/hetznercloud/hcloud-go/v2/hcloud/schema"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/dialect"
	"github.com/ccmlab/ccmlab/fakecloud/server"
)

// Hetzner's servers find the metadata service at http://169.254.169.254. A program finds this one there if its
// environment has HTTP_PROXY=http://SERVER:TOKEN@HOST:PORT of the dialect, and is then taken to run on that server.
// Without a name it is the server whose address the call comes from.
const metadataPath = "/hetzner/v1/metadata"

var metadataCalls = []dialect.Call{
	dialect.Handle(http.MethodGet, metadataPath, nil, getMetadata),
	dialect.Handle(http.MethodGet, metadataPath+"/{id}", nil, getMetadata),
}

// getMetadata gives what a server may know of itself: all of it as YAML, or one thing as text.
func getMetadata(ctx context.Context, r *dialect.Request, _ struct{}) (any, error) {
	in, err := findCallingInstance(ctx, r)
	if err != nil {
		return nil, err
	}
	s, err := toServer(ctx, r, in)
	if err != nil {
		return nil, err
	}
	things := map[string]string{
		"availability-zone": s.Location.Name, "hostname": s.Name, "instance-id": fmt.Sprint(s.ID),
		"public-ipv4": "", "region": s.Location.NetworkZone,
	}
	if s.PublicNet.IPv4 != nil {
		things["public-ipv4"] = s.PublicNet.IPv4.IP
	}
	if dialect.InPath(r) == "" {
		var all strings.Builder
		for _, name := range []string{"availability-zone", "hostname", "instance-id", "public-ipv4", "region"} {
			fmt.Fprintf(&all, "%s: %s\n", name, things[name])
		}
		return dialect.Text(all.String()), nil
	}
	if things["private-networks"], err = privateNetworks(ctx, r, s.PrivateNet); err != nil {
		return nil, err
	}
	record, err := readRecord[serverRecord](in.Records)
	if err != nil {
		return nil, err
	}
	if record.UserData != "" {
		things["userdata"] = record.UserData
	}
	text, known := things[dialect.InPath(r)]
	if !known {
		return nil, dialect.NotFound("a server's metadata has no %q", dialect.InPath(r))
	}
	return dialect.Text(text), nil
}

// findCallingInstance gives the instance on which the caller runs.
func findCallingInstance(ctx context.Context, r *dialect.Request) (*api.Instance, error) {
	name := server.ProxyUser(r.HTTP)
	found, err := r.ListInstances(ctx, client.InstanceFilter{Name: name})
	if err != nil {
		return nil, err
	}
	source, _, _ := net.SplitHostPort(r.HTTP.RemoteAddr)
	isCaller := func(in api.Instance) bool {
		return !dialect.IsGone(in) && (name != "" || slices.ContainsFunc(in.Addresses, func(a api.Address) bool {
			return a.IP == source
		}))
	}
	at := slices.IndexFunc(found, isCaller)
	if at < 0 {
		return nil, dialect.NotFound("no server %s asks", cmp.Or(name, "with the address "+source))
	}
	return &found[at], nil
}

func privateNetworks(ctx context.Context, r *dialect.Request, nets []schema.ServerPrivateNet) (string, error) {
	var all strings.Builder
	for i, private := range nets {
		n, err := networks.readSerial(ctx, r, private.Network)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&all, "- ip: %s\n  alias_ips: [%s]\n  interface_num: %d\n  mac_address: %s\n  network_id: %d\n"+
			"  network_name: %s\n  network: %s\n  subnet: %[7]s\n  gateway: %s\n",
			private.IP, strings.Join(private.AliasIPs, ", "), i+1, private.MACAddress, private.Network, n.Name, n.Cidr,
			firstHost(n.Cidr))
	}
	return all.String(), nil
}
