package client

import (
	"context"
	"net/http"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// ListProjects lists all projects of the cloud; with a name, the one of it.
func (c *Client) ListProjects(ctx context.Context, name string) ([]api.Project, error) {
	params := api.ListProjectsParams{Name: optional(name), Limit: new(pageSize)}
	return pages(func(token *string) (*api.ProjectList, error) {
		params.PageToken = token
		return read[api.ProjectList](ctx, c, func(ctx context.Context) (*http.Response, error) { return c.raw.ListProjects(ctx, &params) })
	}, func(list *api.ProjectList) ([]api.Project, *string) { return list.Items, list.NextPageToken })
}

// GetProject asks for one project by its ID; Project is for the caller's own.
func (c *Client) GetProject(ctx context.Context, id string) (*api.Project, error) {
	return read[api.Project](ctx, c, of(id, c.raw.GetProjectByID))
}

// CreateProject makes a new project, without tokens.
func (c *Client) CreateProject(ctx context.Context, p api.ProjectCreate) (*api.Project, error) {
	return create[api.Project](ctx, c, func(ctx context.Context) (*http.Response, error) {
		return c.raw.CreateProject(ctx, &api.CreateProjectParams{}, p)
	})
}

// UpdateProject replaces the fields that are not nil.
func (c *Client) UpdateProject(ctx context.Context, id string, u api.ProjectUpdate) (*api.Project, error) {
	return write[api.Project](ctx, c, of(id, func(ctx context.Context, id string, edit ...api.RequestEditorFn) (*http.Response, error) {
		return c.raw.UpdateProject(ctx, id, &api.UpdateProjectParams{}, u, edit...)
	}))
}

// DeleteProject ends a project in which nothing lives.
func (c *Client) DeleteProject(ctx context.Context, id string) error {
	_, err := write[struct{}](ctx, c, change(id, c.raw.DeleteProject))
	return err
}

// ListTokens lists a project's tokens by name.
func (c *Client) ListTokens(ctx context.Context, project string) ([]api.Token, error) {
	params := api.ListTokensParams{Limit: new(pageSize)}
	return pages(func(token *string) (*api.TokenList, error) {
		params.PageToken = token
		return read[api.TokenList](ctx, c, of(project, func(ctx context.Context, id string, edit ...api.RequestEditorFn) (*http.Response, error) {
			return c.raw.ListTokens(ctx, id, &params, edit...)
		}))
	}, func(list *api.TokenList) ([]api.Token, *string) { return list.Items, list.NextPageToken })
}

// GetToken asks for one token, without its secret.
func (c *Client) GetToken(ctx context.Context, project, name string) (*api.Token, error) {
	return read[api.Token](ctx, c, ofToken(project, name, c.raw.GetToken))
}

// CreateToken makes a new token. The secret in the reply cannot be read again.
func (c *Client) CreateToken(ctx context.Context, project string, t api.TokenCreate) (*api.TokenWithSecret, error) {
	return write[api.TokenWithSecret](ctx, c, of(project, func(ctx context.Context, id string, edit ...api.RequestEditorFn) (*http.Response, error) {
		return c.raw.CreateToken(ctx, id, t, edit...)
	}))
}

// RotateToken gives a token a new secret; the one before stays valid for the
// grace that r asks for.
func (c *Client) RotateToken(ctx context.Context, project, name string, r api.TokenRotate) (*api.TokenWithSecret, error) {
	return write[api.TokenWithSecret](ctx, c, ofToken(project, name, func(ctx context.Context, id, name string, edit ...api.RequestEditorFn) (*http.Response, error) {
		return c.raw.RotateToken(ctx, id, name, r, edit...)
	}))
}

// DeleteToken ends a token at once.
func (c *Client) DeleteToken(ctx context.Context, project, name string) error {
	_, err := write[struct{}](ctx, c, ofToken(project, name, c.raw.DeleteToken))
	return err
}

// ofToken is of for a token, which has a project and a name.
func ofToken(project, name string, do func(context.Context, string, string, ...api.RequestEditorFn) (*http.Response, error)) call {
	return of(project, func(ctx context.Context, id string, edit ...api.RequestEditorFn) (*http.Response, error) {
		if name == "" {
			return nil, errNoID
		}
		return do(ctx, id, name, edit...)
	})
}
