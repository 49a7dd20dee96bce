package cloud

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestAccessTokens(t *testing.T) {
	c, p := newCloud(t, func(cfg *Config) { cfg.AccessTokenLifetime = time.Minute })
	ctx := t.Context()
	_, secret, err := c.CreateToken(ctx, p.ID, TokenSpec{Name: "ccm", Role: Editor})
	require.NoError(t, err)
	_, err = c.GrantAccess(ctx, "unknown-unknown-unknown")
	requireCode(t, Unauthenticated, err)
	granted := must(c.GrantAccess(ctx, secret))(t)
	assert.Equal(t, time.Minute, granted.Lifetime)
	who := must(c.Authenticate(ctx, granted.Secret))(t)
	assert.Equal(t, "ccm", who.Token)
	assert.Equal(t, Editor, who.Role)
	_, err = c.GrantAccess(ctx, granted.Secret)
	requireCode(t, Unauthenticated, err)

	advance(t, c, time.Minute)
	_, err = c.Authenticate(ctx, granted.Secret)
	requireCode(t, Unauthenticated, err)
	require.ErrorContains(t, err, "expired")

	first := must(c.GrantAccess(ctx, secret))(t)
	requireOK(t)(c.Authenticate(ctx, first.Secret))
	for range maxAccessTokens {
		advance(t, c, time.Millisecond)
		granted = must(c.GrantAccess(ctx, secret))(t)
	}
	_, err = c.Authenticate(ctx, first.Secret)
	requireCode(t, Unauthenticated, err)
	requireOK(t)(c.Authenticate(ctx, granted.Secret))
	requireOK(t)(c.RotateToken(ctx, p.ID, "ccm", 10*time.Second))
	must(c.Authenticate(ctx, granted.Secret))(t, "the secret that it was granted to is valid for now")
	short := must(c.GrantAccess(ctx, secret))(t)
	assert.Equal(t, 10*time.Second, short.Lifetime)
	advance(t, c, 10*time.Second)
	_, err = c.Authenticate(ctx, granted.Secret)
	requireCode(t, Unauthenticated, err)
	_, err = c.GrantAccess(ctx, secret)
	requireCode(t, Unauthenticated, err)
}
