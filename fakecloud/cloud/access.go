package cloud

import (
	"context"
	"crypto/rsa"
	"crypto/sha256"
	"database/sql"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/store"
	"github.com/ccmlab/ccmlab/fakecloud/store/db"
)

// Role is what a token may do. Each role includes the one before.
type Role = api.Role

// A viewer reads, an editor also changes what is in the project, and an admin
// also operates the cloud.
const (
	Viewer = api.RoleViewer
	Editor = api.RoleEditor
	Admin  = api.RoleAdmin
)

// Principal is who a token speaks for.
type Principal struct {
	Token   string // the token's name, never its secret
	Role    Role
	Project Project
	Details Token // the token's other properties
}

// admission is what a secret or a key gives access to. It holds as long as no token and no project
// changes.
type admission struct {
	who Principal
	// until is when this secret expires, if it does. The secret before a rotation may
	// expire sooner than its token.
	until   *time.Time
	rotated bool
	granted bool           // by GrantAccess
	key     *rsa.PublicKey // nil for a secret
}

// principalAt gives the principal, or a refusal if the secret has expired by now.
func (a admission) principalAt(now time.Time) (Principal, error) {
	switch {
	case !isDue(a.until, now):
		return a.who, nil
	case a.granted:
		return Principal{}, refuse(
			Unauthenticated, "an access token of token %q expired at %s: get another", a.who.Token,
			a.until.Format(time.RFC3339),
		)
	case a.rotated:
		return Principal{}, refuse(
			Unauthenticated, "token %q was rotated, and this secret of it expired at %s: use the new one", a.who.Token,
			a.until.Format(time.RFC3339),
		)
	}
	return Principal{}, refuse(
		Unauthenticated, "token %q expired at %s: ask an admin of this cloud for another", a.who.Token,
		a.until.Format(time.RFC3339),
	)
}

// admissionCache keeps admissions in memory, by a secret's hash or a key's fingerprint: tokens
// are looked up with every call and hardly ever change.
type admissionCache[K comparable] struct {
	mu sync.RWMutex
	// changes counts the calls of clear, so that put can drop what was read before the
	// last one.
	changes int64
	known   map[K]admission
}

func (s *admissionCache[K]) get(by K) (a admission, changes int64, ok bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	a, ok = s.known[by]
	return a, s.changes, ok
}

// put keeps an admission that was read when the cache had been cleared so many times.
func (s *admissionCache[K]) put(by K, a admission, changes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.changes != changes {
		return
	}
	if s.known == nil {
		s.known = map[K]admission{}
	}
	s.known[by] = a
}

func (s *admissionCache[K]) clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changes++
	s.known = nil
}

// changeAccess is change for tokens, their keys and projects. Keys go with their token. It clears
// the caches before it returns: nobody is let in afterwards by what was valid before.
func (c *Cloud) changeAccess(ctx context.Context, fn func(ctx context.Context, tx *changeTx) error) error {
	defer c.admissions.clear()
	defer c.keyAdmissions.clear()
	return c.change(ctx, func(ctx context.Context, tx *changeTx) error {
		if err := fn(ctx, tx); err != nil {
			return err
		}
		return tx.PruneTokenKeys(ctx)
	})
}

// Remembers tells whether Authenticate knows the secret without reading the store.
func (c *Cloud) Remembers(secret string) bool {
	_, _, ok := c.admissions.get(sha256.Sum256([]byte(secret)))
	return ok
}

// Authenticate finds the token that a secret belongs to. It looks up a hash, so the time
// it takes says nothing about any secret.
func (c *Cloud) Authenticate(ctx context.Context, secret string) (Principal, error) {
	hash := sha256.Sum256([]byte(secret))
	a, changes, ok := c.admissions.get(hash)
	if !ok {
		var err error
		if a, err = c.loadAdmission(ctx, hash); err != nil {
			return Principal{}, err
		}
		c.admissions.put(hash, a, changes)
	}
	return a.principalAt(c.now())
}

func (c *Cloud) loadAdmission(ctx context.Context, hash [sha256.Size]byte) (admission, error) {
	return readOne(ctx, c, func(tx *store.Tx) (admission, error) {
		a, err := loadAdmission(ctx, tx, hash[:])
		var unknown *Error
		if errors.As(err, &unknown) {
			return loadGrantedAdmission(ctx, tx, hash[:])
		}
		return a, err
	})
}

func refuseUnknownSecret() error {
	return refuse(
		Unauthenticated, "the bearer token is not known here: check that the token file belongs to this cloud",
	)
}

// loadAdmission gives what a token's secret gives access to, by its hash.
func loadAdmission(ctx context.Context, tx *store.Tx, hash []byte) (a admission, err error) {
	row, err := tx.TokenByHash(ctx, hash)
	if errors.Is(err, sql.ErrNoRows) {
		return a, refuseUnknownSecret()
	}
	if err != nil {
		return a, err
	}
	a, err = admissionOf(row.Token, row.Project)
	previousUntil := a.who.Details.PreviousValidUntil
	if !slices.Equal(row.Token.Hash, hash) && (a.until == nil || previousUntil.Before(*a.until)) {
		a.until, a.rotated = previousUntil, true
	}
	return a, err
}

// admissionOf gives what a token gives access to.
func admissionOf(token db.Token, project db.Project) (a admission, err error) {
	t := tokenFrom(token)
	a.until = t.ExpiresAt
	a.who = Principal{Token: t.Name, Role: t.Role, Details: t}
	a.who.Project, err = projectFrom(project)
	return a, err
}
