package console

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/ccmlab/ccmlab/fakecloud/console/scene"
)

// Lines about node-1 are not about node-10, and the newest is first.
func TestLinesOfTheLogAboutAThing(t *testing.T) {
	log := "1 node \"node-1\" is new\n2 node-10 is new\n3 default/node-1: x\n4 my-node-1\n5 i-1 is terminated\n6 i-12\n"
	assert.Equal(t, []string{"5 i-1 is terminated", "3 default/node-1: x", "1 node \"node-1\" is new"},
		linesNaming(log, scene.Object{Name: "node-1", CloudID: "i-1"}))
	assert.Empty(t, linesNaming(log, scene.Object{Name: "web"}))
}
