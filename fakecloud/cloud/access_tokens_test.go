package cloud

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
)

func TestAccessTokens(t *testing.T) {
	c, p := newCloud(t, func(cfg *Config) { cfg.AccessTokenLifetime = time.Minute })
	ctx := t.Context()
	secret := must.Second(c.CreateToken(ctx, p.ID, api.TokenCreate{Name: "ccm", Role: Editor}))(t)
	requireRefused(t, Unauthenticated)(c.GrantAccess(ctx, "unknown-unknown-unknown"))
	granted := must.Do(c.GrantAccess(ctx, secret))(t)
	assert.Equal(t, time.Minute, granted.Lifetime)
	who := must.Do(c.Authenticate(ctx, granted.Secret))(t)
	assert.Equal(t, "ccm", who.Token)
	assert.Equal(t, Editor, who.Role)
	requireRefused(t, Unauthenticated)(c.GrantAccess(ctx, granted.Secret))

	advance(t, c, time.Minute)
	_, err := c.Authenticate(ctx, granted.Secret)
	requireCode(t, Unauthenticated, err)
	require.ErrorContains(t, err, "expired")

	first := must.Do(c.GrantAccess(ctx, secret))(t)
	requireOK(t)(c.Authenticate(ctx, first.Secret))
	for range maxAccessTokens {
		advance(t, c, time.Millisecond)
		granted = must.Do(c.GrantAccess(ctx, secret))(t)
	}
	requireRefused(t, Unauthenticated)(c.Authenticate(ctx, first.Secret))
	requireOK(t)(c.Authenticate(ctx, granted.Secret))
	requireOK(t)(c.RotateToken(ctx, p.ID, "ccm", 10*time.Second))
	must.Do(c.Authenticate(ctx, granted.Secret))(t, "the secret that it was granted to is valid for now")
	assert.Equal(t, 10*time.Second, must.Do(c.GrantAccess(ctx, secret))(t).Lifetime)
	advance(t, c, 10*time.Second)
	requireRefused(t, Unauthenticated)(c.Authenticate(ctx, granted.Secret))
	requireRefused(t, Unauthenticated)(c.GrantAccess(ctx, secret))
}
