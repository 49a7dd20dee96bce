package lab

import (
	"context"
	"crypto/md5" //nolint:gosec // A key's name.
	"encoding/hex"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/lab/cluster"
)

// memoryKeys are the keys of a token whose cloud stops answering after some calls.
type memoryKeys struct {
	names []string
	calls int // left until then
}

var errKilled = errors.New("killed")

func (k *memoryKeys) call() error {
	if k.calls--; k.calls < 0 {
		return errKilled
	}
	return nil
}

func (k *memoryKeys) ListTokenKeys(context.Context, string, string) (all []api.TokenKey, err error) {
	for _, name := range k.names {
		all = append(all, api.TokenKey{Fingerprint: name})
	}
	return all, k.call()
}

func (k *memoryKeys) AddTokenKey(
	_ context.Context,
	_, _ string,
	key api.TokenKeyCreate,
) (*api.TokenKey, error) {
	if err := k.call(); err != nil {
		return nil, err
	}
	block, _ := pem.Decode([]byte(key.PublicKey))
	var pairs []string
	for _, b := range md5.Sum(block.Bytes) { //nolint:gosec // A name.
		pairs = append(pairs, hex.EncodeToString([]byte{b}))
	}
	k.names = append(k.names, strings.Join(pairs, ":"))
	return &api.TokenKey{}, nil
}

func (k *memoryKeys) DeleteTokenKey(_ context.Context, _, _, name string) error {
	if err := k.call(); err != nil {
		return err
	}
	i := slices.Index(k.names, name)
	if i < 0 {
		return &client.Error{Problem: api.Problem{Code: api.NotFound}}
	}
	k.names = slices.Delete(k.names, i, i+1)
	return nil
}

func newCCMKeys(t *testing.T, cloud *memoryKeys) *ccmKeys {
	t.Helper()
	file := filepath.Join(t.TempDir(), "key.pem")
	return &ccmKeys{cloud: cloud, current: file, next: file + ".next", old: file + ".old"}
}

// The key pair is made once, and a cloud that has forgotten it is told again.
func TestKeyPairIsMadeOnce(t *testing.T) {
	cloud := &memoryKeys{calls: 100}
	k := newCCMKeys(t, cloud)
	first, err := k.ensure(t.Context(), k.current)
	require.NoError(t, err)
	info, err := os.Stat(k.current)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode())
	for range 2 {
		again, err := k.ensure(t.Context(), k.current)
		require.NoError(t, err)
		assert.Equal(t, first, again)
		assert.Equal(t, []string{first}, cloud.names)
		cloud.names = nil // It was reset.
	}
	require.NoError(t, os.WriteFile(k.current, []byte("nonsense"), 0o600))
	_, err = k.ensure(t.Context(), k.current)
	require.ErrorContains(t, err, "`lab ccm start` makes another")
}

// A rotation that is killed at any point goes on the next time: the cloud then has one key, which is the CCM's and a
// new one. At no time does the cloud lack the key of the CCM's file.
func TestRotationConverges(t *testing.T) {
	for calls := range 5 {
		cloud := &memoryKeys{calls: 100}
		k := newCCMKeys(t, cloud)
		first, err := k.ensure(t.Context(), k.current)
		require.NoError(t, err)
		rotate := func() error {
			err := k.rotate(t.Context())
			if err == nil {
				err = k.forgetOld(t.Context())
			}
			_, current, err2 := cluster.PublicKey(k.current)
			require.NoError(t, err2)
			assert.Contains(t, cloud.names, current)
			return err
		}
		cloud.calls = calls
		if err := rotate(); err != nil {
			require.ErrorIs(t, err, errKilled)
			cloud.calls = 100
			require.NoError(t, rotate(), "killed after %d calls", calls)
		}
		_, now, err := cluster.PublicKey(k.current)
		require.NoError(t, err)
		assert.NotEqual(t, first, now)
		assert.Equal(t, []string{now}, cloud.names)
		left, err := filepath.Glob(filepath.Join(filepath.Dir(k.current), "*"))
		require.NoError(t, err)
		assert.Equal(t, []string{k.current}, left)
	}
	// Killed between its two files: the old one is kept already, and the new one not yet in its place.
	cloud := &memoryKeys{calls: 100}
	k := newCCMKeys(t, cloud)
	_, err := k.ensure(t.Context(), k.current)
	require.NoError(t, err)
	next, err := k.ensure(t.Context(), k.next)
	require.NoError(t, err)
	require.NoError(t, os.Link(k.current, k.old))
	require.NoError(t, errors.Join(k.rotate(t.Context()), k.forgetOld(t.Context())))
	assert.Equal(t, []string{next}, cloud.names)
}
