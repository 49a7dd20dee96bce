package lab

// Which program is a lab's CCM.

import (
	"context"
	"fmt"

	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/cluster/local"
)

// UseCCM makes a program on this machine the lab's CCM from now on, in place of the
// lab's own; nil makes the lab's own the CCM again. A CCM that runs is replaced.
func (l *Lab) UseCCM(ctx context.Context, program *cluster.Program) error {
	if _, err := l.ReplaceableCCM(); err != nil {
		return err
	}
	wanted := l.CCMWanted()
	if wanted { // Ended first, so that what starts next is the other program.
		if err := l.Cluster.StopCCM(ctx); err != nil {
			return err
		}
	}
	if err := l.Cluster.(cluster.Replaceable).UseCCM(program); err != nil || !wanted {
		return err
	}
	return l.StartCCM(ctx)
}

// ReplaceableCCM returns the command line of the lab's own CCM, or an error if no
// other program can take its place.
func (l *Lab) ReplaceableCCM() (cluster.CCMCommand, error) {
	_, replaceable := l.Cluster.(cluster.Replaceable)
	process, local := l.Cluster.(cluster.LocalCCM)
	if !replaceable || !local {
		return cluster.CCMCommand{}, fmt.Errorf("the CCM of a cluster of kind %s is no process of this machine; change its Deployment", l.State.Cluster)
	}
	return process.CCMCommand(), l.wantsCCM()
}

// OwnCCM tells whether the lab's own CCM is the one that runs if any does.
func (l *Lab) OwnCCM() (bool, error) {
	if _, here := l.Cluster.(cluster.LocalCCM); !here {
		return true, nil
	}
	used, err := local.Site{Lab: l.State}.ProgramInUse()
	return used == nil, err
}

// CCMWanted tells whether the lab keeps a CCM running: not so after `lab ccm stop`.
func (l *Lab) CCMWanted() bool { return local.Site{Lab: l.State}.CCMWanted() }
