package release

import (
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestVersion(t *testing.T) {
	devel := &debug.BuildInfo{Main: debug.Module{Version: "(devel)"}}
	assert.Equal(t, "devel", describe(devel))
	devel.Settings = []debug.BuildSetting{{Key: "vcs.revision", Value: "0123456789abcdef"}}
	assert.Equal(t, "devel-0123456789ab", describe(devel))
	assert.Equal(t, "v1.2.3", describe(&debug.BuildInfo{Main: debug.Module{Version: "v1.2.3"}}))
	assert.NotEmpty(t, Version())
}
