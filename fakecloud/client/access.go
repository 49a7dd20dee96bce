package client

import (
	"context"
	"net/http"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// ListProjects lists all projects of the cloud or, with a name, the project of that name.
func (c *Client) ListProjects(ctx context.Context, name string) ([]api.Project, error) {
	params := api.ListProjectsParams{Name: optionalParam(name), Limit: new(pageSize)}
	return readAllPages(func(token *string) (*api.ProjectList, error) {
		params.PageToken = token
		return readWithRetries[api.ProjectList](ctx, c, func(ctx context.Context) (*http.Response, error) {
			return c.raw.ListProjects(ctx, &params)
		})
	}, func(list *api.ProjectList) ([]api.Project, *string) { return list.Items, list.NextPageToken })
}

// GetProject returns one project by its ID. For the caller's own project there is Project.
func (c *Client) GetProject(ctx context.Context, id string) (*api.Project, error) {
	return readWithRetries[api.Project](ctx, c, callWithID(id, c.raw.GetProjectByID))
}

// CreateProject creates a project without tokens.
func (c *Client) CreateProject(ctx context.Context, p api.ProjectCreate) (*api.Project, error) {
	return sendCreate[api.Project](ctx, c, func(ctx context.Context) (*http.Response, error) {
		return c.raw.CreateProject(ctx, &api.CreateProjectParams{}, p)
	})
}

// UpdateProject replaces the fields that are not nil.
func (c *Client) UpdateProject(ctx context.Context, id string, u api.ProjectUpdate) (*api.Project, error) {
	return sendOnce[api.Project](ctx, c, callWithID(id, func(
		ctx context.Context,
		id string,
		edit ...api.RequestEditorFn,
	) (*http.Response, error) {
		return c.raw.UpdateProject(ctx, id, &api.UpdateProjectParams{}, u, edit...)
	}))
}

// DeleteProject deletes a project that has no resources.
func (c *Client) DeleteProject(ctx context.Context, id string) error {
	_, err := sendOnce[struct{}](ctx, c, changeWithID(id, c.raw.DeleteProject))
	return err
}

// ListTokens lists a project's tokens by name.
func (c *Client) ListTokens(ctx context.Context, project string) ([]api.Token, error) {
	params := api.ListTokensParams{Limit: new(pageSize)}
	return readAllPages(func(token *string) (*api.TokenList, error) {
		params.PageToken = token
		return readWithRetries[api.TokenList](ctx, c, callWithID(project, func(
			ctx context.Context,
			id string,
			edit ...api.RequestEditorFn,
		) (*http.Response, error) {
			return c.raw.ListTokens(ctx, id, &params, edit...)
		}))
	}, func(list *api.TokenList) ([]api.Token, *string) { return list.Items, list.NextPageToken })
}

// GetToken returns one token, without its secret.
func (c *Client) GetToken(ctx context.Context, project, name string) (*api.Token, error) {
	return readWithRetries[api.Token](ctx, c, callWithToken(project, name, c.raw.GetToken))
}

// CreateToken creates a token. The secret in the reply cannot be read again.
func (c *Client) CreateToken(ctx context.Context, project string, t api.TokenCreate) (*api.TokenWithSecret, error) {
	return sendOnce[api.TokenWithSecret](ctx, c, callWithID(project, func(
		ctx context.Context,
		id string,
		edit ...api.RequestEditorFn,
	) (*http.Response, error) {
		return c.raw.CreateToken(ctx, id, t, edit...)
	}))
}

// RotateToken gives a token a new secret. The former secret stays valid for the grace period
// of r.
func (c *Client) RotateToken(
	ctx context.Context,
	project, name string,
	r api.TokenRotate,
) (*api.TokenWithSecret, error) {
	return sendOnce[api.TokenWithSecret](ctx, c, callWithToken(project, name, func(
		ctx context.Context,
		id, name string,
		edit ...api.RequestEditorFn,
	) (*http.Response, error) {
		return c.raw.RotateToken(ctx, id, name, r, edit...)
	}))
}

// DeleteToken deletes a token. It is invalid at once.
func (c *Client) DeleteToken(ctx context.Context, project, name string) error {
	_, err := sendOnce[struct{}](ctx, c, callWithToken(project, name, c.raw.DeleteToken))
	return err
}

// callWithToken is callWithID for a token, which is found by its project and name.
func callWithToken(
	project, name string,
	do func(context.Context, string, string, ...api.RequestEditorFn) (*http.Response, error),
) call {
	return callWithID(project, func(
		ctx context.Context,
		id string,
		edit ...api.RequestEditorFn,
	) (*http.Response, error) {
		if name == "" {
			return nil, errNoID
		}
		return do(ctx, id, name, edit...)
	})
}
