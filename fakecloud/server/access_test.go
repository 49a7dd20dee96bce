package server_test

import (
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
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
)

// withToken gives a client with a new token of the project.
func (r *rig) withToken(t *testing.T, project, name string, role api.Role) *client.Client {
	t.Helper()
	made := must(r.CreateToken(t.Context(), project, api.TokenCreate{Name: name, Role: role}))(t)
	return newClient(t, r.url, made.Secret)
}

// Every operation that the spec has is asked for with every role: whoever may
// not is told so before anything else of the call is looked at, and whoever may
// is told anything but that.
func TestEveryOperationNeedsItsRole(t *testing.T) {
	r := newRig(t)
	secrets := map[cloud.Role]string{}
	for _, role := range cloud.Roles {
		made, err := r.CreateToken(t.Context(), r.project.ID, api.TokenCreate{Name: string(role), Role: api.Role(role)})
		require.NoError(t, err)
		secrets[role] = made.Secret
	}
	spec := must(openapi3.NewLoader().LoadFromData(api.Spec))(t)
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
			for _, role := range cloud.Roles {
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
	for _, role := range cloud.Roles {
		assert.Positive(t, needs[role], role)
	}
}

func TestProjects(t *testing.T) {
	r, ctx := newRig(t), t.Context()
	made := must(r.CreateProject(ctx, api.ProjectCreate{Name: "team-a", DefaultTags: &api.Tags{"team": "a"}}))(t)
	requireCode(t, api.NameTaken)(r.CreateProject(ctx, api.ProjectCreate{Name: "team-a"}))
	requireOK(t)(r.CreateProject(ctx, api.ProjectCreate{Name: "team-b"}))

	all := must(r.ListProjects(ctx, ""))(t)
	var names []string
	for _, p := range all {
		names = append(names, p.Name)
	}
	assert.Equal(t, []string{"default", "other", "team-a", "team-b"}, names)
	assert.Equal(t, []api.Project{*made}, must(r.ListProjects(ctx, "team-a"))(t))
	answer, _ := r.call(t, "GET", "/v1/projects?limit=3", "")
	var page api.ProjectList
	require.NoError(t, json.Unmarshal([]byte(answer.Body), &page))
	require.NotNil(t, page.NextPageToken)
	answer, _ = r.call(t, "GET", "/v1/projects?limit=3&pageToken="+*page.NextPageToken, "")
	var rest api.ProjectList
	require.NoError(t, json.Unmarshal([]byte(answer.Body), &rest))
	assert.Equal(t, all, append(page.Items, rest.Items...))
	assert.Nil(t, rest.NextPageToken)

	renamed := must(r.UpdateProject(client.IfMatch(ctx, 1), made.ID, api.ProjectUpdate{Name: new("team-c")}))(t)
	assert.EqualValues(t, 2, renamed.Version)
	assert.Equal(t, api.Tags{"team": "a"}, renamed.DefaultTags)
	_, err := r.UpdateProject(client.IfMatch(ctx, 1), made.ID, api.ProjectUpdate{Name: new("team-d")})
	assert.True(t, client.HasCode(err, api.PreconditionFailed), err)
	requireCode(t, api.NameTaken)(r.UpdateProject(ctx, made.ID, api.ProjectUpdate{Name: new("default")}))
	same := must(r.UpdateProject(ctx, made.ID, api.ProjectUpdate{Name: new("team-c")}))(t)
	assert.Equal(t, renamed, same, "nothing changed")
	assert.Equal(t, renamed, must(r.GetProject(ctx, made.ID))(t))
	// What a token's project is called is known at once.
	theirs := r.withToken(t, made.ID, "theirs", api.RoleEditor)
	requireOK(t)(theirs.Project(ctx))
	requireOK(t)(r.UpdateProject(ctx, made.ID, api.ProjectUpdate{DefaultTags: &api.Tags{"team": "c"}}))
	in := must(theirs.CreateInstance(ctx, api.InstanceCreate{}))(t)
	assert.Equal(t, api.Tags{"team": "c"}, in.Tags)
}

func TestProjectsAreDeletedWhenNothingLives(t *testing.T) {
	r, ctx := newRig(t), t.Context()
	p := must(r.CreateProject(ctx, api.ProjectCreate{Name: "short"}))(t)
	theirs := r.withToken(t, p.ID, "theirs", api.RoleEditor)
	in := must(theirs.CreateInstance(client.IdempotencyKey(ctx, "k"), api.InstanceCreate{}))(t)
	lb := must(theirs.CreateLoadBalancer(ctx, api.LoadBalancerCreate{
		Name: "a", Listeners: []api.Listener{{Protocol: api.ProtocolTCP, Port: 8080, TargetPort: 80}},
	}))(t)
	route, err := theirs.CreateRoute(ctx, api.RouteCreate{Name: "a", Destination: "10.0.0.0/24", InstanceID: in.ID})
	require.NoError(t, err)
	refused := func(what string) {
		t.Helper()
		err := r.DeleteProject(ctx, p.ID)
		require.True(t, client.HasCode(err, api.InUse), err)
		assert.ErrorContains(t, err, what)
	}
	refused("1 instances, 1 load balancers, 1 routes")
	requireOK(t)(theirs.TerminateInstance(ctx, in.ID))
	requireOK(t)(theirs.DeleteLoadBalancer(ctx, lb.ID))
	require.Eventually(t, func() bool {
		_, err := theirs.GetLoadBalancer(ctx, lb.ID)
		got, inErr := theirs.GetInstance(ctx, in.ID)
		return client.IsNotFound(err) && inErr == nil && got.State == api.InstanceTerminated
	}, patience, 2*time.Millisecond)
	refused("1 routes")
	require.NoError(t, theirs.DeleteRoute(ctx, route.ID))

	requireOK(t)(r.GetProject(ctx, p.ID))
	require.NoError(t, r.DeleteProject(ctx, p.ID))
	requireCode(t, api.NotFound)(r.GetProject(ctx, p.ID))
	requireCode(t, api.Unauthenticated)(theirs.Project(ctx))
	requireOK(t, "the name is free again")(r.CreateProject(ctx, api.ProjectCreate{Name: "short"}))

	err = r.DeleteProject(ctx, r.project.ID)
	require.True(t, client.HasCode(err, api.InUse), err)
	assert.ErrorContains(t, err, "your token's own")
}

func TestAnAdminSeesNoResourcesOfOtherProjects(t *testing.T) {
	r, ctx := newRig(t), t.Context()
	in := must(r.other.CreateInstance(ctx, api.InstanceCreate{}))(t)
	requireCode(t, api.NotFound)(r.GetInstance(ctx, in.ID))
	q := must(r.other.Project(ctx))(t)
	there := r.withToken(t, q.ID, "mine-there", api.RoleViewer)
	assert.Equal(t, in.ID, must(there.GetInstance(ctx, in.ID))(t, "with a token there").ID)
	requireCode(t, api.Forbidden)(there.TerminateInstance(ctx, in.ID))
}

func TestTokens(t *testing.T) {
	r, ctx := newRig(t), t.Context()
	expires := time.Now().Add(time.Hour).UTC().Truncate(time.Second)
	made := must(r.CreateToken(
		ctx, r.project.ID, api.TokenCreate{Name: "ci", Role: api.RoleViewer, ExpiresAt: &expires},
	))(t)
	assert.Equal(t, api.Token{
		Name: "ci", Project: r.project.ID, Role: api.RoleViewer, Origin: api.TokenFromAPI,
		CreatedAt: made.Token.CreatedAt, ExpiresAt: &expires,
	}, made.Token)
	ci := newClient(t, r.url, made.Secret)
	p := must(ci.Project(ctx))(t)
	assert.Equal(t, &made.Token, p.Token)

	all := must(r.ListTokens(ctx, r.project.ID))(t)
	require.Len(t, all, 3)
	assert.Equal(t, []string{"ccm", "ci", "operator"}, []string{all[0].Name, all[1].Name, all[2].Name})
	assert.Equal(t, made.Token, *must(r.GetToken(ctx, r.project.ID, "ci"))(t))
	for _, path := range []string{"/tokens", "/tokens/ci"} {
		answer, _ := r.call(t, "GET", "/v1/projects/"+r.project.ID+path, "")
		assert.Equal(t, 200, answer.StatusCode)
		assert.NotContains(t, answer.Body, made.Secret)
		assert.NotContains(t, answer.Body, "ecret")
	}

	_, err := r.CreateToken(ctx, r.project.ID, api.TokenCreate{Name: "stranger", Role: api.RoleViewer})
	assert.True(t, client.HasCode(err, api.NameTaken), "unique in the cloud: %v", err)
	past := time.Now().Add(-time.Second)
	_, err = r.CreateToken(ctx, r.project.ID, api.TokenCreate{Name: "late", Role: api.RoleViewer, ExpiresAt: &past})
	assert.True(t, client.HasCode(err, api.InvalidRequest), err)
	for _, body := range []string{
		`{"name":"x"}`, `{"role":"viewer"}`, `{"name":"X","role":"viewer"}`, `{"name":"x","role":"owner"}`,
		`{"name":"x","role":"viewer","secret":"0123456789abcdef"}`, `{"name":"x","role":"viewer","expiresAt":"soon"}`,
	} {
		answer, _ := r.call(t, "POST", "/v1/projects/"+r.project.ID+"/tokens", body)
		assert.Equal(t, 400, answer.StatusCode, body)
	}

	q := must(r.other.Project(ctx))(t)
	_, err = r.GetToken(ctx, q.ID, "ci")
	assert.True(t, client.IsNotFound(err), "of another project: %v", err)
	requireCode(t, api.NotFound)(r.RotateToken(ctx, q.ID, "ci", api.TokenRotate{}))
	assert.True(t, client.IsNotFound(r.DeleteToken(ctx, q.ID, "ci")))

	require.NoError(t, r.DeleteToken(ctx, r.project.ID, "ci"))
	_, err = ci.Project(ctx)
	assert.True(t, client.HasCode(err, api.Unauthenticated), "at once: %v", err)
	assert.True(t, client.IsNotFound(r.DeleteToken(ctx, r.project.ID, "ci")))
}

func TestRotatedTokens(t *testing.T) {
	r, ctx := newRig(t), t.Context()
	made := must(r.CreateToken(ctx, r.project.ID, api.TokenCreate{Name: "ci", Role: api.RoleViewer}))(t)
	valid := func(secret string) bool {
		_, err := newClient(t, r.url, secret).Project(ctx)
		if err != nil {
			require.True(t, client.HasCode(err, api.Unauthenticated), err)
		}
		return err == nil
	}
	require.True(t, valid(made.Secret))
	second := must(r.RotateToken(ctx, r.project.ID, "ci", api.TokenRotate{GraceSeconds: 600}))(t)
	assert.NotNil(t, second.Token.RotatedAt)
	assert.NotEqual(t, made.Secret, second.Secret)
	assert.True(t, valid(made.Secret) && valid(second.Secret), "both, for a while")
	third := must(r.RotateToken(ctx, r.project.ID, "ci", api.TokenRotate{}))(t)
	assert.True(t, valid(third.Secret))
	assert.False(t, valid(second.Secret), "no grace")
	assert.False(t, valid(made.Secret), "only one secret before is kept")
	_, p := r.call(t, "GET", "/v1/project", "", "Authorization", "Bearer "+second.Secret)
	assert.Contains(t, p.Detail, `token "ci" was rotated`)
	answer, _ := r.call(t, "POST", "/v1/projects/"+r.project.ID+"/tokens/ci/rotate", `{"graceSeconds":604801}`)
	assert.Equal(t, 400, answer.StatusCode)
}

func publicPEM(t testing.TB, key *rsa.PublicKey) string {
	t.Helper()
	der := must(x509.MarshalPKIXPublicKey(key))(t)
	return string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
}

func TestTokenKeys(t *testing.T) {
	r, ctx := newRig(t), t.Context()
	p := r.project.ID
	var added []api.TokenKey
	for i := range uint(3) {
		key := publicPEM(t, &rsa.PublicKey{N: new(big.Int).Lsh(big.NewInt(1), 2048+i), E: 65537})
		added = append(added, *must(r.AddTokenKey(ctx, p, "ccm", api.TokenKeyCreate{PublicKey: key}))(t))
		requireCode(t, api.NameTaken)(r.AddTokenKey(ctx, p, "operator", api.TokenKeyCreate{PublicKey: key}))
	}
	key := publicPEM(t, &rsa.PublicKey{N: new(big.Int).Lsh(big.NewInt(1), 3000), E: 65537})
	requireCode(t, api.QuotaExceeded)(r.AddTokenKey(ctx, p, "ccm", api.TokenKeyCreate{PublicKey: key}))
	assert.ElementsMatch(t, added, must(r.ListTokenKeys(ctx, p, "ccm"))(t))
	require.NoError(t, r.DeleteTokenKey(ctx, p, "ccm", added[0].Fingerprint))
	err := r.DeleteTokenKey(ctx, p, "ccm", added[0].Fingerprint)
	assert.True(t, client.IsNotFound(err), err)
	assert.ElementsMatch(t, added[1:], must(r.ListTokenKeys(ctx, p, "ccm"))(t))

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
	r, ctx := newRig(t), t.Context()
	q := must(r.other.Project(ctx))(t)
	first, second := r.withToken(t, r.project.ID, "first", api.RoleAdmin), r.withToken(t, q.ID, "second", api.RoleAdmin)
	for project, name := range map[string]string{r.project.ID: "operator", q.ID: "stranger"} {
		err := r.DeleteToken(ctx, project, name)
		require.True(t, client.HasCode(err, api.WrongState), err)
		assert.ErrorContains(t, err, "fakecloud serve --token")
		requireCode(t, api.WrongState)(r.RotateToken(ctx, project, name, api.TokenRotate{}))
	}
	for _, id := range []string{r.project.ID, q.ID} { // As a start without them does.
		require.NoError(t, r.cloud.SetTokens(ctx, cloud.Project{ID: id}, nil))
	}
	require.NoError(t, first.DeleteToken(ctx, r.project.ID, "first"), "its own, but not the last")
	requireOK(t)(second.ListProjects(ctx, ""))
	err := second.DeleteToken(ctx, q.ID, "second")
	require.True(t, client.HasCode(err, api.InUse), err)
	assert.ErrorContains(t, err, "last admin")
}

// An expired token is told so, and when it was, by the cloud's clock.
func TestExpiredTokens(t *testing.T) {
	clock := clockwork.NewFakeClockAt(start)
	r := newRigWith(t, func(cfg *fakecloud.Config) { cfg.Cloud.Clock = clock })
	ctx, p := t.Context(), r.project
	until := clock.Now().Add(time.Minute)
	made := must(r.CreateToken(ctx, p.ID, api.TokenCreate{Name: "ci", Role: api.RoleAdmin, ExpiresAt: &until}))(t)
	answer, _ := r.call(t, "GET", "/v1/quotas", "", "Authorization", "Bearer "+made.Secret)
	assert.Equal(t, 200, answer.StatusCode)
	clock.Advance(time.Minute)
	answer, problem := r.call(t, "GET", "/v1/quotas", "", "Authorization", "Bearer "+made.Secret)
	assert.Equal(t, 401, answer.StatusCode)
	assert.Equal(t, api.Unauthenticated, problem.Code)
	assert.Contains(t, problem.Detail, `token "ci" expired at 2026-01-02T03:05:05Z`)
	assert.Contains(t, answer.Header.Get("WWW-Authenticate"), "Bearer")
	assert.Len(t, must(r.ListTokens(ctx, p.ID))(t), 3, "it is still shown")
	second := r.withToken(t, p.ID, "second", api.RoleAdmin)
	other := must(r.other.Project(ctx))(t)
	for _, id := range []string{p.ID, other.ID} { // As a start without them does.
		require.NoError(t, r.cloud.SetTokens(ctx, cloud.Project{ID: id}, nil))
	}
	err := second.DeleteToken(ctx, p.ID, "second")
	assert.True(t, client.HasCode(err, api.InUse), "an expired admin does not count: %v", err)
}
