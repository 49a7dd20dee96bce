package serviceproxy

import (
	"testing"

	"go.uber.org/goleak"
)

// Each test closes its proxy: nothing of one may run on.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
