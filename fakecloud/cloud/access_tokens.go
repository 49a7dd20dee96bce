package cloud

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/store"
	"github.com/ccmlab/ccmlab/fakecloud/store/db"
)

const (
	// DefaultAccessTokenLifetime is a Config.AccessTokenLifetime for those who have no preference.
	DefaultAccessTokenLifetime = 2 * time.Hour
	// maxAccessTokens is how many are kept that one secret was granted. The oldest go first.
	maxAccessTokens = 100
)

// AccessToken is a secret that is valid for a short time.
type AccessToken struct {
	Secret   string
	Lifetime time.Duration
}

// GrantAccess gives a secret for a short time to who shows a token's own secret, which may end sooner. It opens what
// that opens, as long as that does.
func (c *Cloud) GrantAccess(ctx context.Context, secret string) (AccessToken, error) {
	granted := AccessToken{Secret: NewSecret(), Lifetime: c.cfg.AccessTokenLifetime}
	hash, grantedTo := sha256.Sum256([]byte(granted.Secret)), sha256.Sum256([]byte(secret))
	err := c.changeAccess(ctx, func(ctx context.Context, tx *changeTx) error {
		a, err := loadAdmission(ctx, tx.Tx, grantedTo[:])
		if err == nil {
			_, err = a.principalAt(tx.now)
		}
		if err != nil {
			return err
		}
		if a.until != nil {
			granted.Lifetime = min(granted.Lifetime, a.until.Sub(tx.now))
		}
		err = tx.InsertAccessToken(ctx, db.InsertAccessTokenParams{
			Hash: hash[:], GrantedTo: grantedTo[:], ExpiresAt: tx.now.Add(granted.Lifetime).UnixMilli(),
		})
		if err != nil {
			return err
		}
		return tx.PruneAccessTokens(ctx, db.PruneAccessTokensParams{
			Now: tx.now.UnixMilli(), GrantedTo: grantedTo[:], Keep: maxAccessTokens,
		})
	})
	return granted, err
}

// loadGrantedAdmission gives what an access token gives access to: what the secret does that it was granted to,
// until one of the two expires.
func loadGrantedAdmission(ctx context.Context, tx *store.Tx, hash []byte) (admission, error) {
	row, err := tx.AccessToken(ctx, hash)
	if errors.Is(err, sql.ErrNoRows) {
		return admission{}, refuseUnknownSecret()
	}
	if err != nil {
		return admission{}, err
	}
	a, err := loadAdmission(ctx, tx, row.GrantedTo)
	if expires := fromMillis(row.ExpiresAt); a.until == nil || expires.Before(*a.until) {
		a.until, a.granted = &expires, true
	}
	return a, err
}
