package cloud

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/jonboulle/clockwork"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
	"github.com/ccmlab/ccmlab/fakecloud/store"
)

func TestRolesIncludeEachOther(t *testing.T) {
	for i, has := range api.Roles {
		for j, need := range api.Roles {
			assert.Equal(t, i >= j, has.Allows(need), "%s for %s", has, need)
		}
		assert.False(t, Role("").Allows(has))
	}
}

func TestTokensExpireByTheCloudsClock(t *testing.T) {
	c, p := newCloud(t, nil)
	ctx := t.Context()
	clock := c.clock.(*clockwork.FakeClock)
	until := c.now().Add(time.Hour)
	secret := must.Second(c.CreateToken(ctx, p.ID, api.TokenCreate{Name: "ci", Role: Viewer, ExpiresAt: &until}))(t)
	other := must.Second(c.CreateToken(ctx, p.ID, api.TokenCreate{Name: "other", Role: Admin}))(t)
	for range 2 { // Looked up, then remembered.
		who := must.Do(c.Authenticate(ctx, secret))(t)
		assert.Equal(t, Viewer, who.Role)
		assert.Equal(t, &until, who.Details.ExpiresAt)
	}
	clock.Advance(time.Hour - time.Millisecond)
	requireOK(t)(c.Authenticate(ctx, secret))
	clock.Advance(time.Millisecond)
	for range 2 {
		_, err := c.Authenticate(ctx, secret)
		requireCode(t, Unauthenticated, err)
		assert.ErrorContains(t, err, `token "ci" expired at 2026-01-02T04:04:05Z`)
		c.admissions.clear()
	}
	requireRefused(t, WrongState)(c.RotateToken(ctx, p.ID, "ci", 0))
	requireOK(t)(c.Authenticate(ctx, other))
	require.NoError(t, c.DeleteToken(ctx, p.ID, "ci"))
}

func TestTheSecretBeforeARotationLastsForTheGrace(t *testing.T) {
	c, p := newCloud(t, nil)
	ctx := t.Context()
	clock := c.clock.(*clockwork.FakeClock)
	until := c.now().Add(time.Hour)
	first := must.Second(c.CreateToken(ctx, p.ID, api.TokenCreate{Name: "ci", Role: Viewer, ExpiresAt: &until}))(t)
	second := must.Second(c.RotateToken(ctx, p.ID, "ci", time.Minute))(t)
	clock.Advance(time.Minute - time.Millisecond)
	requireOK(t)(c.Authenticate(ctx, first))
	clock.Advance(time.Millisecond)
	_, err := c.Authenticate(ctx, first)
	requireCode(t, Unauthenticated, err)
	assert.ErrorContains(t, err, `token "ci" was rotated`)
	third := must.Second(c.RotateToken(ctx, p.ID, "ci", maxGrace))(t)
	clock.Advance(time.Hour)
	for _, secret := range []string{second, third} { // No grace outlives the token.
		_, err := c.Authenticate(ctx, secret)
		requireCode(t, Unauthenticated, err)
		assert.ErrorContains(t, err, "expired at")
	}
	for _, grace := range []time.Duration{-1, maxGrace + 1} {
		requireRefused(t, InvalidRequest)(c.RotateToken(ctx, p.ID, "ci", grace))
	}
}

func TestSecretsAreNotStored(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cloud.db")
	s := must.Do(store.Open(t.Context(), path))(t)
	c, p := newCloud(t, func(cfg *Config) { cfg.Store = s })
	var secrets []string
	secret := must.Second(c.CreateToken(t.Context(), p.ID, api.TokenCreate{Name: "ci", Role: Admin}))(t)
	secrets = append(secrets, secret)
	secret = must.Second(c.RotateToken(t.Context(), p.ID, "ci", time.Hour))(t)
	secrets = append(secrets, secret, "given on the command line")
	require.NoError(t, c.SetTokens(t.Context(), p, []GivenToken{{"given", secrets[2], Admin}}))
	kept := 0
	files := must.Do(filepath.Glob(path + "*"))(t)
	for _, file := range files {
		content := must.Do(os.ReadFile(file))(t)
		kept += bytes.Count(content, []byte("given"))
		for _, secret := range secrets {
			assert.NotContains(t, string(content), secret, file)
		}
	}
	assert.Positive(t, kept, "the name is there")
	require.NoError(t, s.Close())
}

// While tokens come, rotate and go, and projects change, everybody asks to be
// let in: once a change has been answered, nobody gets in by what was before it.
func TestNobodyGetsInByWhatWasBefore(t *testing.T) {
	c, p := newCloud(t, nil)
	ctx := t.Context()
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			name := fmt.Sprintf("t%d", w)
			var before []string
			for n := range 8 {
				_, first, err := c.CreateToken(ctx, p.ID, api.TokenCreate{Name: name, Role: Editor})
				if !assert.NoError(t, err) {
					return
				}
				ended := make(chan struct{})
				var asking sync.WaitGroup
				for range 3 { // They have it looked up again and again.
					asking.Go(func() {
						for {
							select {
							case <-ended:
								return
							default:
								_, _ = c.Authenticate(ctx, first) // Either is right meanwhile.
							}
						}
					})
				}
				_, second, err := c.RotateToken(ctx, p.ID, name, 0)
				assert.NoError(t, err)
				_, err = c.Authenticate(ctx, first)
				assert.Error(t, err, "rotated, round %d", n)
				tags := map[string]string{name: fmt.Sprint(n)}
				_, err = c.EnsureProject(ctx, name, tags)
				assert.NoError(t, err)
				who, err := c.Authenticate(ctx, second)
				assert.NoError(t, err)
				assert.Equal(t, name, who.Token)
				assert.NoError(t, c.DeleteToken(ctx, p.ID, name))
				before = append(before, first, second)
				for _, secret := range before {
					_, err = c.Authenticate(ctx, secret)
					assert.Error(t, err, "deleted, round %d", n)
				}
				close(ended)
				asking.Wait()
			}
		})
	}
	wg.Wait()
}

func TestTokensOfTheAPISurviveTheCommandLines(t *testing.T) {
	c, p := newCloud(t, nil)
	ctx := t.Context()
	secret := must.Second(c.CreateToken(ctx, p.ID, api.TokenCreate{Name: "ci", Role: Viewer}))(t)
	given := []GivenToken{{"a", "sixteen characters", Admin}, {"b", "sixteen more characters", Editor}}
	require.NoError(t, c.SetTokens(ctx, p, given))
	require.NoError(t, c.SetTokens(ctx, p, given[:1]))
	all, more, err := c.ListTokens(ctx, p.ID, Filter{Limit: 10})
	require.NoError(t, err)
	assert.False(t, more)
	require.Len(t, all, 2)
	assert.True(t, all[0].Name == "a" && all[0].Origin == api.TokenFromFlag && all[0].Role == Admin)
	assert.True(t, all[1].Name == "ci" && all[1].Origin == api.TokenFromAPI && all[1].Role == Viewer)
	assert.Equal(t, "ci", must.Do(c.Authenticate(ctx, secret))(t).Token)
	requireCode(t, InvalidRequest, c.SetTokens(ctx, p, []GivenToken{{"a", "sixteen characters", "owner"}}))
}
