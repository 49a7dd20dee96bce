package server_test

import (
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
)

func TestStreamsDoNotOutliveTheirToken(t *testing.T) {
	clock := clockwork.NewFakeClockAt(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	r := newRigWith(t, func(cfg *fakecloud.Config) { cfg.Cloud.Clock = clock })
	ctx := t.Context()
	soon := clock.Now().Add(time.Minute)
	gone := must.Do(r.CreateProject(ctx, api.ProjectCreate{Name: "gone"}))(t)
	for name, tc := range map[string]struct {
		project string
		expires *time.Time
		end     func() error
	}{
		"deleted": {r.project.ID, nil, func() error { return r.DeleteToken(ctx, r.project.ID, "deleted") }},
		"rotated": {r.project.ID, nil, func() error {
			_, err := r.RotateToken(ctx, r.project.ID, "rotated", api.TokenRotate{})
			return err
		}},
		"expired": {r.project.ID, &soon, func() error { clock.Advance(time.Minute); return nil }},
		"project": {gone.ID, nil, func() error { return r.DeleteProject(ctx, gone.ID) }},
	} {
		t.Run(name, func(t *testing.T) {
			made := must.Do(r.CreateToken(
				ctx, tc.project, api.TokenCreate{Name: name, Role: api.RoleViewer, ExpiresAt: tc.expires},
			))(t)
			ended := make(chan error, 1)
			stream := must.Do(http.DefaultClient.Do(bearing(t, r.url+"/v1/events", made.Secret)))(t)
			t.Cleanup(func() { _ = stream.Body.Close() })
			require.Equal(t, 200, stream.StatusCode)
			kept, err := http.DefaultClient.Do(bearing(t, r.url+"/v1/events", ccmSecret))
			require.NoError(t, err)
			t.Cleanup(func() { _ = kept.Body.Close() })
			beats := make([]byte, 2*len(": still here\n\n")+len(": connected\n\n"))
			requireOK(t, "it lives")(io.ReadFull(stream.Body, beats))

			require.NoError(t, tc.end())
			go func() {
				_, err := io.Copy(io.Discard, stream.Body)
				ended <- err
			}()
			select {
			case err := <-ended:
				require.NoError(t, err)
			case <-time.After(patience):
				require.Fail(t, "the stream goes on")
			}
			_, err = io.ReadFull(kept.Body, beats)
			assert.NoError(t, err, "another token's goes on")
		})
	}
}

func bearing(t *testing.T, url, secret string) *http.Request {
	t.Helper()
	req := must.Do(http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil))(t)
	req.Header.Set("Authorization", "Bearer "+secret)
	return req
}
