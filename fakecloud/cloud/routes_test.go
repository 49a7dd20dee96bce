package cloud

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// Whatever routes a network has: a further one is refused if, and only if, it
// overlaps with one of them or with the network.
func TestRoutesOfANetworkDoNotOverlap(t *testing.T) {
	c, _ := newCloud(t, nil)
	rapid.Check(t, func(rt *rapid.T) {
		p := must(c.EnsureProject(t.Context(), "p"+c.random.letters(10), nil))(rt)
		in := mustFirst(c.CreateInstance(t.Context(), p, InstanceSpec{}))(rt)
		has := []netip.Prefix{c.cfg.InstanceCIDR}
		ids := map[netip.Prefix]string{}
		for range rapid.IntRange(1, 12).Draw(rt, "routes") {
			first := netip.AddrFrom4([4]byte{
				rapid.SampledFrom([]byte{0, 10, 127, 255}).Draw(rt, "a"),
				rapid.SampledFrom([]byte{0, 30, 255}).Draw(rt, "b"),
				rapid.SampledFrom([]byte{0, 16, 255}).Draw(rt, "c"), 255,
			})
			want := must(first.Prefix(rapid.SampledFrom([]int{0, 1, 8, 16, 20, 24, 25, 32}).Draw(rt, "bits")))(rt)
			overlaps := false
			for _, h := range has {
				overlaps = overlaps || h.Overlaps(want)
			}
			r, _, err := c.CreateRoute(
				t.Context(), p,
				RouteSpec{Name: "r" + c.random.letters(10), Destination: want.String(), Instance: in.ID},
			)
			if overlaps {
				requireCode(rt, RouteConflict, err)
				if id := ids[want]; id != "" && rapid.Bool().Draw(rt, "make room") {
					require.NoError(rt, c.DeleteRoute(t.Context(), p, id))
					delete(ids, want)
					has = []netip.Prefix{c.cfg.InstanceCIDR}
					for h := range ids {
						has = append(has, h)
					}
				}
				continue
			}
			require.NoError(rt, err)
			has, ids[want] = append(has, want), r.ID
		}
	})
}
