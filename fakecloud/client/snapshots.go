package client

import (
	"context"
	"io"
	"net/http"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// CreateSnapshot saves the state of the whole cloud. It may take as long as ctx allows, an
// hour at most.
func (c *Client) CreateSnapshot(ctx context.Context, name string) (*api.Snapshot, error) {
	return sendOnce[api.Snapshot](ctx, c.withLongTimeout(), func(ctx context.Context) (*http.Response, error) {
		return c.raw.CreateSnapshot(ctx, api.SnapshotCreate{Name: name})
	})
}

// ListSnapshots lists the snapshots by name.
func (c *Client) ListSnapshots(ctx context.Context) ([]api.Snapshot, error) {
	list, err := readWithRetries[api.SnapshotList](ctx, c, func(ctx context.Context) (*http.Response, error) {
		return c.raw.ListSnapshots(ctx)
	})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// GetSnapshot returns one snapshot by its name.
func (c *Client) GetSnapshot(ctx context.Context, name string) (*api.Snapshot, error) {
	return readWithRetries[api.Snapshot](ctx, c, callWithID(name, c.raw.GetSnapshot))
}

// RestoreSnapshot replaces the cloud's state by a snapshot. It may take as long as ctx
// allows, an hour at most.
func (c *Client) RestoreSnapshot(ctx context.Context, name string) (*api.Snapshot, error) {
	return sendOnce[api.Snapshot](ctx, c.withLongTimeout(), callWithID(name, c.raw.RestoreSnapshot))
}

// DeleteSnapshot deletes a snapshot.
func (c *Client) DeleteSnapshot(ctx context.Context, name string) error {
	_, err := sendOnce[struct{}](ctx, c, callWithID(name, c.raw.DeleteSnapshot))
	return err
}

// SnapshotContent writes a snapshot, a SQLite database, to out. It may take as long as ctx
// allows.
func (c *Client) SnapshotContent(ctx context.Context, name string, out io.Writer) error {
	resp, err := callWithID(name, c.raw.GetSnapshotContent)(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if err := asError(resp); err != nil {
		return err
	}
	_, err = io.Copy(out, resp.Body)
	return err
}
