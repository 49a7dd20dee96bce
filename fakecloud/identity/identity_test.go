package identity_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"

	"github.com/ccmlab/ccmlab/fakecloud/identity"
)

func TestParseReadsWhatOfGives(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		serial := rapid.Int64Range(1, 1<<62-1).Draw(t, "serial")
		for dialect, providerID := range identity.Of(serial) {
			d, s, ok := identity.Parse(providerID)
			assert.True(t, ok)
			assert.Equal(t, dialect, d)
			assert.Equal(t, serial, s)
		}
	})
}

func TestParseTakesNothingElse(t *testing.T) {
	assert.Equal(t, "ocid1.instance.fc1.neb.00016", identity.Of(42)["oci"], "bare, as the CCM wants it")
	for _, providerID := range []string{
		"", "42", "hcloud://", "hcloud://0", "hcloud://-1", "hcloud://042", "hcloud://+42", "hcloud://42/", "hrobot://42",
		"fakecloud://i-01", "hcloud://9223372036854775808", "oxide://", "oxide://42",
		"oxide://66616b65-636c-8000-8000-000000000000", "oxide://66616b65-636c-4000-8000-00000000002a",
		"brightbox://srv-0001", "brightbox://srv-0001A", "brightbox://srv-000001", "brightbox://srv-00000", "srv-00001",
		"ocid1.instance.fc1.neb.", "ocid1.instance.fc1.neb.2", "ocid1.instance.fc1.phx.00002", "oci://ocid1.instance.fc1.neb.00002",
		"oxide://66616B65-636C-8000-8000-00000000002A", "hcloud://66616b65-636c-8000-8000-00000000002a",
	} {
		_, _, ok := identity.Parse(providerID)
		assert.False(t, ok, providerID)
	}
}

func TestIPv6Of(t *testing.T) {
	assert.Equal(t, "2001:db8::7f1e:1001", identity.IPv6Of("127.30.16.1"))
	assert.Empty(t, identity.IPv6Of("::1"))
	assert.Empty(t, identity.IPv6Of("nothing"))
}
