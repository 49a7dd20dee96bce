package ccm

// Only answers about the configured project are used. With a token of another project, the cloud shows
// none of our instances, and its "not found", or its empty list, must never delete a Node.

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sync/singleflight"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

type projectAPI interface {
	Project(context.Context) (*api.Project, error)
}

// projectGuard knows which project the token in use belongs to.
type projectGuard struct {
	api  projectAPI
	want string // name or ID
	// token tells tokens apart: the cloud is asked anew when what it returns has changed.
	token func() string

	asking       singleflight.Group
	mu           sync.Mutex
	projectID    string // of our project, once the cloud has said that the token belongs to it
	projectToken string // that token, as token tells it apart
}

func newProjectGuard(api projectAPI, want string) *projectGuard {
	return &projectGuard{api: api, want: want, token: func() string { return "" }}
}

// checkToken is an error unless the token in use belongs to our project. The cloud is asked once
// for each token.
func (g *projectGuard) checkToken(ctx context.Context) error {
	_, err := g.resolveProjectID(ctx)
	return err
}

// resolveProjectID is our project's ID. It is an error unless the token in use belongs to that
// project.
func (g *projectGuard) resolveProjectID(ctx context.Context) (string, error) {
	token := g.token()
	g.mu.Lock()
	id, of := g.projectID, g.projectToken
	g.mu.Unlock()
	if id != "" && of == token {
		return id, nil
	}
	asked, err, _ := g.asking.Do(token, func() (any, error) { return g.askProject(ctx, token) })
	if err != nil {
		return "", err
	}
	return asked.(string), nil
}

func (g *projectGuard) askProject(ctx context.Context, token string) (string, error) {
	p, err := g.api.Project(ctx)
	if err != nil {
		return "", fmt.Errorf("asking the cloud for our project: %w", err)
	}
	if p.Name != g.want && p.ID != g.want {
		return "", fmt.Errorf("%w: the cloud token belongs to project %s (%s), but this CCM is configured for %q",
			errWrongProject, p.Name, p.ID, g.want)
	}
	if g.token() != token {
		return "", errors.New("the cloud token changed while its project was looked up: retrying")
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.projectID, g.projectToken = p.ID, token
	return p.ID, nil
}

// ownsProject tells whether an answer that names this project, by its ID, is about ours.
func (g *projectGuard) ownsProject(ctx context.Context, projectID string) (bool, error) {
	id, err := g.resolveProjectID(ctx)
	if err != nil {
		return false, err
	}
	return projectID == id, nil
}

// isDefiniteNotFound tells whether err is the cloud's own answer, for our project, that the
// resource does not exist. The error that it returns means that there is no definite answer.
func (g *projectGuard) isDefiniteNotFound(ctx context.Context, err error) (bool, error) {
	if !client.IsNotFound(err) {
		return false, err
	}
	ours, perr := g.ownsProject(ctx, client.ProjectOf(err))
	if perr != nil {
		return false, perr
	}
	if !ours {
		return false, fmt.Errorf("%w: the answer is not used: project %q is not ours: %w",
			errWrongProject, client.ProjectOf(err), err)
	}
	return true, nil
}
