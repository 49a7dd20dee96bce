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

// minSecret is the least length of a token, in bytes.
const minSecret = 16

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
	if err := checkTags(defaultTags); err != nil {
		return Project{}, err
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

// Token is a secret that opens a project, and the name it goes by in logs.
type Token struct{ Name, Secret string }

// SetTokens makes these the project's tokens, and no others.
func (c *Cloud) SetTokens(ctx context.Context, p Project, tokens []Token) error {
	names := map[string]bool{}
	bySecret := map[string]string{}
	for _, t := range tokens {
		if names[t.Name] {
			return refuse(InvalidRequest, "two tokens have the name %q: give each one of its own", t.Name)
		}
		names[t.Name] = true
		if len(t.Secret) < minSecret {
			return refuse(InvalidRequest, "token %q is too short to be a secret: it has %d characters, %d are the least", t.Name, len(t.Secret), minSecret)
		}
		if other, twice := bySecret[t.Secret]; twice {
			return refuse(InvalidRequest, "tokens %q and %q have the same secret: give each a file of its own", other, t.Name)
		}
		bySecret[t.Secret] = t.Name
	}
	return c.change(ctx, func(ctx context.Context, tx *store.Tx, now time.Time) error {
		if err := tx.DeleteTokens(ctx, p.ID); err != nil {
			return err
		}
		for _, t := range tokens {
			hash := sha256.Sum256([]byte(t.Secret))
			// A name or secret of another project's token becomes this project's.
			if err := tx.InsertToken(ctx, db.InsertTokenParams{Name: t.Name, ProjectID: p.ID, Hash: hash[:], CreatedAt: now.UnixMilli()}); err != nil {
				return err
			}
		}
		return nil
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
