package client

import (
	"context"
	"io"
	"net/http"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// CreateSnapshot puts the state of the whole cloud aside. It takes as
// long as ctx lets it, an hour at most.
func (c *Client) CreateSnapshot(ctx context.Context, name string) (*api.Snapshot, error) {
	return write[api.Snapshot](ctx, c.patient(), func(ctx context.Context) (*http.Response, error) {
		return c.raw.CreateSnapshot(ctx, api.SnapshotCreate{Name: name})
	})
}

// ListSnapshots lists them by name.
func (c *Client) ListSnapshots(ctx context.Context) ([]api.Snapshot, error) {
	list, err := read[api.SnapshotList](ctx, c, func(ctx context.Context) (*http.Response, error) { return c.raw.ListSnapshots(ctx) })
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// GetSnapshot asks for one snapshot by its name.
func (c *Client) GetSnapshot(ctx context.Context, name string) (*api.Snapshot, error) {
	return read[api.Snapshot](ctx, c, of(name, c.raw.GetSnapshot))
}

// RestoreSnapshot makes a snapshot's state the cloud's. It takes as long as
// ctx lets it, an hour at most.
func (c *Client) RestoreSnapshot(ctx context.Context, name string) (*api.Snapshot, error) {
	return write[api.Snapshot](ctx, c.patient(), of(name, c.raw.RestoreSnapshot))
}

// DeleteSnapshot removes a snapshot.
func (c *Client) DeleteSnapshot(ctx context.Context, name string) error {
	_, err := write[struct{}](ctx, c, of(name, c.raw.DeleteSnapshot))
	return err
}

// SnapshotContent writes a snapshot, a SQLite database, to out. It takes as long
// as ctx lets it.
func (c *Client) SnapshotContent(ctx context.Context, name string, out io.Writer) error {
	resp, err := of(name, c.raw.GetSnapshotContent)(ctx)
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
