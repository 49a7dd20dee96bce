package ccm

// Whose answers are believed: only those of the project this CCM is
// configured for. A token that was swapped to another project sees none of our
// instances, and its "not found", or its empty list, must never delete a Node.

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

type projectGuard struct {
	api  projectAPI
	want string // name or ID
	// token tells tokens apart: the cloud is asked anew when what it returns has
	// changed.
	token func() string

	asking       singleflight.Group
	mu           sync.Mutex
	projectID    string // our project's, once the cloud has said that the token is its
	projectToken string // that token
}

func newProjectGuard(api projectAPI, want string) *projectGuard {
	return &projectGuard{api: api, want: want, token: func() string { return "" }}
}

// checkToken is an error unless the token belongs to our project. The cloud is asked
// once for each token.
func (g *projectGuard) checkToken(ctx context.Context) error {
	_, err := g.resolveProjectID(ctx)
	return err
}

// resolveProjectID is our project's ID, if the token that is in use belongs to it.
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
		return "", fmt.Errorf("%w: the cloud token belongs to project %s (%s), but this CCM is configured for %q", errWrongProject, p.Name, p.ID, g.want)
	}
	if g.token() != token {
		return "", errors.New("the cloud token was changed while the cloud was asked for its project: nothing is concluded until it is asked again")
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.projectID, g.projectToken = p.ID, token
	return p.ID, nil
}

// ownsProject tells whether an answer that names this project (by ID) is ours.
func (g *projectGuard) ownsProject(ctx context.Context, projectID string) (bool, error) {
	id, err := g.resolveProjectID(ctx)
	if err != nil {
		return false, err
	}
	return projectID == id, nil
}

// isDefiniteNotFound tells whether err is the cloud's own word, for our project,
// that the resource does not exist. A non-nil error means that there is no
// definite answer.
func (g *projectGuard) isDefiniteNotFound(ctx context.Context, err error) (bool, error) {
	if !client.IsNotFound(err) {
		return false, err
	}
	ours, perr := g.ownsProject(ctx, client.ProjectOf(err))
	if perr != nil {
		return false, perr
	}
	if !ours {
		return false, fmt.Errorf("%w: doubtful answer, taken for none: project %q is not ours: %w", errWrongProject, client.ProjectOf(err), err)
	}
	return true, nil
}
