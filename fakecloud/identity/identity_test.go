package identity_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"

	"github.com/ccmlab/ccmlab/fakecloud/identity"
)

func TestParseReadsWhatOfGives(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		serial := rapid.Int64Min(1).Draw(t, "serial")
		for dialect, providerID := range identity.Of(serial) {
			d, s, ok := identity.Parse(providerID)
			assert.True(t, ok)
			assert.Equal(t, dialect, d)
			assert.Equal(t, serial, s)
		}
	})
}

func TestParseTakesNothingElse(t *testing.T) {
	for _, providerID := range []string{
		"", "42", "hcloud://", "hcloud://0", "hcloud://-1", "hcloud://042", "hcloud://+42", "hcloud://42/", "hrobot://42",
		"fakecloud://i-01", "hcloud://9223372036854775808",
	} {
		_, _, ok := identity.Parse(providerID)
		assert.False(t, ok, providerID)
	}
}
