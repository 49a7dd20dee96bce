package cloud

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/identity"
	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
)

// publicKey makes up a public key, one for each number. Nobody has the private key.
func publicKey(t *testing.T, bits uint, number int64) string {
	t.Helper()
	n := new(big.Int).Lsh(big.NewInt(1), bits-1)
	return toPEM(t, &rsa.PublicKey{N: n.Add(n, big.NewInt(2*number+1)), E: 65537})
}

func toPEM(t *testing.T, key any) string {
	t.Helper()
	return string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: must.Do(x509.MarshalPKIXPublicKey(key))(t)}))
}

// The fingerprint is what `openssl rsa -pubin -pubout -outform DER | openssl md5 -c` prints.
func TestFingerprints(t *testing.T) {
	der := must.Do(parsePublicKey(`-----BEGIN PUBLIC KEY-----
MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEA3tgaz9dRyrtDsczsbTM9
Xis1wCQh+4haZzGXVF+VKn/7+BklEHo1Ei8/EBx03Q4DZ+gs7jOffvNF7GDyvXt6
SLn3dK48a9VTgOOjVV3J93iaCNYDIRHcYqN32eCP8oZvKUy0bYFEgUXQLnJJFV+I
ySGqg3v8sraZCjd8xX3wDmzG6OJ7YQj81OGIkdTJYbj2xB05CHh1BzRdQybQMtfF
DHP3zlqWcSI6T223mHETMa6DAAbivQWkrBgrNqLX3LWMERZJHL+GYPjrARUvH//D
NX/ciDON8Rts9Jwr9yKDXOXA8NP/r3W1k3mRqm+KKM12W48zXSHYeqdu1/C9A8TC
xQIDAQAB
-----END PUBLIC KEY-----
`))(t)
	assert.Equal(t, "41:01:92:0a:ea:a0:12:7d:a1:e0:62:d0:c4:e4:e3:82", identity.Fingerprint(der))
}

func TestOnlyPublicRSAKeysAreTaken(t *testing.T) {
	c, p := newCloud(t, nil)
	requireOK(t)(c.CreateToken(t.Context(), p.ID, api.TokenCreate{Name: "ccm", Role: Editor}))
	curve := must.Do(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	good := publicKey(t, 2048, 1)
	for name, test := range map[string]struct{ text, want string }{
		"nothing":      {"", "one block PUBLIC KEY"},
		"a label":      {good + "OCI_API_KEY", "one block PUBLIC KEY"},
		"two":          {good + good, "one block PUBLIC KEY"},
		"PKCS 1":       {"-----BEGIN RSA PUBLIC KEY-----\nAAAA\n-----END RSA PUBLIC KEY-----\n", "one block PUBLIC KEY"},
		"no key":       {"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n", "RSA key of 2048 to 4096 bits"},
		"another kind": {toPEM(t, &curve.PublicKey), "RSA key of 2048 to 4096 bits"},
		"short":        {publicKey(t, 2047, 1), "RSA key of 2048 to 4096 bits"},
		"long":         {publicKey(t, 4097, 1), "RSA key of 2048 to 4096 bits"},
		"private": {
			"-----BEGIN RSA PRIVATE KEY-----\nTUlJRXBRSUJBQUtDQVFFQQ==\n-----END RSA PRIVATE KEY-----\n", "is a private key",
		},
		"private, too": {good + "-----BEGIN PRIVATE KEY-----\nTUlJRXBRSUJBQUtDQVFFQQ==", "is a private key"},
	} {
		_, err := c.AddTokenKey(t.Context(), p.ID, "ccm", test.text)
		requireCode(t, InvalidRequest, err)
		assert.ErrorContains(t, err, test.want, name)
		assert.NotContains(t, err.Error(), "TUlJ", name)
	}
	for number, bits := range []uint{2048, 4096} {
		requireOK(t)(c.AddTokenKey(t.Context(), p.ID, "ccm", publicKey(t, bits, int64(number))))
	}
}

func TestTokenKeys(t *testing.T) {
	c, p := newCloud(t, nil)
	ctx := t.Context()
	until := c.now().Add(time.Hour)
	secret := must.Second(c.CreateToken(ctx, p.ID, api.TokenCreate{Name: "ccm", Role: Editor, ExpiresAt: &until}))(t)
	requireOK(t)(c.CreateToken(ctx, p.ID, api.TokenCreate{Name: "other", Role: Viewer}))
	var keys []TokenKey
	for number := range int64(maxTokenKeys) {
		keys = append(keys, must.Do(c.AddTokenKey(ctx, p.ID, "ccm", publicKey(t, 2048, number)))(t))
		advance(t, c, time.Second)
	}
	listed := must.Do(c.ListTokenKeys(ctx, p.ID, "ccm"))(t)
	assert.Equal(t, keys, listed)
	requireRefused(t, QuotaExceeded)(c.AddTokenKey(ctx, p.ID, "ccm", publicKey(t, 2048, 9)))
	requireRefused(t, NameTaken)(c.AddTokenKey(ctx, p.ID, "other", publicKey(t, 2048, 0)))
	requireRefused(t, NotFound)(c.AddTokenKey(ctx, p.ID, "none", publicKey(t, 2048, 9)))
	requireCode(t, NotFound, c.DeleteTokenKey(ctx, p.ID, "other", keys[0].Fingerprint))

	name := keys[0].Fingerprint
	for _, project := range []string{p.ID, p.Name, p.Name} { // Looked up, then remembered.
		who, key, err := c.AuthenticateKey(ctx, project, "ccm", name)
		require.NoError(t, err)
		assert.Equal(t, publicKey(t, 2048, 0), toPEM(t, key))
		assert.True(t, who.Token == "ccm" && who.Role == Editor && who.Project.ID == p.ID)
	}
	assert.True(t, c.RemembersKey(name) && !c.RemembersKey(keys[1].Fingerprint))
	refused := func(project, token, fingerprint string) {
		t.Helper()
		who, _, err := c.AuthenticateKey(ctx, project, token, fingerprint)
		requireCode(t, Unauthenticated, err)
		assert.Empty(t, who)
	}
	refused(p.Name, "other", name)
	refused("other", "ccm", name)
	refused(p.Name, "ccm", "41:01")
	// Neither stands for the other, remembered or not.
	requireOK(t)(c.Authenticate(ctx, secret))
	refused(p.Name, "ccm", secret)
	for _, text := range []string{name, keys[1].Fingerprint, publicKey(t, 2048, 0)} {
		requireRefused(t, Unauthenticated)(c.Authenticate(ctx, text))
	}

	requireOK(t)(c.RotateToken(ctx, p.ID, "ccm", 0))
	must.First(c.AuthenticateKey(ctx, p.Name, "ccm", name))(t, "a key outlives a rotation")
	require.NoError(t, c.DeleteTokenKey(ctx, p.ID, "ccm", name))
	refused(p.Name, "ccm", name)
	must.Do(c.AddTokenKey(ctx, p.ID, "other", publicKey(t, 2048, 0)))(t, "it is free again")
	refused(p.Name, "ccm", name)

	kept := keys[1].Fingerprint
	requireOK(t)(c.AuthenticateKey(ctx, p.Name, "ccm", kept))
	advance(t, c, time.Hour)
	refused(p.Name, "ccm", kept)
	require.NoError(t, c.DeleteToken(ctx, p.ID, "ccm"))
	requireOK(t)(c.CreateToken(ctx, p.ID, api.TokenCreate{Name: "ccm", Role: Admin}))
	refused(p.Name, "ccm", kept)
	listed = must.Do(c.ListTokenKeys(ctx, p.ID, "ccm"))(t)
	assert.Empty(t, listed, "another token of the name has none of them")
}

// Given tokens are written anew at each start.
func TestKeysOfGivenTokens(t *testing.T) {
	c, p := newCloud(t, nil)
	ctx := t.Context()
	q := must.Do(c.EnsureProject(ctx, "other", nil))(t)
	ccm := GivenToken{"ccm", "sixteen characters", Editor}
	for name, test := range map[string]struct {
		project Project
		given   []GivenToken
		keeps   bool
	}{
		"same":                    {p, []GivenToken{ccm}, true},
		"another secret and role": {p, []GivenToken{{"ccm", "sixteen more characters", Viewer}}, true},
		"left out":                {p, nil, false},
		"renamed":                 {p, []GivenToken{{"operator", ccm.Secret, Editor}}, false},
		"in another project":      {q, []GivenToken{ccm}, false},
	} {
		require.NoError(t, c.SetTokens(ctx, q, nil))
		require.NoError(t, c.SetTokens(ctx, p, []GivenToken{ccm}))
		k := must.Do(c.AddTokenKey(ctx, p.ID, "ccm", publicKey(t, 2048, 1)))(t, name)
		must.First(c.AuthenticateKey(ctx, p.Name, "ccm", k.Fingerprint))(t, name)
		require.NoError(t, c.SetTokens(ctx, test.project, test.given))
		for _, in := range []Project{p, q} {
			who, _, err := c.AuthenticateKey(ctx, in.Name, "ccm", k.Fingerprint)
			if !test.keeps || in.ID != p.ID {
				requireCode(t, Unauthenticated, err)
				continue
			}
			require.NoError(t, err, name)
			assert.Equal(t, test.given[0].Role, who.Role, name)
			require.NoError(t, c.DeleteTokenKey(ctx, p.ID, "ccm", k.Fingerprint))
		}
	}
}
