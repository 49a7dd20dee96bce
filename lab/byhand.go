package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/process"
)

// componentByHand marks a CCM that somebody runs: `status` shows it while it is there,
// `down` ends it, and nothing takes it for the lab's own.
const componentByHand = "ccm-by-hand"

// CCMCommand is the command line of the lab's CCM, in words, for somebody who runs
// another beside it.
func (l *Lab) CCMCommand() ([]string, error) {
	if err := l.wantsCCM(); err != nil {
		return nil, err
	}
	local, ok := l.Cluster.(cluster.LocalCCM)
	if !ok || l.State.Cluster == Kind {
		return nil, fmt.Errorf("the CCM of lab %q runs in its cluster: `kubectl --namespace kube-system get pods` shows it, and `kubectl --namespace kube-system get deployment cloud-controller-manager -o yaml` its command line", l.State.Name)
	}
	c := local.CCMCommand()
	if _, err := os.Stat(c.CloudConfig); errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("the CCM of lab %q was never started, and has no configuration yet; `lab ccm start --name %[1]s` makes one", l.State.Name)
	}
	return l.Host.CommandLine(process.Spec{Component: componentByHand, Path: c.Path, Args: c.Args}), nil
}
