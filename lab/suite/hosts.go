package suite

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/ccmlab/ccmlab/fakecloud/dns"
	"github.com/ccmlab/ccmlab/lab"
	"github.com/ccmlab/ccmlab/lab/atomicfile"
	"github.com/ccmlab/ccmlab/lab/process"
)

// maxNamedAddresses is how many addresses of load balancers have names in a hosts file: the lowest, which are
// given out first.
const maxNamedAddresses = 4096

// hostsFileFor writes the hosts file of a CCM that is to resolve the names of load balancers' addresses: this
// machine's, and theirs. It gives its name; "" where none is needed.
func hostsFileFor(l *lab.Lab, needed bool) (string, error) {
	if !needed {
		return "", nil
	}
	if err := process.CheckHostsFile(); err != nil {
		return "", err
	}
	hosts, err := os.ReadFile("/etc/hosts")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	b := bytes.NewBuffer(append(hosts, '\n'))
	balancers := l.Cluster.Cloud().BalancerRange
	address := balancers.Masked().Addr()
	for n := 0; n < maxNamedAddresses && balancers.Contains(address); n++ {
		byNumber, byParts := dns.NamesOf(address)
		fmt.Fprintf(b, "%s %s %s\n", address, byParts, byNumber)
		address = address.Next()
	}
	file := l.State.Path("hosts")
	return file, atomicfile.Write(file, b.Bytes())
}
