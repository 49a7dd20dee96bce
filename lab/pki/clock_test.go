package pki

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Certificates stay valid when the clock jumps within a day. A larger jump is an error that
// names the clock.
func TestClockJumps(t *testing.T) {
	dir := t.TempDir()
	ca, err := LoadOrCreate(dir, "ca")
	require.NoError(t, err)
	again, err := LoadOrCreate(dir, "ca")
	require.NoError(t, err)
	assert.True(t, ca.Cert.Equal(again.Cert))
	for jump, want := range map[time.Duration]string{
		0: "", -23 * time.Hour: "", validity - time.Hour: "",
		-25 * time.Hour:      "the clock has gone back; set it (timedatectl), or make the lab anew",
		validity + time.Hour: "was valid until",
	} {
		err := checkValidity("ca.crt", ca.Cert, time.Now().Add(jump))
		if want == "" {
			assert.NoError(t, err, "%s", jump)
			continue
		}
		assert.ErrorContains(t, err, want)
		assert.ErrorContains(t, err, "ca.crt")
	}
}
