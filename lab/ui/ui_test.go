package ui

import (
	"bytes"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A step that takes long is announced, also before it has called note.
func TestLongStepIsAnnounced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		s := &Steps{w: &out, start: time.Now()}
		require.NoError(t, s.Do("nodes", func(note func(string)) (string, error) {
			time.Sleep(longStep + time.Second)
			note("1 of 3 Ready")
			time.Sleep(longStep)
			return "3 Ready", nil
		}))
		assert.Regexp(
			t, `^ … nodes            under way \(2s\)\n … nodes            1 of 3 Ready \(4s\)\n ✓ nodes `,
			out.String(),
		)
	})
}
