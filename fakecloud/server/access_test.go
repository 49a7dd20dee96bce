package server_test

import (
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net/http"
	"regexp"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/jonboulle/clockwork"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
)

// withToken gives a client with a new token of the project.
func (r *rig) withToken(t *testing.T, project, name string, role api.Role) *client.Client {
	t.Helper()
	made := must.Do(r.CreateToken(t.Context(), project, api.TokenCreate{Name: name, Role: role}))(t)
	return newClient(t, r.url, made.Secret)
}

// Every operation that the spec has is asked for with every role: whoever may
// not is told so before anything else of the call is looked at, and whoever may
// is told anything but that.
func TestEveryOperationNeedsItsRole(t *testing.T) {
	r := newRig(t)
	secrets := map[cloud.Role]string{}
	for _, role := range api.Roles {
		made, err := r.CreateToken(t.Context(), r.project.ID, api.TokenCreate{Name: string(role), Role: role})
		require.NoError(t, err)
		secrets[role] = made.Secret
	}
	spec := must.Do(openapi3.NewLoader().LoadFromData(api.Spec))(t)
	needs := map[cloud.Role]int{}
	for path, item := range spec.Paths.Map() {
		url := regexp.MustCompile(`\{[^}]*\}`).ReplaceAllString(path, "none")
		for method, op := range item.Operations() {
			need := cloud.Editor
			switch {
			case op.Security != nil:
				continue
			case op.Extensions["x-role"] != nil:
				require.Equal(t, "admin", op.Extensions["x-role"], op.OperationID)
				need = cloud.Admin
			case method == http.MethodGet:
				need = cloud.Viewer
			}
			needs[need]++
			if op.OperationID == "streamEvents" {
				url += "?follow=false"
			}
			answer, p := r.call(t, method, url, "{", "Authorization", "Bearer nonsense")
			assert.Equal(t, 401, answer.StatusCode, op.OperationID)
			assert.Equal(t, api.Unauthenticated, p.Code)
			for _, role := range api.Roles {
				answer, p := r.call(t, method, url, "{", "Authorization", "Bearer "+secrets[role])
				if role.Allows(need) {
					assert.NotEqual(t, 403, answer.StatusCode, "%s as %s", op.OperationID, role)
					assert.NotEqual(t, 401, answer.StatusCode, "%s as %s", op.OperationID, role)
					continue
				}
				assert.Equal(t, 403, answer.StatusCode, "%s as %s", op.OperationID, role)
				assert.Equal(t, api.Forbidden, p.Code)
				assert.Contains(t, p.Detail, "needs the role "+string(need))
				assert.Contains(t, p.Detail, `token "`+string(role)+`"`)
			}
		}
	}
	for _, role := range api.Roles {
		assert.Positive(t, needs[role], role)
	}
}

func TestProjects(t *testing.T) {
	r, ctx := newRig(t), t.Context()
	made := must.Do(r.CreateProject(ctx, api.ProjectCreate{Name: "team-a", DefaultTags: &api.Tags{"team": "a"}}))(t)
	requireCode(t, api.NameTaken)(r.CreateProject(ctx, api.ProjectCreate{Name: "team-a"}))
	var names []string
	for _, p := range must.Do(r.ListProjects(ctx, ""))(t) {
		names = append(names, p.Name)
	}
	assert.Equal(t, []string{"default", "other", "team-a"}, names)
	assert.Equal(t, []api.Project{*made}, must.Do(r.ListProjects(ctx, "team-a"))(t))

	renamed := must.Do(r.UpdateProject(client.IfMatch(ctx, 1), made.ID, api.ProjectUpdate{Name: new("team-c")}))(t)
	assert.EqualValues(t, 2, renamed.Version)
	assert.Equal(t, api.Tags{"team": "a"}, renamed.DefaultTags)
	requireCode(t, api.NameTaken)(r.UpdateProject(ctx, made.ID, api.ProjectUpdate{Name: new("default")}))
	same := must.Do(r.UpdateProject(ctx, made.ID, api.ProjectUpdate{Name: new("team-c")}))(t)
	assert.Equal(t, renamed, same, "nothing changed")
	assert.Equal(t, renamed, must.Do(r.GetProject(ctx, made.ID))(t))
	// What a token's project is called is known at once.
	theirs := r.withToken(t, made.ID, "theirs", api.RoleEditor)
	requireOK(t)(theirs.Project(ctx))
	requireOK(t)(r.UpdateProject(ctx, made.ID, api.ProjectUpdate{DefaultTags: &api.Tags{"team": "c"}}))
	in := must.Do(theirs.CreateInstance(ctx, api.InstanceCreate{}))(t)
	assert.Equal(t, api.Tags{"team": "c"}, in.Tags)
}

func TestProjectsAreDeletedWhenNothingLives(t *testing.T) {
	r, ctx := newRig(t), t.Context()
	p := must.Do(r.CreateProject(ctx, api.ProjectCreate{Name: "short"}))(t)
	theirs := r.withToken(t, p.ID, "theirs", api.RoleEditor)
	in := must.Do(theirs.CreateInstance(client.IdempotencyKey(ctx, "k"), api.InstanceCreate{}))(t)
	lb := must.Do(theirs.CreateLoadBalancer(ctx, api.LoadBalancerCreate{Name: "a", Listeners: oneListener}))(t)
	route := must.Do(theirs.CreateRoute(
		ctx, api.RouteCreate{Name: "a", Destination: "10.0.0.0/24", InstanceID: in.ID},
	))(t)
	refused := func(detail string) { requireCode(t, api.InUse, detail)(nil, r.DeleteProject(ctx, p.ID)) }
	refused("1 instances, 1 load balancers, 1 routes")
	var terminated, deleted string
	requireOK(t)(theirs.TerminateInstance(client.OperationInto(ctx, &terminated), in.ID))
	requireOK(t)(theirs.DeleteLoadBalancer(client.OperationInto(ctx, &deleted), lb.ID))
	requireOK(t)(theirs.AwaitOperation(ctx, terminated))
	requireOK(t)(theirs.AwaitOperation(ctx, deleted))
	refused("1 routes")
	require.NoError(t, theirs.DeleteRoute(ctx, route.ID))

	require.NoError(t, r.DeleteProject(ctx, p.ID))
	requireCode(t, api.NotFound)(r.GetProject(ctx, p.ID))
	requireCode(t, api.Unauthenticated)(theirs.Project(ctx))
	requireOK(t, "the name is free again")(r.CreateProject(ctx, api.ProjectCreate{Name: "short"}))
	requireCode(t, api.InUse, "your token's own")(nil, r.DeleteProject(ctx, r.project.ID))
}

func TestAnAdminSeesNoResourcesOfOtherProjects(t *testing.T) {
	r, ctx := newRig(t), t.Context()
	in := must.Do(r.other.CreateInstance(ctx, api.InstanceCreate{}))(t)
	requireCode(t, api.NotFound)(r.GetInstance(ctx, in.ID))
	q := must.Do(r.other.Project(ctx))(t)
	there := r.withToken(t, q.ID, "mine-there", api.RoleViewer)
	assert.Equal(t, in.ID, must.Do(there.GetInstance(ctx, in.ID))(t, "with a token there").ID)
	requireCode(t, api.Forbidden)(there.TerminateInstance(ctx, in.ID))
}

func TestTokens(t *testing.T) {
	r, ctx := newRig(t), t.Context()
	expires := time.Now().Add(time.Hour).UTC().Truncate(time.Second)
	made := must.Do(r.CreateToken(
		ctx, r.project.ID, api.TokenCreate{Name: "ci", Role: api.RoleViewer, ExpiresAt: &expires},
	))(t)
	assert.Equal(t, api.Token{
		Name: "ci", Project: r.project.ID, Role: api.RoleViewer, Origin: api.TokenFromAPI,
		CreatedAt: made.Token.CreatedAt, ExpiresAt: &expires,
	}, made.Token)
	ci := newClient(t, r.url, made.Secret)
	assert.Equal(t, &made.Token, must.Do(ci.Project(ctx))(t).Token)
	assert.Equal(t, &made.Token, must.Do(r.GetToken(ctx, r.project.ID, "ci"))(t))
	all := must.Do(r.ListTokens(ctx, r.project.ID))(t)
	require.Len(t, all, 3)
	assert.Equal(t, []string{"ccm", "ci", "operator"}, []string{all[0].Name, all[1].Name, all[2].Name})
	for _, path := range []string{"/tokens", "/tokens/ci"} {
		answer, _ := r.call(t, "GET", "/v1/projects/"+r.project.ID+path, "")
		assert.Equal(t, 200, answer.StatusCode)
		assert.NotContains(t, answer.Body, made.Secret)
		assert.NotContains(t, answer.Body, "ecret")
	}

	create := func(name string, expires *time.Time) (*api.TokenWithSecret, error) {
		return r.CreateToken(ctx, r.project.ID, api.TokenCreate{Name: name, Role: api.RoleViewer, ExpiresAt: expires})
	}
	requireCode(t, api.NameTaken)(create("stranger", nil)) // It is unique in the cloud.
	requireCode(t, api.InvalidRequest)(create("late", new(time.Now().Add(-time.Second))))
	for _, body := range []string{
		`{"name":"x"}`, `{"role":"viewer"}`, `{"name":"X","role":"viewer"}`, `{"name":"x","role":"owner"}`,
		`{"name":"x","role":"viewer","secret":"0123456789abcdef"}`, `{"name":"x","role":"viewer","expiresAt":"soon"}`,
	} {
		answer, _ := r.call(t, "POST", "/v1/projects/"+r.project.ID+"/tokens", body)
		assert.Equal(t, 400, answer.StatusCode, body)
	}

	another := must.Do(r.other.Project(ctx))(t).ID
	requireCode(t, api.NotFound)(r.GetToken(ctx, another, "ci"))
	requireCode(t, api.NotFound)(r.RotateToken(ctx, another, "ci", api.TokenRotate{}))
	assert.True(t, client.IsNotFound(r.DeleteToken(ctx, another, "ci")))

	require.NoError(t, r.DeleteToken(ctx, r.project.ID, "ci"))
	requireCode(t, api.Unauthenticated)(ci.Project(ctx))
	assert.True(t, client.IsNotFound(r.DeleteToken(ctx, r.project.ID, "ci")))
}

func TestRotatedTokens(t *testing.T) {
	r, ctx := newRig(t), t.Context()
	made := must.Do(r.CreateToken(ctx, r.project.ID, api.TokenCreate{Name: "ci", Role: api.RoleViewer}))(t)
	second := must.Do(r.RotateToken(ctx, r.project.ID, "ci", api.TokenRotate{GraceSeconds: 600}))(t)
	assert.NotNil(t, second.Token.RotatedAt)
	for _, secret := range []string{made.Secret, second.Secret} {
		requireOK(t, "both, for a while")(newClient(t, r.url, secret).Project(ctx))
	}
	third := must.Do(r.RotateToken(ctx, r.project.ID, "ci", api.TokenRotate{}))(t)
	requireOK(t)(newClient(t, r.url, third.Secret).Project(ctx))
	for _, secret := range []string{made.Secret, second.Secret} { // No grace, and one secret before is kept.
		requireCode(t, api.Unauthenticated)(newClient(t, r.url, secret).Project(ctx))
	}
	_, p := r.call(t, "GET", "/v1/project", "", "Authorization", "Bearer "+second.Secret)
	assert.Contains(t, p.Detail, `token "ci" was rotated`)
	answer, _ := r.call(t, "POST", "/v1/projects/"+r.project.ID+"/tokens/ci/rotate", `{"graceSeconds":604801}`)
	assert.Equal(t, 400, answer.StatusCode)
}

func publicPEM(t testing.TB, key *rsa.PublicKey) string {
	t.Helper()
	der := must.Do(x509.MarshalPKIXPublicKey(key))(t)
	return string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
}

func TestTokenKeys(t *testing.T) {
	r, ctx := newRig(t), t.Context()
	p := r.project.ID
	var added []api.TokenKey
	for i := range uint(4) {
		key := api.TokenKeyCreate{PublicKey: publicPEM(t, &rsa.PublicKey{N: new(big.Int).Lsh(big.NewInt(1), 2048+i), E: 65537})}
		if i == 3 {
			requireCode(t, api.QuotaExceeded)(r.AddTokenKey(ctx, p, "ccm", key))
			break
		}
		added = append(added, *must.Do(r.AddTokenKey(ctx, p, "ccm", key))(t))
		requireCode(t, api.NameTaken)(r.AddTokenKey(ctx, p, "operator", key))
	}
	assert.ElementsMatch(t, added, must.Do(r.ListTokenKeys(ctx, p, "ccm"))(t))
	require.NoError(t, r.DeleteTokenKey(ctx, p, "ccm", added[0].Fingerprint))
	assert.True(t, client.IsNotFound(r.DeleteTokenKey(ctx, p, "ccm", added[0].Fingerprint)))
	assert.ElementsMatch(t, added[1:], must.Do(r.ListTokenKeys(ctx, p, "ccm"))(t))

	private := "-----BEGIN RSA PRIVATE KEY-----\\nTUlJRXBRSUJBQUtDQVFFQQ=="
	for _, body := range []string{
		`{"publicKey":"` + private + `"}`, `{"key":"` + private + `"}`, `{"publicKey":["` + private + `"]}`,
	} {
		answer, _ := r.call(t, "POST", "/v1/projects/"+p+"/tokens/ccm/keys", body)
		assert.Equal(t, 400, answer.StatusCode)
		assert.NotContains(t, answer.Body, "TUlJ")
	}
}

func TestTheLastAdminStays(t *testing.T) {
	clock := clockwork.NewFakeClockAt(start)
	r := newRigWith(t, func(cfg *fakecloud.Config) { cfg.Cloud.Clock = clock })
	ctx, q := t.Context(), must.Do(r.other.Project(t.Context()))(t).ID
	first, second := r.withToken(t, r.project.ID, "first", api.RoleAdmin), r.withToken(t, q, "second", api.RoleAdmin)
	until := clock.Now().Add(time.Minute)
	requireOK(t)(r.CreateToken(ctx, q, api.TokenCreate{Name: "expired", Role: api.RoleAdmin, ExpiresAt: &until}))
	for project, name := range map[string]string{r.project.ID: "operator", q: "stranger"} {
		requireCode(t, api.WrongState, "fakecloud serve --token")(nil, r.DeleteToken(ctx, project, name))
		requireCode(t, api.WrongState)(r.RotateToken(ctx, project, name, api.TokenRotate{}))
	}
	for _, id := range []string{r.project.ID, q} { // As a start without them does.
		require.NoError(t, r.cloud.SetTokens(ctx, cloud.Project{ID: id}, nil))
	}
	require.NoError(t, first.DeleteToken(ctx, r.project.ID, "first"), "its own, but not the last")
	clock.Advance(time.Minute)
	assert.Len(t, must.Do(second.ListTokens(ctx, q))(t), 2, "the expired one is still shown, but does not count")
	requireCode(t, api.InUse, "last admin")(nil, second.DeleteToken(ctx, q, "second"))
}
