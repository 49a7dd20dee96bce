package ccm

// Whose answers are believed: only those of the project this CCM is
// configured for. A token that was swapped to another project sees none of our
// instances, and its "not found" must never delete a Node.

import (
	"context"
	"fmt"
	"sync"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

type projectAPI interface {
	Project(context.Context) (*api.Project, error)
}

type projectGuard struct {
	api  projectAPI
	want string // name or ID

	mu sync.Mutex
	id string // resolved once the cloud has answered
}

func newProjectGuard(api projectAPI, want string) *projectGuard {
	return &projectGuard{api: api, want: want}
}

// check is an error unless the token belongs to our project now.
func (g *projectGuard) check(ctx context.Context) error {
	_, err := g.resolve(ctx)
	return err
}

// resolve asks the cloud which project the token belongs to, and returns its
// ID if it is ours.
func (g *projectGuard) resolve(ctx context.Context) (string, error) {
	p, err := g.api.Project(ctx)
	if err != nil {
		return "", fmt.Errorf("asking the cloud for our project: %w", err)
	}
	if p.Name != g.want && p.ID != g.want {
		return "", fmt.Errorf("%w: the cloud token belongs to project %s (%s), but this CCM is configured for %q", errWrongProject, p.Name, p.ID, g.want)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.id = p.ID
	return p.ID, nil
}

// owns tells whether an answer that names this project (by ID) is ours. It
// asks the cloud only until it has been told our project's ID once.
func (g *projectGuard) owns(ctx context.Context, projectID string) (bool, error) {
	g.mu.Lock()
	id := g.id
	g.mu.Unlock()
	if id == "" {
		var err error
		if id, err = g.resolve(ctx); err != nil {
			return false, err
		}
	}
	return projectID == id, nil
}

// definiteNotFound tells whether err is the cloud's own word, for our project,
// that the resource does not exist. A non-nil error means that there is no
// definite answer.
func (g *projectGuard) definiteNotFound(ctx context.Context, err error) (bool, error) {
	if !client.IsNotFound(err) {
		return false, err
	}
	ours, perr := g.owns(ctx, client.ProjectOf(err))
	if perr != nil {
		return false, perr
	}
	if !ours {
		return false, fmt.Errorf("%w: doubtful answer, taken for none: project %q is not ours: %w", errWrongProject, client.ProjectOf(err), err)
	}
	return true, nil
}
