package hcloud

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/hetznercloud/hcloud-go/v2/hcloud/schema"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/dialect"
)

// item is one of a catalogue.
type item[T any] struct {
	api.Metadata
	shown T
}

func newItem[T any](id int64, name string, shown T) item[T] {
	return item[T]{api.Metadata{Serial: id, Name: name}, shown}
}

// catalogue is a collection that no call changes.
func catalogue[T any](
	one string,
	list func(ctx context.Context, r *dialect.Request) ([]item[T], error),
	filters ...string,
) collection[item[T], T] {
	return collection[item[T], T]{
		one: one, filters: filters,
		list: func(ctx context.Context, r *dialect.Request, _ string) ([]item[T], error) {
			all, err := list(ctx, r)
			return slices.DeleteFunc(all, func(i item[T]) bool { return !i.matches(r, filters) }), err
		},
		read: func(ctx context.Context, r *dialect.Request, id int64) (*item[T], error) {
			all, err := list(ctx, r)
			for _, i := range all {
				if i.Serial == id {
					return &i, nil
				}
			}
			if err == nil {
				err = dialect.NotFound("%s with ID %d not found", strings.ReplaceAll(one, "_", " "), id)
			}
			return nil, err
		},
		show: func(_ context.Context, _ *dialect.Request, i *item[T]) (T, error) { return i.shown, nil },
	}
}

// matches tells whether an item, whose tags are what lists can be filtered by, is asked for.
func (i item[T]) matches(r *dialect.Request, filters []string) bool {
	query := r.HTTP.URL.Query()
	return !slices.ContainsFunc(filters, func(f string) bool {
		value, has := i.Tags[f]
		return has && query.Has(f) && !slices.Contains(query[f], value)
	})
}

// knownLocations are Hetzner's, as its documentation has them.
var knownLocations = map[string]schema.Location{
	"fsn1": {Description: "Falkenstein DC Park 1", Country: "DE", City: "Falkenstein", Latitude: 50.47612, Longitude: 12.370071},
	"nbg1": {Description: "Nuremberg DC Park 1", Country: "DE", City: "Nuremberg", Latitude: 49.452102, Longitude: 11.076665},
	"hel1": {Description: "Helsinki DC Park 1", Country: "FI", City: "Helsinki", Latitude: 60.169855, Longitude: 24.938379},
	"ash":  {Description: "Ashburn, VA", Country: "US", City: "Ashburn, VA", Latitude: 39.045821, Longitude: -77.487073},
	"hil":  {Description: "Hillsboro, OR", Country: "US", City: "Hillsboro, OR", Latitude: 45.54222, Longitude: -122.951924},
	"sin":  {Description: "Singapore", Country: "SG", City: "Singapore", Latitude: 1.283333, Longitude: 103.833333},
}

// datacenterSuffixes are those of Hetzner's data centres that are not dc1.
var datacenterSuffixes = map[string]string{"fsn1": "dc14", "nbg1": "dc3", "hel1": "dc2"}

// locations are numbered as the zones are ordered.
var locations = catalogue(
	"location",
	func(ctx context.Context, r *dialect.Request) (all []item[schema.Location], _ error) {
		zones, err := r.ListZones(ctx)
		for _, z := range zones {
			l := locationNamed(r, z.Name)
			all = append(all, newItem(l.ID, l.Name, l))
		}
		return all, err
	},
)

// locationNamed gives the location of a zone.
func locationNamed(r *dialect.Request, zone string) schema.Location {
	for i, z := range r.Cloud.Zones() {
		if z.Name == zone {
			l, known := knownLocations[zone]
			if !known {
				l.Description = "fakecloud's zone " + zone
			}
			l.ID, l.Name, l.NetworkZone = int64(i+1), zone, z.Region
			return l
		}
	}
	return schema.Location{Name: zone}
}

// zoneOf gives the zone of a location, or of a data centre; "" if neither is asked for.
func zoneOf(r *dialect.Request, location, datacenter string) (string, error) {
	for _, z := range r.Cloud.Zones() {
		if location == z.Name || datacenter == datacenterOf(r, z.Name).Name {
			return z.Name, nil
		}
	}
	if location+datacenter == "" {
		return "", nil
	}
	return "", dialect.Invalid("location", "%q is none that there is", location+datacenter)
}

// datacenters are one for each location.
var datacenters = catalogue(
	"datacenter",
	func(_ context.Context, r *dialect.Request) (all []item[schema.Datacenter], _ error) {
		for _, z := range r.Cloud.Zones() {
			d := datacenterOf(r, z.Name)
			all = append(all, newItem(d.ID, d.Name, d))
		}
		return all, nil
	},
)

func datacenterOf(r *dialect.Request, zone string) schema.Datacenter {
	suffix := cmp.Or(datacenterSuffixes[zone], "dc1")
	var types []int64
	for _, t := range allServerTypes {
		types = append(types, t.id)
	}
	l := locationNamed(r, zone)
	return schema.Datacenter{
		ID: l.ID, Name: zone + "-" + suffix, Description: l.Description + " " + suffix, Location: l,
		ServerTypes: &schema.DatacenterServerTypes{Supported: types, AvailableForMigration: types, Available: types},
	}
}

// serverType is Hetzner's name of a size of instances, of which several may stand for one native type.
type serverType struct {
	id     int64
	name   string
	native api.InstanceType
	cores  int
	memory float32
	disk   int
}

// allServerTypes begin with those that an instance shows that was made otherwise.
var allServerTypes = []serverType{
	{114, "cx23", api.InstanceTypeSmall, 2, 4, 40}, {115, "cx33", api.InstanceTypeMedium, 4, 8, 80},
	{116, "cx43", api.InstanceTypeLarge, 8, 16, 160},
	{104, "cx22", api.InstanceTypeSmall, 2, 4, 40}, {105, "cx32", api.InstanceTypeMedium, 4, 8, 80},
	{106, "cx42", api.InstanceTypeLarge, 8, 16, 160},
	{22, "cpx11", api.InstanceTypeSmall, 2, 2, 40}, {23, "cpx21", api.InstanceTypeSmall, 3, 4, 80},
	{24, "cpx31", api.InstanceTypeMedium, 4, 8, 160}, {25, "cpx41", api.InstanceTypeLarge, 8, 16, 240},
	{108, "cpx12", api.InstanceTypeSmall, 1, 2, 40}, {109, "cpx22", api.InstanceTypeSmall, 2, 4, 80},
	{110, "cpx32", api.InstanceTypeMedium, 4, 8, 160}, {111, "cpx42", api.InstanceTypeLarge, 8, 16, 320},
}

var serverTypes = catalogue(
	"server_type",
	func(_ context.Context, r *dialect.Request) (all []item[schema.ServerType], _ error) {
		for _, t := range allServerTypes {
			all = append(all, newItem(t.id, t.name, t.show(r)))
		}
		return all, nil
	},
)

func (t serverType) show(r *dialect.Request) schema.ServerType {
	shown := schema.ServerType{
		ID: t.id, Name: t.name, Description: strings.ToUpper(t.name), Category: "Shared vCPU", Cores: t.cores,
		Memory: t.memory, Disk: t.disk, StorageType: "local", CPUType: "shared", Architecture: "x86",
		Prices: []schema.PricingServerTypePrice{}, Locations: []schema.ServerTypeLocation{},
	}
	for _, z := range r.Cloud.Zones() {
		shown.Prices = append(shown.Prices, schema.PricingServerTypePrice{
			Location: z.Name, PriceHourly: free, PriceMonthly: free, IncludedTraffic: includedTraffic, PricePerTBTraffic: free,
		})
		shown.Locations = append(shown.Locations, schema.ServerTypeLocation{
			ID: locationNamed(r, z.Name).ID, Name: z.Name, Recommended: true, Available: true,
		})
	}
	return shown
}

// includedTraffic is 20 TB, as bytes.
const includedTraffic = 20 << 40

// free is the price of everything.
var free = schema.Price{Net: "0.0000000000", Gross: "0.0000000000"}

var pricingCalls = []dialect.Call{dialect.Handle(http.MethodGet, "/v1/pricing", nil, getPricing)}

func getPricing(_ context.Context, r *dialect.Request, _ struct{}) (schema.PricingGetResponse, error) {
	p := schema.Pricing{
		Currency: "EUR", VATRate: "19.000000", ServerBackup: schema.PricingServerBackup{Percentage: "20.000000"},
	}
	p.Image.PricePerGBMonth, p.FloatingIP.PriceMonthly, p.Volume.PricePerGBPerMonth = free, free, free
	p.Traffic.PricePerTB = free
	for _, t := range allServerTypes {
		p.ServerTypes = append(p.ServerTypes, schema.PricingServerType{ID: t.id, Name: t.name, Prices: t.show(r).Prices})
	}
	for _, t := range allBalancerTypes {
		prices := t.show(r).Prices
		p.LoadBalancerTypes = append(p.LoadBalancerTypes, schema.PricingLoadBalancerType{
			ID: t.id, Name: t.name, Prices: prices,
		})
	}
	for _, family := range []string{"ipv4", "ipv6"} {
		floating, primary := schema.PricingFloatingIPType{Type: family}, schema.PricingPrimaryIP{Type: family}
		for _, z := range r.Cloud.Zones() {
			floating.Prices = append(floating.Prices, schema.PricingFloatingIPTypePrice{Location: z.Name, PriceMonthly: free})
			primary.Prices = append(primary.Prices, schema.PricingPrimaryIPTypePrice{
				Location: z.Name, PriceHourly: free, PriceMonthly: free,
			})
		}
		p.FloatingIPs, p.PrimaryIPs = append(p.FloatingIPs, floating), append(p.PrimaryIPs, primary)
	}
	return schema.PricingGetResponse{Pricing: p}, nil
}

func (t serverType) identity() (int64, string) { return t.id, t.name }

func (i item[T]) identity() (int64, string) { return i.Serial, i.Name }

// findByIDOrName finds what a field of a request names.
func findByIDOrName[T interface{ identity() (int64, string) }](
	field string,
	all []T,
	of schema.IDOrName,
) (found T, err error) {
	for _, one := range all {
		if id, name := one.identity(); of.ID == id || of.ID == 0 && of.Name == name {
			return one, nil
		}
	}
	return found, dialect.Invalid(field, "is none that there is")
}

// serverTypeOf gives the server type that was asked for, or one of the native type's size.
func serverTypeOf(asked string, native api.InstanceType) serverType {
	for _, t := range allServerTypes {
		if asked == t.name || asked == "" && native == t.native {
			return t
		}
	}
	return serverType{name: string(native)}
}

var allImages = []item[schema.Image]{
	newImage(161547269, "ubuntu", "24.04"), newImage(67794396, "ubuntu", "22.04"), newImage(114690387, "debian", "12"),
	newImage(45557056, "debian", "11"), newImage(221635193, "rocky", "9"), newImage(221635192, "alma", "9"),
	newImage(241055900, "fedora", "42"),
}

func newImage(id int64, flavor, version string) item[schema.Image] {
	name := flavor + "-" + version
	created := time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC)
	i := newItem(id, name, schema.Image{
		ID: id, Name: &name, Status: "available", Type: "system", Description: name, DiskSize: 5, Created: &created,
		OSFlavor: flavor, OSVersion: &version, Architecture: "x86", RapidDeploy: true, Labels: map[string]string{},
	})
	i.CreatedAt, i.Tags = created, api.Tags{"type": "system", "status": "available", "architecture": "x86", "bound_to": ""}
	return i
}

var images = catalogue("image", func(context.Context, *dialect.Request) ([]item[schema.Image], error) {
	return slices.Clone(allImages), nil
}, "type", "status", "architecture", "bound_to", "include_deprecated", "label_selector")

// isos are none: no machine boots from one.
var isos = catalogue("iso", func(context.Context, *dialect.Request) ([]item[schema.ISO], error) { return nil, nil })
