package cloud

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"database/sql"
	"errors"
	"strings"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/store"
	"github.com/ccmlab/ccmlab/fakecloud/store/db"
)

const (
	// minSecret is the least length of a token, in bytes.
	minSecret = 16
	// maxGrace is how long a secret can outlive its rotation.
	maxGrace = 7 * 24 * time.Hour
)

// NewSecret makes up a token's secret: 64 letters and digits, as programs of other clouds take no other for one.
func NewSecret() string { return strings.ToLower(rand.Text() + rand.Text() + rand.Text())[:64] }

// Token is all that is known of a token but its secret.
type Token = api.Token

// GivenToken is a secret that opens a project, and its name in logs.
type GivenToken struct {
	Name, Secret string
	Role         Role
}

// SetTokens sets the project's given tokens, and removes those given earlier. Tokens made
// by CreateToken stay.
func (c *Cloud) SetTokens(ctx context.Context, p Project, tokens []GivenToken) error {
	if err := checkGivenTokens(tokens); err != nil {
		return err
	}
	return c.changeAccess(ctx, func(ctx context.Context, tx *changeTx) error {
		if err := tx.DeleteFlagTokens(ctx, p.ID); err != nil {
			return err
		}
		for _, t := range tokens {
			hash := sha256.Sum256([]byte(t.Secret))
			// Another token that has the name or the secret is replaced.
			err := tx.ReplaceToken(ctx, db.ReplaceTokenParams{
				Name: t.Name, ProjectID: p.ID, Hash: hash[:], Role: string(t.Role), CreatedAt: tx.now.UnixMilli(),
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
}

func checkGivenTokens(tokens []GivenToken) error {
	names := map[string]bool{}
	bySecret := map[string]string{}
	for _, t := range tokens {
		if names[t.Name] {
			return refuse(InvalidRequest, "two tokens have the name %q: give each its own name", t.Name)
		}
		names[t.Name] = true
		if err := checkRole(t.Role); err != nil {
			return err
		}
		if len(t.Secret) < minSecret {
			return refuse(
				InvalidRequest, "token %q is too short to be a secret: it has %d characters, at least %d are needed", t.Name,
				len(t.Secret), minSecret,
			)
		}
		if other, twice := bySecret[t.Secret]; twice {
			return refuse(
				InvalidRequest, "tokens %q and %q have the same secret: give each its own file", other, t.Name,
			)
		}
		bySecret[t.Secret] = t.Name
	}
	return nil
}

func checkRole(r Role) error {
	if !r.Valid() {
		return refuse(InvalidRequest, "no role %q: choose viewer, editor or admin", r).withField("role", "is unknown")
	}
	return nil
}

// CreateToken gives a new token of the project, and its secret, which is not stored.
func (c *Cloud) CreateToken(ctx context.Context, project string, spec api.TokenCreate) (Token, string, error) {
	if err := errors.Join(checkName(spec.Name), checkRole(spec.Role)); err != nil {
		return Token{}, "", err
	}
	secret := NewSecret()
	var t Token
	err := c.changeAccess(ctx, func(ctx context.Context, tx *changeTx) error {
		p, err := loadProject(ctx, tx.Tx, project)
		if err != nil {
			return err
		}
		if isDue(spec.ExpiresAt, tx.now) {
			return refuse(
				InvalidRequest, "a token that expires at %s would have expired already: by the cloud's clock it is %s",
				spec.ExpiresAt.Format(time.RFC3339), tx.now.Format(time.RFC3339),
			).withField("expiresAt", "is not in the future")
		}
		switch _, err := tx.GetToken(ctx, spec.Name); {
		case err == nil:
			return refuse(
				NameTaken, "this cloud already has a token %q, in this project or another: choose another name",
				spec.Name,
			).withField("name", "is taken")
		case !errors.Is(err, sql.ErrNoRows):
			return err
		}
		hash := sha256.Sum256([]byte(secret))
		err = tx.InsertToken(ctx, db.InsertTokenParams{
			Name: spec.Name, ProjectID: p.ID, Hash: hash[:], Role: string(spec.Role),
			ExpiresAt: millisOrNull(spec.ExpiresAt), CreatedAt: tx.now.UnixMilli(),
		})
		if err != nil {
			return err
		}
		t, err = loadToken(ctx, tx.Tx, project, spec.Name)
		return err
	})
	if err != nil {
		return Token{}, "", err
	}
	return t, secret, nil
}

// RotateToken gives a token a new secret, which is not stored. The secret before stays
// valid for the grace.
func (c *Cloud) RotateToken(ctx context.Context, project, name string, grace time.Duration) (Token, string, error) {
	if grace < 0 || grace > maxGrace {
		return Token{}, "", refuse(InvalidRequest, "a grace of %s: want at least 0 and at most %s", grace, maxGrace).
			withField("graceSeconds", "is out of range")
	}
	secret := NewSecret()
	var t Token
	err := c.changeAccess(ctx, func(ctx context.Context, tx *changeTx) error {
		old, err := loadToken(ctx, tx.Tx, project, name)
		if err != nil {
			return err
		}
		if err := checkNotGiven(old, "rotated"); err != nil {
			return err
		}
		if isDue(old.ExpiresAt, tx.now) {
			return refuse(
				WrongState, "token %q expired at %s, and a new secret would not change that: create another token",
				name, old.ExpiresAt.Format(time.RFC3339),
			)
		}
		row, err := tx.GetToken(ctx, name)
		if err != nil {
			return err
		}
		hash, until := sha256.Sum256([]byte(secret)), tx.now.Add(grace)
		err = tx.RotateToken(ctx, db.RotateTokenParams{
			Name: name, Hash: hash[:], RotatedAt: millisOrNull(&tx.now), PreviousHash: row.Hash,
			PreviousUntil: millisOrNull(&until),
		})
		if err != nil {
			return err
		}
		t, err = loadToken(ctx, tx.Tx, project, name)
		return err
	})
	if err != nil {
		return Token{}, "", err
	}
	return t, secret, nil
}

// GetToken reads one token of the project.
func (c *Cloud) GetToken(ctx context.Context, project, name string) (Token, error) {
	return readOne(ctx, c, func(tx *store.Tx) (Token, error) { return loadToken(ctx, tx, project, name) })
}

// ListTokens gives one page, by name, and whether more follow. Filter.After is a name. The
// filter's tags, zone and states are ignored.
func (c *Cloud) ListTokens(ctx context.Context, project string, f Filter) (page []Token, more bool, err error) {
	from := func(row db.Token) (Token, error) { return tokenFrom(row), nil }
	return readPage(ctx, c, f.Limit, from, func(tx *store.Tx) ([]db.Token, error) {
		if _, err := loadProject(ctx, tx, project); err != nil {
			return nil, err
		}
		return tx.ListTokens(
			ctx, db.ListTokensParams{ProjectID: project, After: f.After, Name: f.Name, Max: int64(f.Limit) + 1},
		)
	})
}

// DeleteToken deletes a token. The last admin's cannot be deleted: nobody could make
// another.
func (c *Cloud) DeleteToken(ctx context.Context, project, name string) error {
	return c.changeAccess(ctx, func(ctx context.Context, tx *changeTx) error {
		t, err := loadToken(ctx, tx.Tx, project, name)
		if err != nil {
			return err
		}
		if err := checkNotGiven(t, "deleted"); err != nil {
			return err
		}
		others, err := tx.OtherAdmins(ctx, db.OtherAdminsParams{Name: name, Now: millisOrNull(&tx.now)})
		switch {
		case err != nil:
			return err
		case t.Role == Admin && others == 0:
			return refuse(InUse, "token %q is the cloud's last admin: create another admin's first", name)
		}
		return tx.DeleteToken(ctx, name)
	})
}

// checkNotGiven refuses changes to a given token: the next start, or a snapshot, would
// undo them.
func checkNotGiven(t Token, what string) error {
	if t.Origin != api.TokenFromFlag {
		return nil
	}
	return refuse(
		WrongState,
		"token %q comes from `fakecloud serve --token` and cannot be %s here: change its file or that option, and start `fakecloud serve` again",
		t.Name, what,
	)
}

// loadToken reads a token of a project that there is; another project's is not found.
func loadToken(ctx context.Context, tx *store.Tx, project, name string) (Token, error) {
	if _, err := loadProject(ctx, tx, project); err != nil {
		return Token{}, err
	}
	row, err := tx.GetToken(ctx, name)
	if errors.Is(err, sql.ErrNoRows) || err == nil && row.ProjectID != project {
		return Token{}, refuse(NotFound, "no token %q in project %s", name, project)
	}
	return tokenFrom(row), err
}

func tokenFrom(row db.Token) Token {
	return Token{
		Name: row.Name, Project: row.ProjectID, Role: Role(row.Role), Origin: api.TokenOrigin(row.Origin),
		CreatedAt: fromMillis(row.CreatedAt), ExpiresAt: timeOrNil(row.ExpiresAt), RotatedAt: timeOrNil(row.RotatedAt),
		PreviousValidUntil: timeOrNil(row.PreviousUntil),
	}
}
