// This file answers: who is it, and which project is theirs?

package cloud

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/store"
	"github.com/ccmlab/ccmlab/fakecloud/store/db"
)

// Principal is who a token speaks for.
type Principal struct {
	Token   string // the token's name, never its secret
	Project Project
}

// EnsureProject creates the project, or sets the default tags of the one of
// that name.
func (c *Cloud) EnsureProject(ctx context.Context, name string, defaultTags map[string]string) (Project, error) {
	if name == "" {
		return Project{}, refuse(InvalidRequest, "a project needs a name").at("name", "must not be empty")
	}
	var p Project
	err := c.change(ctx, func(ctx context.Context, tx *store.Tx, now time.Time) error {
		id, err := c.random.id("p", now)
		if err != nil {
			return err
		}
		row, err := tx.UpsertProject(ctx, db.UpsertProjectParams{
			ID: id, Name: name, DefaultTags: toJSON(tagsOrEmpty(defaultTags)), CreatedAt: now.UnixMilli(),
		})
		if err != nil {
			return err
		}
		p, err = projectFrom(row)
		return err
	})
	return p, err
}

// EnsureToken makes secret the token of that name, in place of an earlier one.
func (c *Cloud) EnsureToken(ctx context.Context, name string, p Project, secret string) error {
	if len(secret) < 16 {
		return refuse(InvalidRequest, "token %q is too short to be a secret: it has %d characters, 16 are the least", name, len(secret))
	}
	hash := sha256.Sum256([]byte(secret))
	return c.change(ctx, func(ctx context.Context, tx *store.Tx, now time.Time) error {
		other, err := tx.TokenNameByHash(ctx, hash[:])
		switch {
		case err == nil && other != name:
			return refuse(InvalidRequest, "tokens %q and %q have the same secret: give each a file of its own", other, name)
		case err != nil && !errors.Is(err, sql.ErrNoRows):
			return err
		}
		return tx.UpsertToken(ctx, db.UpsertTokenParams{Name: name, ProjectID: p.ID, Hash: hash[:], CreatedAt: now.UnixMilli()})
	})
}

// Authenticate finds whose token it is. The lookup is by hash, so its time
// tells nothing about a secret.
func (c *Cloud) Authenticate(ctx context.Context, secret string) (Principal, error) {
	hash := sha256.Sum256([]byte(secret))
	var who Principal
	err := c.store.Read(ctx, func(tx *store.Tx) error {
		row, err := tx.TokenByHash(ctx, hash[:])
		if errors.Is(err, sql.ErrNoRows) {
			return refuse(Unauthenticated, "the bearer token is not known here: check that the token file belongs to this cloud")
		}
		if err != nil {
			return err
		}
		who.Token = row.Token.Name
		who.Project, err = projectFrom(row.Project)
		return err
	})
	return who, err
}

func projectFrom(row db.Project) (Project, error) {
	p := Project{ID: row.ID, Name: row.Name}
	if err := json.Unmarshal([]byte(row.DefaultTags), &p.DefaultTags); err != nil {
		return Project{}, fmt.Errorf("project %s: stored tags: %w", row.ID, err)
	}
	return p, nil
}
