package lab

// Which program is a lab's CCM.

import (
	"context"
	"fmt"

	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/cluster/local"
	"github.com/ccmlab/ccmlab/lab/conformance"
)

// UseCCM has a program on this machine be the lab's CCM, in place of its own, from
// now on. Its arguments are templates, as the conformance suite has them; without any
// it is given those of the lab's own. A CCM that runs is replaced.
func (l *Lab) UseCCM(ctx context.Context, path string, args []string) error {
	host, command, err := l.replaceable()
	if err != nil {
		return err
	}
	cloud := l.Cluster.Cloud()
	p := &conformance.Program{Path: path, Args: args, Values: conformance.Values{
		Kubeconfig: l.Cluster.Kubeconfig(), CloudConfig: command.CloudConfig, ClusterName: l.State.Name, ClusterCIDR: command.ClusterCIDR,
		CloudURL: cloud.URL, TokenFile: cloud.TokenFile(cluster.CallerCCM), Project: l.State.Name, CAFile: cloud.CAFile,
		Address: command.Address, Port: command.Port,
	}}
	if err := p.Check(); err != nil {
		return err
	}
	line, err := p.CommandLine()
	if err != nil {
		return err
	}
	if len(args) == 0 {
		line = command.Args
	}
	return l.replaceCCM(ctx, host, &cluster.Program{Path: path, Args: line})
}

// UseOwnCCM has the lab's own CCM run again.
func (l *Lab) UseOwnCCM(ctx context.Context) error {
	host, _, err := l.replaceable()
	if err != nil {
		return err
	}
	return l.replaceCCM(ctx, host, nil)
}

func (l *Lab) replaceable() (cluster.Replaceable, cluster.CCMCommand, error) {
	host, replaceable := l.Cluster.(cluster.Replaceable)
	process, ok := l.Cluster.(cluster.LocalCCM)
	if !replaceable || !ok {
		return nil, cluster.CCMCommand{}, fmt.Errorf("the CCM of a cluster of kind %s is no process of this machine; change its Deployment", l.State.Cluster)
	}
	return host, process.CCMCommand(), l.wantsCCM()
}

// replaceCCM ends the one that runs, so that what comes after it is the other.
func (l *Lab) replaceCCM(ctx context.Context, host cluster.Replaceable, p *cluster.Program) error {
	wanted := local.Site{Lab: l.State}.CCMWanted()
	if wanted {
		if err := l.Cluster.StopCCM(ctx); err != nil {
			return err
		}
	}
	if err := host.UseCCM(p); err != nil || !wanted {
		return err
	}
	return l.StartCCM(ctx)
}
