package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	brightbox "github.com/brightbox/gobrightbox/v2"
	"github.com/brightbox/gobrightbox/v2/clientcredentials"
	"github.com/brightbox/gobrightbox/v2/endpoint"
	"github.com/hetznercloud/hcloud-go/v2/hcloud"
	"github.com/oracle/oci-go-sdk/v65/common"
	"github.com/oracle/oci-go-sdk/v65/networkloadbalancer"
	"github.com/oxidecomputer/oxide.go/oxide"
	"golang.org/x/oauth2"
	"k8s.io/client-go/rest"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/identity"
	"github.com/ccmlab/ccmlab/lab"
	"github.com/ccmlab/ccmlab/lab/cluster"
)

// tenant makes and deletes something small in the cloud, in one of the languages that this speaks.
type tenant interface {
	create(ctx context.Context, name string) (id string, err error)
	remove(ctx context.Context, id string) error
	// list returns which there are, at least of those that are asked about.
	list(ctx context.Context, about []string) (ids map[string]bool, err error)
}

// writer makes changes through a tenant, and remembers which the cloud acknowledged.
type writer struct {
	name   string
	tenant tenant

	mu sync.Mutex
	// there are those whose making was acknowledged, and gone those whose deletion was, at most mostGone of them;
	// what was tried and not acknowledged is in neither.
	there, gone map[string]bool
}

const (
	// writePause is how long a writer waits between its changes.
	writePause = 100 * time.Millisecond
	// mostWritten is how many things of a writer there are at a time: quotas are not what is tried.
	mostWritten = 5
	// mostGone bounds how much of what was deleted is looked for.
	mostGone = 50
)

func newWriters(ctx context.Context, l *lab.Lab, operator *client.Client) ([]*writer, error) {
	cloud := l.Cluster.Cloud()
	native, err := cloud.Client(cluster.CallerLab)
	if err != nil {
		return nil, err
	}
	secret, err := os.ReadFile(cloud.TokenFile(cluster.CallerLab))
	if err != nil {
		return nil, err
	}
	token := strings.TrimSpace(string(secret))
	https, err := rest.HTTPClientFor(&rest.Config{TLSClientConfig: rest.TLSClientConfig{CAFile: cloud.CAFile}})
	if err != nil {
		return nil, err
	}
	oxideSDK, err := oxide.NewClient(
		oxide.WithHost(cloud.Dialects["oxide"]), oxide.WithToken(token), oxide.WithHTTPClient(https),
	)
	if err != nil {
		return nil, err
	}
	oci, err := newOCITenant(ctx, l, operator, https)
	if err != nil {
		return nil, err
	}
	tenants := map[string]tenant{
		"native": nativeTenant{native},
		"hcloud": hcloudTenant{hcloud.NewClient(
			hcloud.WithEndpoint(cloud.Dialects["hcloud"]+"/v1"), hcloud.WithToken(token),
			hcloud.WithRetryOpts(hcloud.RetryOpts{MaxRetries: 0}), hcloud.WithHTTPClient(https),
		)},
		"oxide":     oxideTenant{oxideSDK, oxide.NameOrId(l.State.Name)},
		"brightbox": brightboxTenant{cloud.Dialects["brightbox"], token, https},
		"oci":       oci,
	}
	var all []*writer
	for name, t := range tenants {
		all = append(all, &writer{name: name, tenant: t, there: map[string]bool{}, gone: map[string]bool{}})
	}
	return all, nil
}

// write makes one change after the other until ctx ends.
func (w *writer) write(ctx context.Context, j *journal) error {
	for n := 0; ctx.Err() == nil; n++ {
		waitFor(ctx, writePause)
		bound, cancel := context.WithTimeout(ctx, callBound)
		what, err := w.writeOnce(bound, fmt.Sprintf("chaos-%s-%d", w.name, n))
		cancel()
		j.add(line{What: "change through " + w.name, Text: what}, err)
	}
	return nil
}

// writeOnce creates something, or removes something that is there.
func (w *writer) writeOnce(ctx context.Context, name string) (what string, err error) {
	w.mu.Lock()
	full, id := len(w.there) >= mostWritten, ""
	for one := range w.there { // Any.
		id = one
	}
	w.mu.Unlock()
	if !full && (id == "" || rand.IntN(2) == 0) { //nolint:gosec // Any will do.
		id, err = w.tenant.create(ctx, name)
		if err == nil {
			w.mu.Lock()
			w.there[id] = true
			w.mu.Unlock()
		}
		return "create " + id, err
	}
	w.mu.Lock()
	delete(w.there, id) // Whether it is there is unknown until the answer.
	w.mu.Unlock()
	if err = w.tenant.remove(ctx, id); err == nil {
		w.mu.Lock()
		for one := range w.gone {
			if len(w.gone) < mostGone {
				break
			}
			delete(w.gone, one)
		}
		w.gone[id] = true
		w.mu.Unlock()
	}
	return "delete " + id, err
}

// check says which acknowledged changes the cloud has lost.
func (w *writer) check(ctx context.Context) error {
	w.mu.Lock() // No change is made meanwhile that is not looked at.
	defer w.mu.Unlock()
	now, err := w.tenant.list(ctx, slices.Concat(slices.Collect(maps.Keys(w.there)), slices.Collect(maps.Keys(w.gone))))
	if err != nil {
		return fmt.Errorf("listing through %s: %w", w.name, err)
	}
	var lost []error
	for id := range w.there {
		if !now[id] {
			lost = append(lost, fmt.Errorf("%s was created through %s, which was acknowledged, and is not there", id, w.name))
		}
	}
	for id := range w.gone {
		if now[id] {
			lost = append(lost, fmt.Errorf("%s was deleted through %s, which was acknowledged, and is there", id, w.name))
		}
	}
	if len(lost) > 0 {
		return &violation{error: errors.Join(lost...)}
	}
	return nil
}

// nativeTenant reserves addresses through the cloud's own API.
type nativeTenant struct{ *client.Client }

func (t nativeTenant) create(ctx context.Context, name string) (string, error) {
	a, err := t.ReserveAddress(ctx, api.ReservedAddressCreate{Name: &name})
	if err != nil {
		return "", err
	}
	return a.ID, nil
}

func (t nativeTenant) remove(ctx context.Context, id string) error { return t.ReleaseAddress(ctx, id) }

func (t nativeTenant) list(ctx context.Context, _ []string) (map[string]bool, error) {
	all, err := t.ListAddresses(ctx, client.AddressFilter{})
	return idsOf(all, func(a api.ReservedAddress) string { return a.ID }), err
}

// hcloudTenant creates load balancers as Hetzner Cloud's.
type hcloudTenant struct{ *hcloud.Client }

func (t hcloudTenant) create(ctx context.Context, name string) (string, error) {
	made, _, err := t.LoadBalancer.Create(ctx, hcloud.LoadBalancerCreateOpts{
		Name: name, LoadBalancerType: &hcloud.LoadBalancerType{Name: "lb11"}, Location: &hcloud.Location{Name: zones[0]},
	})
	if err != nil {
		return "", err
	}
	return fmt.Sprint(made.LoadBalancer.ID), nil
}

func (t hcloudTenant) remove(ctx context.Context, id string) error {
	lb := &hcloud.LoadBalancer{}
	if _, err := fmt.Sscan(id, &lb.ID); err != nil {
		return err
	}
	_, err := t.LoadBalancer.Delete(ctx, lb)
	return err
}

func (t hcloudTenant) list(ctx context.Context, _ []string) (map[string]bool, error) {
	all, err := t.LoadBalancer.All(ctx)
	return idsOf(all, func(lb *hcloud.LoadBalancer) string { return fmt.Sprint(lb.ID) }), err
}

// oxideTenant creates floating IPs as Oxide's.
type oxideTenant struct {
	*oxide.Client
	project oxide.NameOrId
}

func (t oxideTenant) create(ctx context.Context, name string) (string, error) {
	ip, err := t.FloatingIpCreate(ctx, oxide.FloatingIpCreateParams{Project: t.project, Body: &oxide.FloatingIpCreate{
		Name: oxide.Name(name), Description: "of chaos",
		AddressAllocator: oxide.AddressAllocator{Value: &oxide.AddressAllocatorAuto{}},
	}})
	if err != nil {
		return "", err
	}
	return ip.Id, nil
}

func (t oxideTenant) remove(ctx context.Context, id string) error {
	return t.FloatingIpDelete(ctx, oxide.FloatingIpDeleteParams{FloatingIp: oxide.NameOrId(id)})
}

// list views each: the dialect has no list of them.
func (t oxideTenant) list(ctx context.Context, about []string) (map[string]bool, error) {
	ids := map[string]bool{}
	for _, id := range about {
		_, err := t.FloatingIpView(ctx, oxide.FloatingIpViewParams{FloatingIp: oxide.NameOrId(id)})
		if err != nil && !errors.Is(err, oxide.ErrObjectNotFound) {
			return nil, err
		}
		ids[id] = err == nil
	}
	return ids, nil
}

// brightboxTenant creates cloud IPs as Brightbox's. It asks for an access token each time.
type brightboxTenant struct {
	url, token string
	https      *http.Client
}

func (t brightboxTenant) connect(ctx context.Context) (*brightbox.Client, error) {
	return brightbox.Connect(context.WithValue(ctx, oauth2.HTTPClient, t.https), &clientcredentials.Config{
		ID: "cli-00001", Secret: t.token, Config: endpoint.Config{BaseURL: t.url + "/", Scopes: endpoint.FullScope},
	})
}

func (t brightboxTenant) create(ctx context.Context, name string) (string, error) {
	sdk, err := t.connect(ctx)
	if err != nil {
		return "", err
	}
	ip, err := sdk.CreateCloudIP(ctx, brightbox.CloudIPOptions{Name: &name})
	if err != nil {
		return "", err
	}
	return ip.ID, nil
}

func (t brightboxTenant) remove(ctx context.Context, id string) error {
	sdk, err := t.connect(ctx)
	if err != nil {
		return err
	}
	_, err = sdk.DestroyCloudIP(ctx, id)
	return err
}

func (t brightboxTenant) list(ctx context.Context, _ []string) (map[string]bool, error) {
	sdk, err := t.connect(ctx)
	if err != nil {
		return nil, err
	}
	all, err := sdk.CloudIPs(ctx)
	return idsOf(all, func(ip brightbox.CloudIP) string { return ip.ID }), err
}

// ociTenant creates network load balancers as Oracle's, in a subnet. It signs its calls.
type ociTenant struct {
	networkloadbalancer.NetworkLoadBalancerClient
	compartment, subnet string
}

func newOCITenant(
	ctx context.Context,
	l *lab.Lab,
	operator *client.Client,
	https *http.Client,
) (t ociTenant, err error) {
	project, err := operator.Project(ctx)
	if err != nil {
		return t, err
	}
	networks, err := operator.ListNetworks(ctx, client.NetworkFilter{Name: "default"})
	if err != nil {
		return t, err
	}
	file := l.State.Path("chaos-key.pem")
	fingerprint, err := cluster.EnsureTokenKey(ctx, operator, project.ID, cluster.CallerLab, file)
	if err != nil {
		return t, err
	}
	private, err := os.ReadFile(file)
	if err != nil {
		return t, err
	}
	t.compartment, t.subnet = "ocid1.tenancy.fc1.."+project.Name, identity.OCID("subnet")+identity.Code(networks[0].Serial)
	t.NetworkLoadBalancerClient, err = networkloadbalancer.NewNetworkLoadBalancerClientWithConfigurationProvider(
		common.NewRawConfigurationProvider(
			t.compartment, "ocid1.user.fc1.."+cluster.CallerLab, "us-phoenix-1", fingerprint, string(private), nil,
		),
	)
	t.Host, t.HTTPClient, t.Configuration.CircuitBreaker = l.Cluster.Cloud().Dialects["oci"], https, nil
	t.Configuration.RetryPolicy = new(common.NoRetryPolicy())
	return t, err
}

func (t ociTenant) create(ctx context.Context, name string) (string, error) {
	made, err := t.CreateNetworkLoadBalancer(ctx, networkloadbalancer.CreateNetworkLoadBalancerRequest{
		CreateNetworkLoadBalancerDetails: networkloadbalancer.CreateNetworkLoadBalancerDetails{
			CompartmentId: &t.compartment, DisplayName: &name, SubnetId: &t.subnet,
		},
	})
	if err != nil {
		return "", err
	}
	return *made.Id, nil
}

func (t ociTenant) remove(ctx context.Context, id string) error {
	_, err := t.DeleteNetworkLoadBalancer(
		ctx, networkloadbalancer.DeleteNetworkLoadBalancerRequest{NetworkLoadBalancerId: &id},
	)
	return err
}

// list leaves those out that are being deleted.
func (t ociTenant) list(ctx context.Context, _ []string) (map[string]bool, error) {
	all, err := t.ListNetworkLoadBalancers(ctx, networkloadbalancer.ListNetworkLoadBalancersRequest{
		CompartmentId: &t.compartment,
	})
	return idsOf(slices.DeleteFunc(all.Items, func(lb networkloadbalancer.NetworkLoadBalancerSummary) bool {
		return lb.LifecycleState == networkloadbalancer.LifecycleStateDeleting
	}), func(lb networkloadbalancer.NetworkLoadBalancerSummary) string { return *lb.Id }), err
}

func idsOf[T any](all []T, id func(T) string) map[string]bool {
	ids := map[string]bool{}
	for _, one := range all {
		ids[id(one)] = true
	}
	return ids
}
