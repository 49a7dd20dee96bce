package cloud

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
	"github.com/ccmlab/ccmlab/fakecloud/store"
)

// Whatever is taken and given up, in transactions that hold or come to nothing,
// the lowest free address is the one that a search from the start would find.
func TestTheLowestFreeAddressIsGiven(t *testing.T) {
	s := must.Do(store.Open(t.Context(), store.Memory))(t)
	t.Cleanup(func() { assert.NoError(t, s.Close()) })
	pools := []netip.Prefix{
		netip.MustParsePrefix("10.0.0.0/30"), netip.MustParsePrefix("10.0.0.0/25"),
		netip.MustParsePrefix("10.0.15.128/25"), netip.MustParsePrefix("10.0.16.0/29"),
		netip.MustParsePrefix("255.255.255.248/29"),
	}
	lowest := func(taken map[netip.Addr]bool, pool netip.Prefix) netip.Addr {
		for a := pool.Addr().Next(); pool.Contains(a.Next()); a = a.Next() {
			if !taken[a] {
				return a
			}
		}
		return netip.Addr{}
	}
	undone := errors.New("undone")
	rapid.Check(t, func(t *rapid.T) {
		set := newUsedAddresses(everyIPv4)
		taken := map[netip.Addr]bool{}
		if pool := pools[2]; rapid.Bool().Draw(t, "all before is taken") {
			for a := netip.MustParseAddr("10.0.0.0"); a.Less(pool.Addr()); a = a.Next() {
				set.setBit(addressNumber(a), true)
				taken[a] = true
			}
		}
		for range rapid.IntRange(1, 20).Draw(t, "transactions") {
			holds := rapid.Bool().Draw(t, "holds")
			after := map[netip.Addr]bool{}
			for a := range taken {
				after[a] = true
			}
			err := s.Write(t.Context(), func(tx *store.Tx) error {
				for range rapid.IntRange(1, 30).Draw(t, "changes") {
					pool := rapid.SampledFrom(pools).Draw(t, "pool")
					if rapid.IntRange(0, 3).Draw(t, "release") == 0 {
						a := netip.AddrFrom4([4]byte{10, 0, byte(rapid.SampledFrom([]int{0, 15, 16}).
							Draw(t, "block")), rapid.Byte().Draw(t, "host")})
						set.markFree(tx, a)
						delete(after, a)
						continue
					}
					want := lowest(after, pool)
					got, err := set.takeLowestFree(tx, pool)
					require.Equal(t, want, got)
					if !want.IsValid() {
						require.Error(t, err)
						continue
					}
					after[got] = true
				}
				if !holds {
					return undone
				}
				return nil
			})
			if holds {
				require.NoError(t, err)
				taken = after
			} else {
				require.ErrorIs(t, err, undone)
			}
		}
		for _, pool := range pools {
			n, ok := set.lowestFree(addressNumber(pool.Addr().Next()), addressNumber(pool.Addr())+1<<(32-pool.Bits())-2)
			want := lowest(taken, pool)
			require.Equal(t, want.IsValid(), ok)
			if ok {
				require.Equal(t, addressNumber(want), n)
			}
		}
	})
}
