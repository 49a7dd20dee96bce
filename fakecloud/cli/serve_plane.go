package cli

import (
	"log/slog"
	"slices"
	"strings"

	"github.com/ccmlab/ccmlab/fakecloud"
	"github.com/ccmlab/ccmlab/fakecloud/dataplane"
)

const (
	modeLoopback  = "loopback"
	modeInterface = "interface"
	modeNone      = "none"
)

// balancerModes are the values of --load-balancer-mode.
var balancerModes = []string{modeLoopback, modeInterface, modeNone}

// checkBalancerMode refuses modes that there are not, and those that the
// interface contradicts. Without a mode, the interface decides.
func (o *serveOptions) checkBalancerMode() error {
	switch given := o.loadBalancerInterface != ""; {
	case o.loadBalancerMode != "" && !slices.Contains(balancerModes, o.loadBalancerMode):
		return misuse("--load-balancer-mode %q: choose %s", o.loadBalancerMode, strings.Join(balancerModes, ", "))
	case o.loadBalancerMode == modeInterface && !given:
		return misuse("--load-balancer-mode %s: name the interface with --load-balancer-interface", modeInterface)
	case o.loadBalancerMode != "" && o.loadBalancerMode != modeInterface && given:
		return misuse(
			"--load-balancer-mode %s and --load-balancer-interface %s: leave out one of them", o.loadBalancerMode,
			o.loadBalancerInterface,
		)
	}
	return nil
}

func (o *serveOptions) dataPlane(log *slog.Logger) fakecloud.DataPlane {
	if o.loadBalancerMode == modeNone {
		return &dataplane.None{}
	}
	return dataplane.New(dataplane.Options{Logger: log, Interface: o.loadBalancerInterface})
}
