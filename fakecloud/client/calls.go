package client

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// Ready returns nil if the cloud is ready. It needs no valid token.
func (c *Client) Ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	resp, err := c.send(ctx, http.MethodGet, "/readyz", nil, nil)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// ListProjects lists all projects of the cloud or, with a name, the project of that name.
func (c *Client) ListProjects(ctx context.Context, name string) ([]api.Project, error) {
	return readAllPages[api.Project](ctx, c, "/v1/projects", url.Values{"name": textOf(name), "limit": {largestPage}})
}

// ListTokens lists a project's tokens by name.
func (c *Client) ListTokens(ctx context.Context, project string) ([]api.Token, error) {
	return readAllPages[api.Token](
		ctx, c, pathOf("/v1/projects/%s/tokens", project), url.Values{"limit": {largestPage}},
	)
}

// maxWait is the longest time that one call may wait for an operation.
const maxWait = time.Minute

type operationKey struct{}

// OperationInto returns a context in which a change sets id to the ID of the operation that
// it began, or to "" if it began none.
func OperationInto(ctx context.Context, id *string) context.Context {
	return context.WithValue(ctx, operationKey{}, id)
}

// GetOperation returns one operation by its ID. If it has not ended, GetOperation waits for
// that up to the given time, truncated to whole seconds and a minute at most.
func (c *Client) GetOperation(ctx context.Context, id string, wait time.Duration) (*api.Operation, error) {
	wait = min(wait, maxWait).Truncate(time.Second)
	return readResource[api.Operation](
		ctx, c.withTimeout(c.timeout+wait), pathOf("/v1/operations/%s", id),
		url.Values{"wait": textOf(int(wait.Seconds()))},
	)
}

// AwaitOperation waits until an operation has ended, in success or not, and returns it.
func (c *Client) AwaitOperation(ctx context.Context, id string) (*api.Operation, error) {
	for {
		op, err := c.GetOperation(ctx, id, maxWait)
		if err != nil || op.State != api.OperationRunning {
			return op, err
		}
	}
}

// longTimeout is the timeout for moving a virtual clock and for creating a snapshot. As a
// rule the context of the call ends earlier.
const longTimeout = time.Hour

func (c *Client) withTimeout(timeout time.Duration) *Client {
	other := *c
	other.timeout = timeout
	return &other
}

// AdvanceClock moves the cloud's virtual clock by a duration, which it truncates to
// milliseconds. It returns when everything that falls due on the way has happened, or when
// ctx ends.
func (c *Client) AdvanceClock(ctx context.Context, by time.Duration) (*api.ClockAdvanced, error) {
	seconds := by.Truncate(time.Millisecond).Seconds()
	return c.advanceClock(ctx, api.ClockAdvance{Seconds: &seconds})
}

// AdvanceClockTo moves the cloud's virtual clock to a time, as AdvanceClock does.
func (c *Client) AdvanceClockTo(ctx context.Context, until time.Time) (*api.ClockAdvanced, error) {
	return c.advanceClock(ctx, api.ClockAdvance{Until: &until})
}

func (c *Client) advanceClock(ctx context.Context, body api.ClockAdvance) (*api.ClockAdvanced, error) {
	return sendChange[api.ClockAdvanced](ctx, c.withTimeout(longTimeout), http.MethodPost, "/v1/clock:advance", body)
}

// CreateSnapshot saves the state of the whole cloud. It may take as long as ctx allows, an
// hour at most.
func (c *Client) CreateSnapshot(ctx context.Context, name string) (*api.Snapshot, error) {
	return sendChange[api.Snapshot](
		ctx, c.withTimeout(longTimeout), http.MethodPost, "/v1/snapshots", api.SnapshotCreate{Name: name},
	)
}

// SnapshotContent writes a snapshot, a SQLite database, to out. It may take as long as ctx
// allows.
func (c *Client) SnapshotContent(ctx context.Context, name string, out io.Writer) error {
	resp, err := c.send(ctx, http.MethodGet, pathOf("/v1/snapshots/%s/content", name), nil, nil)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	_, err = io.Copy(out, resp.Body)
	return err
}
