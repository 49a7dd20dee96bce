package client

import (
	"context"
	"net/http"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// RunScenario starts faults and actions over time.
func (c *Client) RunScenario(ctx context.Context, s api.ScenarioCreate) (*api.Scenario, error) {
	return write[api.Scenario](ctx, c, func(ctx context.Context) (*http.Response, error) { return c.raw.RunScenario(ctx, s) })
}

// ListScenarios lists the project's scenarios since the cloud's process started,
// oldest first.
func (c *Client) ListScenarios(ctx context.Context) ([]api.Scenario, error) {
	list, err := read[api.ScenarioList](ctx, c, func(ctx context.Context) (*http.Response, error) { return c.raw.ListScenarios(ctx) })
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// GetScenario asks how far a scenario has come.
func (c *Client) GetScenario(ctx context.Context, id string) (*api.Scenario, error) {
	return read[api.Scenario](ctx, c, of(id, c.raw.GetScenario))
}

// StopScenario ends a scenario and lifts its faults.
func (c *Client) StopScenario(ctx context.Context, id string) (*api.Scenario, error) {
	return write[api.Scenario](ctx, c, of(id, c.raw.StopScenario))
}

// DeleteScenario stops a scenario and has it forgotten.
func (c *Client) DeleteScenario(ctx context.Context, id string) error {
	_, err := write[struct{}](ctx, c, of(id, c.raw.DeleteScenario))
	return err
}
