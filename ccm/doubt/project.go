package doubt

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sync/singleflight"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// project is the project that the CCM is configured for, and whether the token in use belongs to it.
// Safe for concurrent use.
type project struct {
	ask  func(context.Context) (*api.Project, error)
	want string // name or ID
	// token tells tokens apart: the cloud is asked again when it returns another value.
	token func() string

	asking singleflight.Group
	mu     sync.Mutex
	id     string // once the cloud has said that the token belongs to the project
	of     string // that token, as token tells it apart
}

// resolveID returns the project's ID. It fails unless the token in use belongs to the project. The
// cloud is asked once for each token.
func (p *project) resolveID(ctx context.Context) (string, error) {
	token := p.token()
	p.mu.Lock()
	id, of := p.id, p.of
	p.mu.Unlock()
	if id != "" && of == token {
		return id, nil
	}
	asked, err, _ := p.asking.Do(token, func() (any, error) { return p.askID(ctx, token) })
	if err != nil {
		return "", err
	}
	return asked.(string), nil
}

func (p *project) askID(ctx context.Context, token string) (string, error) {
	found, err := p.ask(ctx)
	if err != nil {
		return "", fmt.Errorf("asking the cloud for our project: %w", err)
	}
	if found.Name != p.want && found.ID != p.want {
		return "", fmt.Errorf("%w: the cloud token belongs to project %s (%s), but this CCM is configured for %q",
			ErrWrongProject, found.Name, found.ID, p.want)
	}
	if p.token() != token {
		return "", errors.New("the cloud token changed while its project was looked up: retrying")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.id, p.of = found.ID, token
	return found.ID, nil
}
