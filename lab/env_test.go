package lab

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestVariablesInAnEnvironment(t *testing.T) {
	vars := []Var{
		{Name: "A", Value: "new"}, {Name: "PATH", Value: "/lab", Before: ":"},
		{Name: "PATH", Value: "/go", Before: ":"}, {Name: "FLAGS", Value: "-x", Before: " "},
	}
	assert.Equal(t,
		[]string{"A=old", "PATH=/bin", "A=new", "PATH=/lab:/bin", "PATH=/go:/lab:/bin", "FLAGS=-x"},
		Environ([]string{"A=old", "PATH=/bin"}, vars), "the last of each counts, and has those before in it")
}
