package store_test

import (
	"context"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/store"
	"github.com/ccmlab/ccmlab/fakecloud/store/db"
)

// stored is how many instances there are while a benchmark runs.
const stored = 10_000

func instanceID(n int64) string { return fmt.Sprintf("i-%026d", n) }

// addInstance is what a create costs the store: a row and its event.
func addInstance(ctx context.Context, tx *store.Tx, n int64) error {
	id, address := instanceID(n), fmt.Sprintf("10.%d.%d.%d", n>>16&255, n>>8&255, n&255)
	document := fmt.Sprintf(
		`{"id":%q,"name":"worker-%s","zone":"nebula-1a","type":"small","state":"pending","address":%q,"tags":{"cluster":"lab","role":"worker"},"version":1}`,
		id, id, address,
	)
	err := tx.InsertResource(ctx, db.InsertResourceParams{
		ID: id, Kind: "instance", ProjectID: "p", Name: "worker-" + id, Zone: "nebula-1a", State: "pending",
		Address: &address, Version: 1, Document: document,
	})
	if err != nil {
		return err
	}
	return tx.AppendEvent(ctx, db.InsertEventParams{
		ProjectID: "p", Time: n, Type: "created", Resource: "instance", ResourceID: id, Name: "worker-" + id,
		ToState: "pending", Body: document,
	})
}

// filled is a store on disk with all the instances.
func filled(b *testing.B) *store.Store {
	s, err := store.Open(b.Context(), filepath.Join(b.TempDir(), "cloud.db"))
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, s.Close()) })
	ctx := context.Background()
	require.NoError(b, s.Write(ctx, func(tx *store.Tx) error { return addProject(ctx, tx, "p") }))
	for first := int64(0); first < stored; first += 1000 {
		require.NoError(b, s.Write(ctx, func(tx *store.Tx) error {
			for n := first; n < first+1000; n++ {
				if err := addInstance(ctx, tx, n); err != nil {
					return err
				}
			}
			return nil
		}))
	}
	return s
}

// BenchmarkGet reads one of many instances, as one client and as 64 do.
func BenchmarkGet(b *testing.B) {
	s := filled(b)
	get := func(ctx context.Context, n int64) error {
		return s.Read(ctx, func(tx *store.Tx) error {
			_, err := tx.GetResource(ctx, db.GetResourceParams{ID: instanceID(n % stored), Kind: "instance"})
			return err
		})
	}
	each(b, get)
}

// BenchmarkCreate writes an instance and its event, durably.
func BenchmarkCreate(b *testing.B) {
	s := filled(b)
	var next atomic.Int64
	next.Store(stored)
	create := func(ctx context.Context, _ int64) error {
		return s.Write(ctx, func(tx *store.Tx) error { return addInstance(ctx, tx, next.Add(1)) })
	}
	each(b, create)
}

// each runs do for one client and for 64.
func each(b *testing.B, do func(ctx context.Context, n int64) error) {
	for _, clients := range []int{1, 64} {
		b.Run(fmt.Sprintf("clients=%d", clients), func(b *testing.B) {
			b.ReportAllocs()
			ctx := b.Context() // As a request's: it can end.
			var next atomic.Int64
			work := func() {
				for n := next.Add(1); n <= int64(b.N); n = next.Add(1) {
					if err := do(ctx, n*7919); err != nil {
						b.Error(err)
						return
					}
				}
			}
			done := make(chan struct{})
			for range clients {
				go func() { work(); done <- struct{}{} }()
			}
			for range clients {
				<-done
			}
		})
	}
}
