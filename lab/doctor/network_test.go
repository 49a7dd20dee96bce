package doctor

import (
	"fmt"
	"net"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The holder of a port is found in the kernel's tables.
func TestPortHolder(t *testing.T) {
	l, err := net.Listen("tcp4", "0.0.0.0:0")
	require.NoError(t, err)
	defer func() { _ = l.Close() }()
	all, err := ThisMachine("embedded").Listeners()
	require.NoError(t, err)
	found := 0
	for _, one := range all {
		if one.Address.Port() == uint16(l.Addr().(*net.TCPAddr).Port) && one.Address.Addr().IsUnspecified() {
			found++
			assert.Equal(t, os.Geteuid(), one.UID)
			assert.Contains(t, socketHolder(one.Inode), fmt.Sprintf("(pid %d)", os.Getpid()))
		}
	}
	assert.Equal(t, 1, found)
	assert.Empty(t, socketHolder("0"), "a socket that nobody has")
}
