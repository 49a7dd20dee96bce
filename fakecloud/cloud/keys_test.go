package cloud

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
	"github.com/ccmlab/ccmlab/fakecloud/store"
	"github.com/ccmlab/ccmlab/fakecloud/store/db"
)

func TestIdempotencyKeysAreBounded(t *testing.T) {
	c, p := newCloud(t, nil)
	q := must.Do(c.EnsureProject(t.Context(), "other", nil))(t)
	clock := c.clock.(interface{ Advance(d time.Duration) })
	c.keptKeys.Rows = 20
	reserve := func(p Project, key string) string {
		ctx := WithRequest(t.Context(), Request{Key: key, Fingerprint: []byte("same")})
		a := must.First(c.Addresses.Create(ctx, p, api.ReservedAddressCreate{}))(t)
		require.NoError(t, c.Addresses.Delete(t.Context(), p, a.ID))
		return a.ID
	}
	has := func(p Project, key string) bool {
		err := c.store.Read(t.Context(), func(tx *store.Tx) error {
			_, err := tx.IdempotencyKey(t.Context(), db.IdempotencyKeyParams{ProjectID: p.ID, Key: key})
			return err
		})
		return err == nil
	}
	reserve(q, "theirs")
	for i := range 60 {
		clock.Advance(time.Second)
		reserve(p, fmt.Sprintf("k%d", i))
		kept := 0
		for j := range i + 1 {
			if has(p, fmt.Sprintf("k%d", j)) {
				kept++
			}
		}
		require.LessOrEqual(t, kept, 20)
		require.GreaterOrEqual(t, kept, min(i+1, 19))
	}
	assert.False(t, has(p, "k0"), "the oldest go")
	for i := 41; i < 60; i++ {
		assert.True(t, has(p, fmt.Sprintf("k%d", i)), "the newest stay")
	}
	assert.True(t, has(q, "theirs"), "each project has its own")
}

func TestIdempotencyResultsAreBounded(t *testing.T) {
	c, p := newCloud(t, nil)
	clock := c.clock.(interface{ Advance(d time.Duration) })
	c.keptKeys.Bytes = 16_000
	remembered := func(key string) (found bool) {
		row := db.InsertIdempotencyKeyParams{
			ProjectID: p.ID, Key: key, Fingerprint: []byte("same"), Result: strings.Repeat("x", 1000),
			ExpiresAt: c.now().Add(KeyLifetime).UnixMilli(),
		}
		require.NoError(t, c.store.Write(t.Context(), func(tx *store.Tx) error {
			_, err := tx.IdempotencyKey(t.Context(), db.IdempotencyKeyParams{ProjectID: p.ID, Key: key})
			if found = err == nil; found {
				return nil
			}
			return c.rememberKey(t.Context(), tx, row)
		}))
		return found
	}
	for i := range 50 {
		clock.Advance(time.Second)
		require.False(t, remembered(fmt.Sprint(i)))
	}
	for i := 36; i < 50; i++ {
		assert.True(t, remembered(fmt.Sprint(i)), i)
	}
	assert.False(t, remembered("33"), "the oldest are forgotten")
}
