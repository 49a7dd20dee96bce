package cloud

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// A page of large resources ends early, and whoever reads on sees all.
func TestPagesOfLargeResourcesEndEarly(t *testing.T) {
	c, p := newCloud(t, nil)
	const small, mebi = 3 * rowsAtOnce / 2, 1 << 20
	sizes := append(slices.Repeat([]int{10}, small), mebi, mebi, mebi, mebi, mebi, 5*mebi, 5*mebi, 10)
	want := []string{"default"}
	require.NoError(t, c.change(t.Context(), func(ctx context.Context, tx *changeTx) error {
		for i, size := range sizes {
			n := Network{api.Network{Cidr: "10.0.0.0/8", Metadata: api.Metadata{
				ID: fmt.Sprintf("n-zz%03d", i), Serial: int64(1000 + i), Project: p.ID, Name: fmt.Sprint(i),
				Tags: map[string]string{"size": strings.Repeat("x", size)},
			}}}
			want = append(want, n.Name)
			if err := insertResource(ctx, tx, n); err != nil {
				return err
			}
		}
		return nil
	}))
	var pages []int
	var names []string
	f := Filter{Limit: 500}
	for more := true; more; {
		var page []Network
		var err error
		page, more, err = c.Networks.List(t.Context(), p, f)
		require.NoError(t, err)
		require.NotEmpty(t, page)
		for _, n := range page {
			names = append(names, n.Name)
		}
		pages = append(pages, len(page))
		f.After = page[len(page)-1].ID
	}
	assert.Equal(t, []int{1 + small + 3, 2, 1, 1, 1}, pages)
	assert.Equal(t, want, names)
	all, more, err := c.Networks.List(t.Context(), p, Filter{Limit: NoLimit})
	require.NoError(t, err)
	assert.Len(t, all, len(want))
	assert.False(t, more)
}
