package suite

import (
	"cmp"
	"context"
	"debug/buildinfo"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/ccmlab/ccmlab/lab"
	"github.com/ccmlab/ccmlab/lab/atomicfile"
	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/cluster/local"
	"github.com/ccmlab/ccmlab/lab/conformance"
	"github.com/ccmlab/ccmlab/lab/conformance/driver/protocol"
	"github.com/ccmlab/ccmlab/lab/conformance/faultproxy"
	"github.com/ccmlab/ccmlab/lab/conformance/onfakecloud"
	"github.com/ccmlab/ccmlab/lab/conformance/program"
	"github.com/ccmlab/ccmlab/lab/dialects"
)

// OwnClaims are the capabilities of the lab's own CCM.
var OwnClaims = []conformance.Capability{
	conformance.CapabilityForeignNodes, conformance.CapabilityProvidedIP, conformance.CapabilityExplains,
	conformance.CapabilityUDP, conformance.CapabilitySourceRanges, conformance.CapabilityAffinity,
	conformance.CapabilityHealthCheck, conformance.CapabilityLocalTraffic, conformance.CapabilityClientAddress,
	conformance.CapabilityRename, conformance.CapabilityQuiet,
	conformance.CapabilityRepair, conformance.CapabilityDoubtfulBalancers, conformance.CapabilityLoadBalancerIP,
	conformance.CapabilityActiveStatus, conformance.CapabilityRefusedServices,
	conformance.CapabilityRenamedCluster, conformance.CapabilityOrphans,
	conformance.CapabilityPromptInitialization, conformance.CapabilityPromptRemoval,
	conformance.CapabilityMassDeletionGuard, conformance.CapabilityControllersFlag,
	conformance.CapabilityPodRoutes, conformance.CapabilityHA, conformance.CapabilityCallBudget,
	conformance.CapabilityRenewedCredentials, conformance.CapabilityOwnProject, conformance.CapabilityDoubtfulInstances,
	conformance.CapabilityDrift, conformance.CapabilityWaitingNodes, conformance.CapabilityDuplicateNodes,
	conformance.CapabilityExclusionValue, conformance.CapabilityStaysUp, conformance.CapabilityNamesakeClusters,
	conformance.CapabilityTwinBalancers, conformance.CapabilityHealth, conformance.CapabilityRenewedCA,
	conformance.CapabilitySourceRangesAnnotation,
	conformance.CapabilityUninitializedRemoval, conformance.CapabilityStableNodes,
	conformance.CapabilityForeignTags, conformance.CapabilityIPMode,
	conformance.CapabilityDoubtfulRoutes, conformance.CapabilityRetryAfter,
	conformance.CapabilityNamesInAnyCase,
}

// FrequentChecks are flags of k8s.io/cloud-provider that have a CCM look at its Nodes more
// often than upstream's defaults, 5 s and 5 min: there is less to wait for.
var FrequentChecks = []string{
	"--node-monitor-period=1s",
	// Shorter than the budget's rest, which is to see what that costs.
	"--node-status-update-frequency=10s",
}

// ownArgs are what the lab's own CCM is given for the suite, over what it has in any
// lab.
var ownArgs = append([]string{
	"--bind-address={{.Address}}", "--secure-port={{.Port}}", // Each replica has its own.
	"--cluster-name={{.ClusterName}}", // A test gives it another one.
	// Longer than in other labs: a leader that cannot renew its lease in time ends,
	// and on a machine that several suites share an API server was seen to be silent
	// for 5 s. Only a replica that takes over waits for it: the suite gives it back.
	"--leader-elect-lease-duration=10s", "--leader-elect-renew-deadline=8s", "--leader-elect-retry-period=1s",
	// The cloud has routes, as records, though loopback needs none.
	"--configure-cloud-routes=true", "--allocate-node-cidrs=true", "--cluster-cidr={{.ClusterCIDR}}",
	"--route-reconciliation-period=1s",
}, FrequentChecks...)

// ownEnv is what the lab's own CCM has in its environment for the suite.
var ownEnv = []string{
	// Tests run beside each other, and many of them end instances: those must not trip the
	// mass-deletion guard. Once it trips it holds for longer than a test lasts.
	"FAKECLOUD_MASS_DELETION_MINIMUM=16", "FAKECLOUD_MASS_DELETION_WINDOW=30s", "FAKECLOUD_MASS_DELETION_HOLD=10m",
}

// routeControllerNoise is what upstream's route controller says of each Node each time.
var routeControllerNoise = regexp.MustCompile(`route_controller\.go:\d+\] (action for Node|set node .* was canceled)`)

// healthCheck returns a function that checks whether the API server, the lab's cloud and the
// driver of the cloud under test are ready.
func (o Options) healthCheck(l *lab.Lab, under *conformance.Client) (func(context.Context) error, error) {
	kube, err1 := l.Cluster.Operator()
	cloud, err2 := l.Cloud()
	return func(ctx context.Context) error {
		err := errors.Join(kube.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error(), cloud.Ready(ctx))
		if o.Driver == nil {
			return err
		}
		_, driverErr := under.ListBalancers(ctx)
		return errors.Join(err, driverErr)
	}, errors.Join(err1, err2)
}

// podCIDR is the pods' address range; "" if the lab does not know it.
func podCIDR(l *lab.Lab) string {
	return l.Cluster.CCMCommand().ClusterCIDR
}

func (o Options) implementationOn(
	ctx context.Context, l *lab.Lab,
) (under conformance.Implementation, closeDriver func() error, err error) {
	if o.Driver != nil {
		return o.driverOn(ctx, l)
	}
	return o.fakecloudOn(ctx, l)
}

// fakecloudOn is the lab's cloud with its CCM, or another one.
func (o Options) fakecloudOn(
	ctx context.Context,
	l *lab.Lab,
) (conformance.Implementation, func() error, error) {
	none := conformance.Implementation{}
	command, cloud := l.Cluster.CCMCommand(), l.Cluster.Cloud()
	api, err := cloud.Client(cluster.CallerOperator)
	if err != nil {
		return none, nil, err
	}
	endpoint := cloud.URL
	if o.Dialect != "" {
		if endpoint = cloud.Dialects[o.Dialect]; endpoint == "" {
			return none, nil, fmt.Errorf("the cloud of a cluster of kind %s does not speak %s", l.State.Cluster, o.Dialect)
		}
	}
	u, err := url.Parse(endpoint)
	if err != nil {
		return none, nil, err
	}
	// A container's address is the container's to listen on.
	listen := u.Hostname()
	if ip, err := netip.ParseAddr(listen); err != nil || !ip.IsLoopback() {
		listen = command.Address
	}
	gate, err := faultproxy.OpenGate(listen, u.Host)
	if err != nil {
		return none, nil, err
	}
	u.Host = gate.Address()

	under := conformance.Implementation{Name: "fakecloud"}
	ccm := &program.CCM{
		Path: cmp.Or(o.CCMPath, command.Path), Args: append(command.Args, ownArgs...), Env: ownEnv,
		Noise:          routeControllerNoise,
		ConfigTemplate: local.CCMConfig("{{.CloudURL}}", "{{.TokenFile}}", "{{.CAFile}}", "{{.Project}}"),
	}
	networkBalancers := command.NetworkBalancers && o.Program == nil // What another CCM makes of it is not known.
	if networkBalancers {
		ccm.ConfigTemplate += local.NetworkBalancersConfig
	}
	under.Unsupported = conformance.Unsupported{}
	if command.ClusterCIDR == "" {
		under.Unsupported[string(conformance.FeatureRoutes)] = "the range of the cluster's pods is not known here"
	}
	if o.Program == nil {
		under.Claims = slices.Clone(OwnClaims)
	} else {
		own := ccm.ConfigTemplate
		// Each lab runs its own.
		ccm = &program.CCM{
			Path: o.Program.Path, Args: o.Program.Args, Env: o.Program.Env,
			ConfigTemplate: cmp.Or(o.Program.ConfigTemplate, own),
		}
		if ccm.HostsFile, err = hostsFileFor(l, o.addressNames); err != nil {
			return none, nil, err
		}
		under.Name, under.Version = ccm.Name(), cmp.Or(o.CCMVersion, buildVersion(o.Program.Path))
	}
	if !ccm.IsTold(".CAFile") || u.Scheme != "https" {
		under.Unsupported[string(conformance.FeatureCARenewal)] = "the CCM is not given the cloud's CA as {{.CAFile}}"
	}
	ccm.Values = l.CCMValues(o.Dialect)
	ccm.Values.CAFile = l.State.Path("conformance-ca.crt")
	if err := errors.Join(copyFile(ccm.Values.CAFile, cloud.CAFile), l.FillCloudValues(ctx, ccm)); err != nil {
		return none, nil, errors.Join(err, gate.Close())
	}
	gated := &ccm.Values.CloudURL
	if o.Dialect != "" {
		gated, ccm.Values.DialectHost = &ccm.Values.DialectURL, u.Host
	}
	*gated = strings.TrimSuffix(u.String(), "/") // By way of the gate.
	ccm.Host, ccm.LogFile = l.Host, l.State.Path("logs", "conformance-ccm.log")
	under.CCM = ccm
	theirs := o.onSomebodysCluster()
	under.Cloud, err = conformance.InProcess(ctx, &onfakecloud.Cloud{
		API: api, Cluster: l.State.Name, Token: cluster.CallerCCM, Gate: gate, Names: o.CCMNames,
		Machines: !o.WithoutMachines && !theirs, Traffic: !o.WithoutMachines && (!theirs || o.Traffic),
		PassThrough: networkBalancers, KubeletProviderIDs: o.KubeletProviderIDs,
		TokenFile: cloud.TokenFile(cluster.CallerCCM), CAFile: ccm.Values.CAFile,
	}, protocol.Hello{ClusterName: l.State.Name, ClusterCIDR: command.ClusterCIDR})
	if err != nil {
		return none, nil, errors.Join(err, gate.Close())
	}
	return under, gate.Close, nil
}

// copyFile gives the CCM a file of its own, which tests may change.
func copyFile(to, from string) error {
	content, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return atomicfile.Write(to, content)
}

// buildVersion is the version of a Go program's main module; "" if it has none.
func buildVersion(path string) string {
	info, err := buildinfo.ReadFile(path)
	if err != nil || info.Main.Version == "(devel)" {
		return ""
	}
	return info.Main.Version
}

// UseCCM makes p, a program on this machine, the lab's CCM from now on, in place of the lab's
// own. Its arguments and environment are templates, as in the suite; without any arguments it
// gets the arguments of the lab's own CCM. With a dialect, it gets what the dialect's preset has first.
// Nodes get provider IDs by the template, "" for the preset's. A CCM that runs is replaced.
func UseCCM(ctx context.Context, l *lab.Lab, p *program.CCM, dialect, providerIDs string) error {
	command, err := l.ReplaceableCCM()
	if err != nil {
		return err
	}
	own := len(p.Args) == 0 && dialect == ""
	p, preset, err := withPreset(p, dialect)
	if err != nil {
		return err
	}
	if dialect != "" && !preset.WithoutAPI && l.Cluster.Cloud().Dialects[dialect] == "" {
		return fmt.Errorf("this lab's cloud does not speak %s: it is of an earlier version; `lab down`, then `lab up`", dialect)
	}
	if err := p.Check(); err != nil {
		return err
	}
	hosts, err := hostsFileFor(l, preset.AddressNames)
	if err != nil {
		return err
	}
	if providerIDs = cmp.Or(providerIDs, preset.KubeletProviderIDs); providerIDs != "" {
		if err := l.UseProviderIDs(ctx, providerIDs); err != nil {
			return err
		}
	}
	used := &cluster.Program{
		Path: p.Path, HostsFile: hosts, WithoutRoutes: preset.WithoutRoutes, WithoutBalancers: preset.WithoutBalancers,
		ProviderIDs: preset.KubeletProviderIDs,
		Templates:   &cluster.Templates{Args: p.Args, Env: p.Env, Config: p.ConfigTemplate, Dialect: dialect},
	}
	if err := l.FillProgram(ctx, used); err != nil {
		return err
	}
	if own {
		used.Args, used.Templates = command.Args, nil
	}
	return l.UseCCM(ctx, used)
}

// PresetCommand is how somebody runs a CCM by a dialect's preset in this lab, in words. What it names is there.
func PresetCommand(ctx context.Context, l *lab.Lab, dialect string) ([]string, error) {
	p, _, err := withPreset(&program.CCM{}, dialect)
	if err != nil {
		return nil, err
	}
	filled := &cluster.Program{Templates: &cluster.Templates{
		Args: p.Args, Env: p.Env, Config: p.ConfigTemplate, Dialect: dialect,
	}}
	err = l.FillProgram(ctx, filled)
	return slices.Concat([]string{"env"}, filled.Env, []string{"PROGRAM"}, filled.Args), err
}

// UseDialect has the suite judge the CCM of a dialect's cloud, run by the preset: what o.Program
// has comes on top.
func (o *Options) UseDialect(dialect string) error {
	preset, err := dialects.Named(dialect)
	if err != nil {
		return err
	}
	if preset.WithoutAPI {
		return fmt.Errorf("the CCM of %s makes its cloud's answers up: there is nothing to judge", dialect)
	}
	judged := &program.CCM{
		Path: o.Program.Path, ConfigTemplate: o.Program.ConfigTemplate,
		Args: slices.Concat(preset.Suite.Args, o.Program.Args),
		Env:  slices.Concat(preset.Suite.Environment(), o.Program.Env),
	}
	if o.Program, _, err = withPreset(judged, dialect); err != nil {
		return err
	}
	o.Dialect, o.addressNames = dialect, preset.AddressNames
	o.CCMNames.InstanceTypes = preset.Suite.InstanceTypes
	o.KubeletProviderIDs = preset.KubeletProviderIDs != ""
	o.CCMNames.Dialect, o.CCMNames.RegionIsZone = dialect, preset.Suite.RegionIsZone
	o.CCMNames.AddressPrefix = preset.Suite.AddressPrefix
	o.CCMNames.Region, o.CCMNames.ExternalAddresses = preset.Suite.Region, preset.Suite.ExternalAddresses
	o.CCMNames.ServiceTag = cmp.Or(o.CCMNames.ServiceTag, preset.Suite.ServiceTag)
	for _, c := range preset.Suite.Claims {
		o.Implementation.Claims = append(o.Implementation.Claims, conformance.Capability(c))
	}
	unsupported := conformance.Unsupported(maps.Clone(preset.Suite.Unsupported))
	maps.Copy(unsupported, o.Implementation.Unsupported)
	o.Implementation.Unsupported = unsupported
	return nil
}

// withPreset puts a dialect's arguments and environment before those of a program, so that of
// what comes twice the program's counts. It gives the preset, too, which is empty without a dialect.
func withPreset(p *program.CCM, dialect string) (*program.CCM, *dialects.Preset, error) {
	if dialect == "" {
		return p, &dialects.Preset{}, nil
	}
	preset, err := dialects.Named(dialect)
	if err != nil {
		return nil, nil, err
	}
	return &program.CCM{
		Path: p.Path, Args: slices.Concat(preset.Args, p.Args), Env: slices.Concat(preset.Environment(), p.Env),
		ConfigTemplate: cmp.Or(p.ConfigTemplate, preset.Config),
	}, preset, nil
}
