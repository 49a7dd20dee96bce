package server_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
	"github.com/ccmlab/ccmlab/fakecloud/server"
)

// discard is an answer that nobody reads.
type discard struct {
	header http.Header
	status int
}

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) WriteHeader(status int)      { d.status = status }
func (d *discard) Write(b []byte) (int, error) { return len(b), nil }

// benchServer has so many instances, on disk, and limits nobody much.
func benchServer(b *testing.B, instances int) (*fakecloud.API, []string) {
	b.Helper()
	f, err := fakecloud.New(b.Context(), fakecloud.Config{
		Data:  b.TempDir() + "/cloud.db",
		Cloud: cloud.Config{Profile: cloud.Profiles[0], InstanceCIDR: netip.MustParsePrefix("127.54.0.0/16")},
		API:   server.Config{RateLimit: 1_000_000, RateBurst: 1_000_000},
	})
	require.NoError(b, err)
	c, srv := f.Cloud, f.API
	p, err := c.EnsureProject(b.Context(), "default", nil)
	require.NoError(b, err)
	require.NoError(
		b, c.SetTokens(b.Context(), p, []cloud.GivenToken{{Name: "operator", Secret: secret, Role: cloud.Admin}}),
	)
	var ids []string
	for i := range instances {
		in, _, err := c.CreateInstance(b.Context(), p, cloud.InstanceSpec{
			Name: fmt.Sprint("node-", i), Tags: map[string]string{"cluster": "lab", "role": "worker"},
		})
		require.NoError(b, err)
		ids = append(ids, in.ID)
	}
	b.Cleanup(func() {
		srv.Stop()
		require.NoError(b, f.Close())
	})
	return srv, ids
}

func bench(b *testing.B, srv *fakecloud.API, target func(i int) string) {
	b.Helper()
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for i := 0; pb.Next(); i++ {
			req := httptest.NewRequest(http.MethodGet, target(i), nil)
			req.Header.Set("Authorization", "Bearer "+secret)
			req.Header.Set("User-Agent", "bench")
			w := &discard{header: http.Header{}}
			srv.ServeHTTP(w, req)
			if w.status != http.StatusOK {
				b.Errorf("status %d", w.status)
				return
			}
		}
	})
}

func BenchmarkGetInstance(b *testing.B) {
	srv, ids := benchServer(b, 200)
	bench(b, srv, func(i int) string { return "/v1/instances/" + ids[i%len(ids)] })
}

func BenchmarkListInstances(b *testing.B) {
	srv, _ := benchServer(b, 200)
	bench(b, srv, func(int) string { return "/v1/instances?limit=100" })
}
