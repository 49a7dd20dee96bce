package cli

import (
	"context"
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

// Tags that somebody sets between apply's read and its write are kept.
func TestApplyKeepsConcurrentTags(t *testing.T) {
	for refusals := range 3 {
		s := &step{
			want:  &wantedResource{given: map[string]any{"tags": map[string]any{"a": "b"}}},
			patch: map[string]any{"tags": map[string]any{"a": "b"}}, version: 1,
		}
		s.ID, s.Action = "n-1", updated
		var sent []api.ResourceUpdate
		update := func(_ *client.Client, _ context.Context, _ string, u api.ResourceUpdate) (*api.Network, error) {
			if sent = append(sent, u); len(sent) <= refusals {
				return nil, &client.Error{
					Status: http.StatusPreconditionFailed, Problem: api.Problem{Code: api.PreconditionFailed},
				}
			}
			return &api.Network{Metadata: api.Metadata{ID: "n-1"}}, nil
		}
		get := func(*client.Client, context.Context, string) (*api.Network, error) {
			return &api.Network{Metadata: api.Metadata{ID: "n-1", Version: 2, Tags: api.Tags{"new": "one"}}}, nil
		}
		k := resourceKind[api.Network]{get: get, update: updateBy(update)}
		_, err := createOrUpdate(t.Context(), &plan{}, s, k)
		assert.Len(t, sent, min(refusals, 1)+1)
		if refusals == 2 {
			require.True(t, client.HasCode(err, api.PreconditionFailed), err)
			continue
		}
		require.NoError(t, err)
		want := []api.Tags{{"a": "b"}, {"a": "b", "new": "one"}}[refusals]
		assert.Equal(t, want, *sent[len(sent)-1].Tags)
	}
}
