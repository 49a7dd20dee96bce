package client

import (
	"context"
	"net/http"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// RunScenario starts a scenario: faults and actions at given times.
func (c *Client) RunScenario(ctx context.Context, s api.ScenarioCreate) (*api.Scenario, error) {
	return sendOnce[api.Scenario](ctx, c, func(ctx context.Context) (*http.Response, error) {
		return c.raw.RunScenario(ctx, s)
	})
}

// ListScenarios lists the project's scenarios since the cloud's process started,
// oldest first.
func (c *Client) ListScenarios(ctx context.Context) ([]api.Scenario, error) {
	list, err := readWithRetries[api.ScenarioList](ctx, c, func(ctx context.Context) (*http.Response, error) {
		return c.raw.ListScenarios(ctx)
	})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// GetScenario returns one scenario, with the state of each step.
func (c *Client) GetScenario(ctx context.Context, id string) (*api.Scenario, error) {
	return readWithRetries[api.Scenario](ctx, c, callWithID(id, c.raw.GetScenario))
}

// StopScenario stops a scenario and deletes its faults.
func (c *Client) StopScenario(ctx context.Context, id string) (*api.Scenario, error) {
	return sendOnce[api.Scenario](ctx, c, callWithID(id, c.raw.StopScenario))
}

// DeleteScenario stops a scenario and removes it from the list.
func (c *Client) DeleteScenario(ctx context.Context, id string) error {
	_, err := sendOnce[struct{}](ctx, c, callWithID(id, c.raw.DeleteScenario))
	return err
}
