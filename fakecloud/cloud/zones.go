// This file answers: which zones can be used?

package cloud

import (
	"slices"
	"strings"
	"sync"
)

// outages are the zones that cannot be used now.
type outages struct {
	mu    sync.Mutex
	zones map[string]bool
}

func (o *outages) of(zone string) ZoneState {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.zones[zone] {
		return ZoneOutage
	}
	return ZoneAvailable
}

// SetZoneState says whether a zone can be used, until the process ends.
func (c *Cloud) SetZoneState(zone string, state ZoneState) error {
	if !slices.Contains(c.cfg.Zones, zone) {
		return refuse(UnknownZone, "no zone %q: choose one of %s", zone, strings.Join(c.cfg.Zones, ", ")).at("zone", "is not a zone of this cloud")
	}
	c.outages.mu.Lock()
	defer c.outages.mu.Unlock()
	if c.outages.zones == nil {
		c.outages.zones = map[string]bool{}
	}
	c.outages.zones[zone] = state == ZoneOutage
	return nil
}

// Regions lists the regions: there is one.
func (c *Cloud) Regions() []string { return []string{c.cfg.Region} }
