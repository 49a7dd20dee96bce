package lab

// Which program is a lab's CCM.

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/cluster/local"
	"github.com/ccmlab/ccmlab/lab/conformance/program"
	"github.com/ccmlab/ccmlab/lab/process"
)

// StartCCM has the CCM run from now on, and returns when it serves. Nodes have the provider IDs that the lab gives
// them before it starts.
func (l *Lab) StartCCM(ctx context.Context) error {
	if err := l.checkUsesCCM(); err != nil {
		return err
	}
	running, err := l.Host.Running()
	if err != nil {
		return err
	}
	if running[ComponentAgent] == nil {
		return fmt.Errorf("lab %q is not whole; `lab up --name %s` completes it", l.State.Name, l.State.Name)
	}
	if err := errors.Join(l.refillProgram(ctx), l.SetProviderIDs(ctx)); err != nil {
		return err
	}
	return l.Cluster.StartCCM(ctx)
}

// refillProgram fills the templates of the program in use in again: the cloud may have been reset, or a key rotated.
func (l *Lab) refillProgram(ctx context.Context) error {
	used, err := l.OtherCCM()
	if err != nil || used == nil || used.Templates == nil {
		return err
	}
	if err := l.FillProgram(ctx, used); err != nil {
		return err
	}
	return l.Cluster.UseCCM(used)
}

// FillProgram fills in the templates of a program that is to be the lab's CCM, and writes its configuration. What
// they name of the cloud is made there: a key pair.
func (l *Lab) FillProgram(ctx context.Context, p *cluster.Program) error {
	ccm := &program.CCM{
		Args: p.Templates.Args, Env: p.Templates.Env, ConfigTemplate: p.Templates.Config,
		Values: l.CCMValues(p.Templates.Dialect),
	}
	if ccm.ConfigTemplate != "" {
		ccm.Values.CloudConfig = l.State.Path("ccm-" + p.Templates.Dialect + "-config")
	}
	if err := l.FillCloudValues(ctx, ccm); err != nil {
		return err
	}
	spec, err := ccm.Spec()
	p.Args, p.Env = spec.Args, spec.Env
	return err
}

// CCMValues are the values that templates of a CCM can use in this lab, with a dialect or "", but for those of
// FillCloudValues.
func (l *Lab) CCMValues(dialect string) program.Values {
	cloud, command := l.Cluster.Cloud(), l.Cluster.CCMCommand()
	_, host, _ := strings.Cut(cloud.Dialects[dialect], "://")
	return program.Values{
		Kubeconfig: l.Cluster.Kubeconfig(), CloudConfig: command.CloudConfig, ClusterName: l.State.Name,
		ClusterCIDR: command.ClusterCIDR, NeedsRoutes: strconv.FormatBool(command.NeedsRoutes),
		CloudURL: cloud.URL, DialectURL: cloud.Dialects[dialect], DialectHost: host,
		TokenFile: cloud.TokenFile(cluster.CallerCCM), Project: l.State.Name, CAFile: cloud.CAFile,
		Address: command.Address, Port: command.Port,
	}
}

// FillCloudValues sets those of a CCM's values that its templates name and the cloud has a part in.
func (l *Lab) FillCloudValues(ctx context.Context, p *program.CCM) error {
	if p.IsTold(".NetworkCode") {
		cloud, err := l.Cloud()
		if err != nil {
			return err
		}
		if p.Values.NetworkCode, err = cluster.NetworkCode(ctx, cloud); err != nil {
			return err
		}
	}
	if p.IsTold(".Region") {
		cloud, err := l.Cloud()
		if err != nil {
			return err
		}
		zones, err := cloud.ListZones(ctx)
		if err != nil {
			return err
		}
		p.Values.Region = zones[0].Region // There is always a zone, and one region.
	}
	if !p.IsTold(keyFields) {
		return nil
	}
	keys, err := l.ccmKeys(ctx)
	if err != nil {
		return err
	}
	p.Values.KeyFile = keys.current
	p.Values.KeyFingerprint, err = keys.ensure(ctx, keys.current)
	return err
}

// UseCCM makes a program on this machine the lab's CCM from now on, in place of the
// lab's own; nil makes the lab's own the CCM again. A CCM that runs is replaced.
func (l *Lab) UseCCM(ctx context.Context, p *cluster.Program) error {
	if err := l.checkUsesCCM(); err != nil {
		return err
	}
	wanted, err := l.CCMWanted(ctx)
	if err != nil {
		return err
	}
	if wanted { // Ended first, so that what starts next is the other program.
		if err := l.Cluster.StopCCM(ctx); err != nil {
			return err
		}
	}
	if err := errors.Join(l.dropProviderIDs(p), l.Cluster.UseCCM(p)); err != nil || !wanted {
		return err
	}
	return l.StartCCM(ctx)
}

// ReplaceableCCM returns the command line of the lab's own CCM, or an error if the lab
// has none.
func (l *Lab) ReplaceableCCM() (cluster.CCMCommand, error) {
	return l.Cluster.CCMCommand(), l.checkUsesCCM()
}

// OwnCCM tells whether the lab's own CCM is the one that runs if any does.
func (l *Lab) OwnCCM() (bool, error) {
	other, err := l.OtherCCM()
	return other == nil, err
}

// OtherCCM is the program that is the lab's CCM in place of its own, or nil.
func (l *Lab) OtherCCM() (*cluster.Program, error) {
	return local.Site{Lab: l.State}.ProgramInUse()
}

// CCMRefusal says why the cloud refuses the calls of the lab's CCM: by the token that the CCM is given, and by its
// newest call. It is "" if the cloud does not, or cannot be asked. Calls with a token that the cloud does not know are
// in no audit. Looking is no call of the CCM's: the audit leaves itself out, and faults leave it alone.
func (l *Lab) CCMRefusal(ctx context.Context) string {
	cloud := l.Cluster.Cloud()
	ccm, err := cloud.Client(cluster.CallerCCM)
	if err != nil {
		return err.Error()
	}
	newest, err := ccm.ListAudit(ctx, client.AuditFilter{Token: cluster.CallerCCM}, 1)
	switch {
	case client.HasCode(err, api.Unauthenticated):
		return fmt.Sprintf("it does not accept the token in %s", cloud.TokenFile(cluster.CallerCCM))
	case err == nil && len(newest) == 1 && newest[0].Status == http.StatusUnauthorized:
		return fmt.Sprintf("it answered 401 to the newest call, of %s", newest[0].Operation)
	}
	return ""
}

// CCMWanted tells whether the lab keeps a CCM running: not so after `lab ccm stop`.
func (l *Lab) CCMWanted(ctx context.Context) (bool, error) {
	all, err := l.Cluster.Components(ctx)
	return slices.ContainsFunc(all, func(c cluster.Component) bool {
		return c.Name == local.ComponentCCM && c.Wanted
	}), err
}

// CCMCommand is the command line of the lab's CCM, in words, for somebody who runs
// another beside it.
func (l *Lab) CCMCommand() ([]string, error) {
	if err := l.checkUsesCCM(); err != nil {
		return nil, err
	}
	other, err := l.OtherCCM()
	if err != nil {
		return nil, err
	}
	if other != nil {
		return l.Host.CommandLine(process.Spec{
			Component: ComponentManualCCM, Path: other.Path, Args: other.Args, Env: other.Env, HostsFile: other.HostsFile,
		}), nil
	}
	if l.Cluster.Traits().InContainers {
		return nil, fmt.Errorf(
			"the own CCM of lab %q is a Deployment in its cluster: `kubectl --namespace kube-system get pods` shows it, "+
				"and `kubectl --namespace kube-system get deployment cloud-controller-manager -o yaml` its command line",
			l.State.Name,
		)
	}
	c := l.Cluster.CCMCommand()
	if _, err := os.Stat(c.CloudConfig); errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf(
			"the CCM of lab %q was never started, and has no configuration yet; `lab ccm start --name %[1]s` makes one",
			l.State.Name,
		)
	}
	return l.Host.CommandLine(process.Spec{Component: ComponentManualCCM, Path: c.Path, Args: c.Args}), nil
}

// checkUsesCCM is an error in a cluster that does not wait for a CCM. One would
// initialise no Node there, since it does so only where the taint is
// (k8s.io/cloud-provider, controllers/node), and the kubelets would overwrite the
// addresses that it sets.
func (l *Lab) checkUsesCCM() error {
	if !l.Cluster.Traits().NoCloudProvider {
		return nil
	}
	return fmt.Errorf("lab %[1]q is a cluster without an external cloud provider: its kubelets run without --cloud-provider=external, so its nodes have no taint and a CCM would initialise none of them; "+
		"`lab up --name OTHER` brings one up beside it that waits for a CCM, and `lab compare %[1]s OTHER` shows the difference", l.State.Name)
}
