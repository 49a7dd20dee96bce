package cloud

import (
	"bytes"
	"context"
	"crypto/rsa"
	"crypto/x509"
	"database/sql"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/identity"
	"github.com/ccmlab/ccmlab/fakecloud/store"
	"github.com/ccmlab/ccmlab/fakecloud/store/db"
)

const (
	// maxTokenKeys is how many keys a token may have, as many as a user of Oracle's cloud.
	maxTokenKeys = 3
	// minKeyBits and maxKeyBits bound the size of keys. Checking a signature by a larger one would take long.
	minKeyBits, maxKeyBits = 2048, 4096
)

// TokenKey is a public key of a token. Who signs a call with its private key acts as the token, where a dialect
// takes signatures. A key is valid as long as its token, and outlives the rotation of the token's secret.
type TokenKey = api.TokenKey

// AddTokenKey gives a token a public RSA key, as PEM.
func (c *Cloud) AddTokenKey(ctx context.Context, project, token, publicKey string) (TokenKey, error) {
	var k TokenKey
	err := c.changeAccess(ctx, func(ctx context.Context, tx *changeTx) error {
		keys, err := loadTokenKeys(ctx, tx.Tx, project, token)
		if err != nil {
			return err
		}
		der, err := parsePublicKey(publicKey)
		if err != nil {
			return err
		}
		k = TokenKey{Fingerprint: identity.Fingerprint(der), CreatedAt: tx.now}
		switch other, err := tx.TokenKey(ctx, k.Fingerprint); {
		case err == nil:
			return refuse(
				NameTaken, "token %q already has the key %s, and a key belongs to one token: make another pair",
				other.Token.Name, k.Fingerprint,
			).withField("publicKey", "is taken")
		case !errors.Is(err, sql.ErrNoRows):
			return err
		case len(keys) >= maxTokenKeys:
			return refuse(
				QuotaExceeded, "token %q has %d keys, which is the limit: delete one first", token, maxTokenKeys,
			)
		}
		return tx.InsertTokenKey(ctx, db.InsertTokenKeyParams{
			Fingerprint: k.Fingerprint, Token: token, ProjectID: project, PublicKey: der, CreatedAt: tx.now.UnixMilli(),
		})
	})
	return k, err
}

// ListTokenKeys gives a token's keys, oldest first.
func (c *Cloud) ListTokenKeys(ctx context.Context, project, token string) ([]TokenKey, error) {
	return readOne(ctx, c, func(tx *store.Tx) ([]TokenKey, error) { return loadTokenKeys(ctx, tx, project, token) })
}

// DeleteTokenKey deletes a key of a token.
func (c *Cloud) DeleteTokenKey(ctx context.Context, project, token, fingerprint string) error {
	return c.changeAccess(ctx, func(ctx context.Context, tx *changeTx) error {
		if _, err := loadTokenKeys(ctx, tx.Tx, project, token); err != nil {
			return err
		}
		deleted, err := tx.DeleteTokenKey(ctx, db.DeleteTokenKeyParams{Token: token, Fingerprint: fingerprint})
		if err == nil && deleted == 0 {
			err = refuse(NotFound, "token %q has no key %q", token, fingerprint)
		}
		return err
	})
}

func loadTokenKeys(ctx context.Context, tx *store.Tx, project, token string) ([]TokenKey, error) {
	if _, err := loadToken(ctx, tx, project, token); err != nil {
		return nil, err
	}
	rows, err := tx.ListTokenKeys(ctx, token)
	keys := []TokenKey{}
	for _, row := range rows {
		keys = append(keys, TokenKey{Fingerprint: row.Fingerprint, CreatedAt: fromMillis(row.CreatedAt)})
	}
	return keys, err
}

// parsePublicKey gives the DER-encoded SubjectPublicKeyInfo of a key in PEM. A refusal repeats nothing of the text,
// which may be a private key by mistake.
func parsePublicKey(text string) ([]byte, error) {
	invalid := func(what string) error {
		return refuse(InvalidRequest, "the publicKey %s", what).withField("publicKey", "%s", what)
	}
	if strings.Contains(text, "PRIVATE KEY") {
		return nil, invalid("is a private key, which only its owner may have: if others can have read it on its way, " +
			"make another pair; send the public one, which `openssl rsa -in KEY -pubout` writes")
	}
	block, rest := pem.Decode([]byte(text))
	if block == nil || block.Type != "PUBLIC KEY" || len(bytes.TrimSpace(rest)) > 0 {
		return nil, invalid("must be one block PUBLIC KEY in PEM, which `openssl rsa -in KEY -pubout` writes")
	}
	parsed, err := x509.ParsePKIXPublicKey(block.Bytes)
	key, isRSA := parsed.(*rsa.PublicKey)
	if err != nil || !isRSA || key.N.BitLen() < minKeyBits || key.N.BitLen() > maxKeyBits {
		return nil, invalid(fmt.Sprintf("must be an RSA key of %d to %d bits", minKeyBits, maxKeyBits))
	}
	return block.Bytes, nil
}

// RemembersKey tells whether AuthenticateKey knows the fingerprint without reading the store.
func (c *Cloud) RemembersKey(fingerprint string) bool {
	_, _, ok := c.keyAdmissions.get(fingerprint)
	return ok
}

// AuthenticateKey finds the key of a token, in a project by name or ID. The caller is the principal only if the key
// verifies its signature.
func (c *Cloud) AuthenticateKey(
	ctx context.Context,
	project, token, fingerprint string,
) (Principal, *rsa.PublicKey, error) {
	a, changes, ok := c.keyAdmissions.get(fingerprint)
	if !ok {
		var err error
		a, err = readOne(ctx, c, func(tx *store.Tx) (admission, error) { return loadKeyAdmission(ctx, tx, fingerprint) })
		switch {
		case errors.Is(err, sql.ErrNoRows):
			return Principal{}, nil, refuseUnknownKey(project, token, fingerprint)
		case err != nil:
			return Principal{}, nil, err
		}
		c.keyAdmissions.put(fingerprint, a, changes)
	}
	if in := a.who.Project; a.who.Token != token || project != in.Name && project != in.ID {
		return Principal{}, nil, refuseUnknownKey(project, token, fingerprint)
	}
	who, err := a.principalAt(c.now())
	return who, a.key, err
}

func refuseUnknownKey(project, token, fingerprint string) error {
	return refuse(
		Unauthenticated, "no token %q in a project %q has the key %q: an admin of this cloud can list the token's keys, "+
			"and add one, by `fakecloud tokens keys`", token, project, fingerprint,
	)
}

// loadKeyAdmission gives what a key gives access to. The error of one that is not known is sql.ErrNoRows.
func loadKeyAdmission(ctx context.Context, tx *store.Tx, fingerprint string) (admission, error) {
	row, err := tx.TokenKey(ctx, fingerprint)
	if err != nil {
		return admission{}, err
	}
	parsed, err := x509.ParsePKIXPublicKey(row.TokenKey.PublicKey)
	if err != nil {
		return admission{}, fmt.Errorf("the stored key %s: %w", fingerprint, err)
	}
	a, err := admissionOf(row.Token, row.Project)
	a.key = parsed.(*rsa.PublicKey)
	return a, err
}
