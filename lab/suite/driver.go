package suite

// A cloud whose driver is a program of its own.

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/ccmlab/ccmlab/lab"
	"github.com/ccmlab/ccmlab/lab/conformance"
	"github.com/ccmlab/ccmlab/lab/conformance/driver"
	"github.com/ccmlab/ccmlab/lab/conformance/driver/protocol"
	"github.com/ccmlab/ccmlab/lab/conformance/faultproxy"
	"github.com/ccmlab/ccmlab/lab/conformance/program"
	"github.com/ccmlab/ccmlab/lab/process"
)

// Driver is a program that is started for each lab, or one that runs already.
type Driver struct {
	// Path is the program's, absolute; Args and Env are templates, as those of a CCM. They name the
	// lab's own cloud, which a driver of fakecloud may use.
	Path      string
	Args, Env []string
	// Address is where one listens that runs already, if Path is "".
	Address driver.Address
}

// Check says all that is wrong with the program and its templates, before there is a lab.
func (d *Driver) Check() error {
	if d.Path == "" {
		return nil
	}
	var errs []error
	if err := program.CheckExecutable(d.Path); err != nil {
		errs = append(errs, fmt.Errorf("the driver: %w", err))
	}
	for _, text := range append(append([]string{}, d.Args...), d.Env...) {
		if err := program.CheckTemplate(text); err != nil {
			errs = append(errs, fmt.Errorf("the driver's %q: %w", text, err))
		}
	}
	return errors.Join(errs...)
}

// driverOn starts the driver, or connects to it, and has its cloud and a CCM.
func (o Options) driverOn(ctx context.Context, l *lab.Lab) (conformance.Implementation, func() error, error) {
	none := conformance.Implementation{}
	values := l.CCMValues("")
	cloud, stop, err := o.Driver.connect(ctx, l.Host, l.State.Path("logs", driver.Component+".log"), values)
	if err != nil {
		return none, nil, err
	}
	described := cloud.Described()
	if described.Proxy != nil {
		proxy, err := openProxy(cloud, values.Address)
		if err != nil {
			return none, nil, errors.Join(err, stop())
		}
		values.CloudURL = proxy.URL()
		stopDriver := stop
		stop = func() error { return errors.Join(proxy.Close(), stopDriver()) }
	}
	ccm, err := o.driversCCM(described)
	if err != nil {
		return none, nil, errors.Join(err, stop())
	}
	ccm.Values, ccm.Host, ccm.LogFile = values, l.Host, l.State.Path("logs", "conformance-ccm.log")
	under := conformance.Implementation{
		Name: described.Name, Version: described.Version, Cloud: cloud, CCM: ccm, Attempts: described.Attempts,
		Unsupported: o.unsupportedByDriver(described, values),
	}
	for _, name := range cloud.UnknownFeatures() {
		under.Unsupported[name] = driver.UnknownFeature // So that the report shows it.
	}
	for _, claim := range described.Claims {
		under.Claims = append(under.Claims, conformance.Capability(claim))
	}
	return under, stop, nil
}

// openProxy opens the proxy that the driver asks for, at an address of this machine.
func openProxy(cloud *conformance.Client, host string) (*faultproxy.Proxy, error) {
	described := cloud.Described()
	proxy, err := faultproxy.Open(host, *described.Proxy)
	if err != nil {
		return nil, fmt.Errorf("the driver %s: its proxy: %w", described.Name, err)
	}
	cloud.UseProxy(proxy)
	return proxy, nil
}

// unsupportedByDriver is what the driver declares, and what needs more than it.
func (o Options) unsupportedByDriver(described protocol.Driver, values program.Values) conformance.Unsupported {
	unsupported := conformance.Unsupported{}
	if values.ClusterCIDR == "" {
		unsupported[string(conformance.FeatureRoutes)] = "the range of the cluster's pods is not known here"
	}
	if !o.Traffic {
		unsupported[string(conformance.FeatureTraffic)] = "no Nodes with a kubelet are the driver's here: see --traffic"
	}
	if !o.Traffic && !o.onSomebodysCluster() {
		unsupported[string(conformance.FeatureMachines)] = "instances of the driver become no Nodes here: see --traffic"
	}
	for name, why := range described.Unsupported {
		unsupported[name] = why
	}
	return unsupported
}

// connect starts the program, if there is one, and asks the driver what it can do.
func (d *Driver) connect(
	ctx context.Context, host process.Host, logFile string, values program.Values,
) (cloud *conformance.Client, stop func() error, err error) {
	hello := protocol.Hello{ClusterName: values.ClusterName, ClusterCIDR: values.ClusterCIDR}
	if d.Path == "" {
		cloud, err = driver.Connect(ctx, d.Address, hello, nil)
		return cloud, func() error { return nil }, err
	}
	running, err := d.start(host, logFile, values)
	if err != nil {
		return nil, nil, err
	}
	stop = func() error { return running.Stop(context.WithoutCancel(ctx)) }
	cloud, err = driver.Connect(ctx, running.Address, hello, running.Ended)
	if err != nil {
		return nil, nil, errors.Join(err, stop())
	}
	return cloud, stop, nil
}

func (d *Driver) start(host process.Host, logFile string, values program.Values) (*driver.Running, error) {
	args, err1 := values.Fill(d.Args)
	env, err2 := values.Fill(d.Env)
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	return driver.Program{Path: d.Path, Args: args, Env: env, Host: host, LogFile: logFile}.Start()
}

// driversCCM is the CCM that the command line names, or the driver; each may leave to the other what it
// does not say.
func (o Options) driversCCM(described protocol.Driver) (*program.CCM, error) {
	ccm := &program.CCM{}
	if o.Program != nil {
		ccm.Path, ccm.Args, ccm.Env = o.Program.Path, o.Program.Args, o.Program.Env
		ccm.ConfigTemplate = o.Program.ConfigTemplate
	}
	if said := described.CCM; said != nil {
		ccm.Path = cmp.Or(ccm.Path, said.Path)
		ccm.ConfigTemplate = cmp.Or(ccm.ConfigTemplate, said.Config)
		if len(ccm.Args) == 0 {
			ccm.Args = said.Args
		}
		if len(ccm.Env) == 0 {
			ccm.Env = said.Env
		}
	}
	if ccm.Path == "" {
		return nil, fmt.Errorf("the driver %s names no CCM: give one with --ccm PATH", described.Name)
	}
	return ccm, ccm.Check()
}
