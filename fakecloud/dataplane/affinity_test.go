package dataplane

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"
	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"
)

// Compares affinity with a plain list of clients and when they were last heard.
func TestAffinityMatchesModel(t *testing.T) {
	type heard struct {
		client netip.Addr
		target string
		at     time.Time
		open   int
	}
	rapid.Check(t, func(t *rapid.T) {
		clock := clockwork.NewFakeClock()
		limit := rapid.IntRange(1, 4).Draw(t, "limit")
		table := newAffinity(clock, limit)
		var keep time.Duration
		var model []heard // the longest silent first
		// A client with a connection counts as active all the time.
		expire := func() {
			var talking []heard
			model = slices.DeleteFunc(model, func(h heard) bool {
				due := clock.Since(h.at) >= keep
				if due && h.open > 0 && keep > 0 {
					h.at = clock.Now()
					talking = append(talking, h)
				}
				return due
			})
			model = append(model, talking...)
		}
		find := func(c netip.Addr) string {
			expire()
			if i := slices.IndexFunc(model, func(h heard) bool { return h.client == c }); i >= 0 {
				return model[i].target
			}
			return ""
		}
		hear := func(c netip.Addr, target string, opened int) {
			expire()
			if keep == 0 {
				return
			}
			now := heard{client: c, target: target, at: clock.Now()}
			if i := slices.IndexFunc(model, func(h heard) bool { return h.client == c }); i >= 0 {
				now.open = model[i].open
				model = slices.Delete(model, i, i+1)
			}
			now.open = max(0, now.open+opened)
			if model = append(model, now); len(model) > limit {
				model = model[1:]
			}
		}
		client := rapid.Map(rapid.IntRange(1, 6), func(i int) netip.Addr {
			return netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})
		})
		name := rapid.SampledFrom([]string{"a", "b", "c", "d"})
		seconds := rapid.Map(rapid.IntRange(0, 10), func(i int) time.Duration { return time.Duration(i) * time.Second })
		t.Repeat(map[string]func(*rapid.T){
			"keep": func(t *rapid.T) {
				keep = seconds.Draw(t, "keep")
				table.setTimeout(keep)
				expire()
			},
			"wait": func(t *rapid.T) { clock.Advance(seconds.Draw(t, "wait")) },
			"connect": func(t *rapid.T) {
				c, names := client.Draw(t, "client"), rapid.SliceOfNDistinct(name, 1, 4, rapid.ID).Draw(t, "targets")
				var among []target
				for _, n := range names {
					among = append(among, target{endpoint: &endpoint{name: n}})
				}
				want := names[0]
				if own := find(c); slices.Contains(names, own) {
					want = own
				}
				assert.Equal(t, want, names[table.stickyTargetIndex(c, among, 0, &refusals{})])
				hear(c, want, 0)
			},
			"begin": func(t *rapid.T) {
				c, n := client.Draw(t, "client"), name.Draw(t, "target")
				table.addConnection(c, n)
				hear(c, n, 1)
			},
			"end": func(t *rapid.T) {
				c, n := client.Draw(t, "client"), name.Draw(t, "target")
				table.removeConnection(c, n)
				if own := find(c); own != "" {
					n = own
				}
				hear(c, n, -1)
			},
			"": func(t *rapid.T) {
				assert.LessOrEqual(t, len(table.entries), limit)
				assert.Len(t, table.entries, table.bySilence.Len())
			},
		})
	})
}
