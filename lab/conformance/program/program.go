// Package program runs a cloud controller manager under test as a process of this machine: with
// which flags, environment and configuration, how it is started, stopped, killed and frozen, and
// how further replicas of it come to run. It knows processes and the engine's CCM interface, and
// nothing of clusters and clouds. Begin with CCM and Values.
package program

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/ccmlab/ccmlab/lab/atomicfile"
	"github.com/ccmlab/ccmlab/lab/conformance"
	"github.com/ccmlab/ccmlab/lab/process"
)

// Component is the program's name among the lab's processes, by which the
// lab ends what a suite that was killed left behind.
const Component = "conformance-ccm"

// CCM is a cloud controller manager that is a program. It implements conformance.CCM. Args, Env and
// ConfigTemplate are templates (text/template) over Values.
type CCM struct {
	// Path is absolute: the program's working directory is the lab's folder.
	Path string
	Args []string
	// Env is added to a small environment, as NAME=value.
	Env []string
	// ConfigTemplate, unless empty, is what the file Values.CloudConfig is made
	// of at each start.
	ConfigTemplate string

	// HostsFile, unless "", is what the program finds as /etc/hosts.
	HostsFile string

	// Values, Host and LogFile are of the lab it runs in.
	Values Values
	Host   process.Host
	// LogFile is the file that its output is appended to.
	LogFile string
	// Noise, unless nil, matches lines that Log leaves out.
	Noise *regexp.Regexp

	component string // "" is Component

	lifecycleMu sync.Mutex // held while it is being started or stopped
	mu          sync.Mutex // guards what follows
	running     *process.Process
	extraFlags  []string         // besides Args
	frozen      *process.Process // the last one that ever was
	exitMessage string           // how it last ended by itself
	crashes     chan struct{}
	replicas    map[int]*CCM // others of the kind, by number
	clusterName string       // what the cluster is called instead of Values.ClusterName, unless ""
}

var _ interface {
	conformance.FlagTaker
	conformance.Logs
	conformance.Replicated
	conformance.Replica
	conformance.ClusterRenamer
	conformance.HealthServer
} = (*CCM)(nil)

// Name is what a report calls it.
func (c *CCM) Name() string { return filepath.Base(c.Path) }

// Check says all that is wrong with the program and its templates, before there
// is a lab to run it in.
func (c *CCM) Check() error {
	var errs []error
	if err := CheckExecutable(c.Path); err != nil {
		errs = append(errs, fmt.Errorf("the CCM: %w", err))
	}
	return errors.Join(append(errs, c.CheckTemplates())...)
}

// CheckTemplates says all that is wrong with the arguments, the environment and the configuration.
func (c *CCM) CheckTemplates() error {
	var errs []error
	for name, text := range c.allTemplates() {
		if err := CheckTemplate(text); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
		}
	}
	for _, kv := range c.Env {
		if name, _, ok := strings.Cut(kv, "="); !ok || name == "" {
			errs = append(errs, fmt.Errorf("environment %q: want NAME=value", kv))
		}
	}
	return errors.Join(errs...)
}

// CheckExecutable returns an error unless a program can be started from anywhere by this path.
func CheckExecutable(path string) error {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return err
	case !filepath.IsAbs(path):
		return fmt.Errorf("%s is not an absolute path", path)
	case !info.Mode().IsRegular() || info.Mode()&0o111 == 0:
		return fmt.Errorf("%s is not an executable file", path)
	}
	return nil
}

// Start writes the configuration and returns when the program runs, which does
// not say that it will for long.
func (c *CCM) Start(ctx context.Context) error {
	c.lifecycleMu.Lock()
	defer c.lifecycleMu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running != nil || ctx.Err() != nil {
		return ctx.Err()
	}
	spec, err := c.Spec()
	if err != nil {
		return err
	}
	run, err := c.Host.Start(spec)
	if err != nil {
		return err
	}
	c.running = run
	go c.awaitExit(run)
	return nil
}

// Spec fills the templates in, and writes the configuration file.
func (c *CCM) Spec() (process.Spec, error) {
	spec := process.Spec{
		Component: cmp.Or(c.component, Component), Path: c.Path, HostsFile: c.HostsFile, LogFile: c.LogFile,
	}
	var err1, err2, err3 error
	values := c.Values
	values.ClusterName = cmp.Or(c.clusterName, values.ClusterName)
	spec.Args, err1 = values.Fill(c.Args)
	spec.Args = append(spec.Args, c.extraFlags...)
	spec.Env, err2 = values.Fill(c.Env)
	if c.ConfigTemplate != "" {
		var config string
		if config, err3 = fillTemplate(c.ConfigTemplate, values, readFile); err3 == nil {
			err3 = atomicfile.Write(c.Values.CloudConfig, []byte(config))
		}
	}
	return spec, errors.Join(err1, err2, err3)
}

// awaitExit waits for the program to end, and reports a crash unless Stop, Kill or Freeze ended it.
func (c *CCM) awaitExit(run *process.Process) {
	_ = run.Wait(context.Background())
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running != run {
		return
	}
	c.running = nil
	c.exitMessage = "it ended by itself: exit status 0"
	if err := run.Exit(); err != nil {
		c.exitMessage = fmt.Sprintf("it ended by itself: %v", err)
	}
	if c.frozen == run {
		return
	}
	select {
	case c.crashChannel() <- struct{}{}:
	default: // Nobody has asked about those before.
	}
}

// crashBuffer is how many ends that nobody has asked about are kept.
const crashBuffer = 10

// stopGrace is how long it has to end when it is asked to.
const stopGrace = 5 * time.Second

// Stop asks it to end, and kills it if it does not, or if ctx ends. One that was
// frozen is killed: it might not hear.
func (c *CCM) Stop(ctx context.Context) error {
	c.lifecycleMu.Lock()
	defer c.lifecycleMu.Unlock()
	run, grace := c.releaseProcess(), stopGrace
	if run == nil {
		return nil
	}
	if run == c.frozen {
		grace = 0
	}
	return process.Stop(ctx, grace, run)
}

// Crashed gets a value each time it ends without Stop.
func (c *CCM) Crashed() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.crashChannel()
}

func (c *CCM) crashChannel() chan struct{} {
	if c.crashes == nil {
		c.crashes = make(chan struct{}, crashBuffer)
	}
	return c.crashes
}

// logTailLines have among them enough that are no noise.
const logTailLines = 1000

// Log is the last lines of what it has said, and how it ended if it did.
func (c *CCM) Log(lines int) []string {
	said, err := process.Tail(c.LogFile, logTailLines)
	if err != nil {
		said = []string{"its log cannot be read: " + err.Error()}
	}
	said = slices.DeleteFunc(said, func(line string) bool { return c.Noise != nil && c.Noise.MatchString(line) })
	said = said[max(0, len(said)-lines):]
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running == nil && c.exitMessage != "" {
		said = append(said, c.exitMessage)
	}
	return said
}

// LogFiles implements Logs.
func (c *CCM) LogFiles() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	files := []string{c.LogFile}
	for _, number := range slices.Sorted(maps.Keys(c.replicas)) {
		files = append(files, c.replicas[number].LogFile)
	}
	return files
}

// SetExtraFlags implements FlagTaker. Of a flag that is given twice the last one counts.
func (c *CCM) SetExtraFlags(flags ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.extraFlags = flags
}

// Running implements Replica.
func (c *CCM) Running() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.running != nil
}

// Kill implements Replica.
func (c *CCM) Kill(ctx context.Context) error {
	c.lifecycleMu.Lock()
	defer c.lifecycleMu.Unlock()
	run := c.releaseProcess()
	if run == nil {
		return nil
	}
	if err := run.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	return run.Wait(ctx)
}

// Freeze implements Replica.
func (c *CCM) Freeze() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running == nil {
		return errors.New("it does not run")
	}
	c.frozen = c.running
	return c.running.Signal(syscall.SIGSTOP)
}

// Thaw implements Replica.
func (c *CCM) Thaw() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running == nil {
		return errors.New("it does not run")
	}
	return c.running.Signal(syscall.SIGCONT)
}

// releaseProcess returns the running process and forgets it, so that its end is no crash.
func (c *CCM) releaseProcess() *process.Process {
	c.mu.Lock()
	defer c.mu.Unlock()
	run := c.running
	c.running, c.exitMessage = nil, ""
	return run
}

// CanRenameCluster implements conformance.ClusterRenamer: one of the program's templates names the
// cluster.
func (c *CCM) CanRenameCluster() bool {
	return c.IsTold(".ClusterName")
}

// IsTold tells whether a template has the field of Values, `.Port` say.
func (c *CCM) IsTold(field string) bool {
	for _, text := range c.allTemplates() {
		if strings.Contains(text, field) {
			return true
		}
	}
	return false
}

// HealthAddress implements conformance.HealthServer.
func (c *CCM) HealthAddress() string {
	if !c.IsTold(".Port") {
		return ""
	}
	return net.JoinHostPort(c.Values.Address, strconv.Itoa(c.Values.Port))
}

// RenameCluster implements conformance.ClusterRenamer. Replicas keep the name that they have.
func (c *CCM) RenameCluster(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.clusterName = name
}

// Replica implements Replicated: another process of the program, with a port, a log
// and, if that is made of a template, a configuration of its own.
func (c *CCM) Replica(number int) (conformance.Replica, error) {
	if number == 0 {
		return c, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if r := c.replicas[number]; r != nil {
		return r, nil
	}
	r := &CCM{
		Path: c.Path, Args: c.Args, Env: c.Env, ConfigTemplate: c.ConfigTemplate, Values: c.Values, Host: c.Host,
		HostsFile: c.HostsFile, Noise: c.Noise,
		LogFile: replicaFile(c.LogFile, number), component: Component + "-" + strconv.Itoa(number+1),
	}
	if c.ConfigTemplate != "" {
		r.Values.CloudConfig = replicaFile(c.Values.CloudConfig, number)
	}
	var err error
	if r.Values.Port, err = freePort(c.Values.Address); err != nil {
		return nil, err
	}
	if c.replicas == nil {
		c.replicas = map[int]*CCM{}
	}
	c.replicas[number] = r
	return r, nil
}

// replicaFile is the name of a replica's file: ccm.log becomes ccm-2.log for the second.
func replicaFile(file string, number int) string {
	ext := filepath.Ext(file)
	return fmt.Sprintf("%s-%d%s", strings.TrimSuffix(file, ext), number+1, ext)
}

// freePort is one that nobody listens on at this address, nor at all of them.
func freePort(address string) (int, error) {
	all, err := net.Listen("tcp4", "0.0.0.0:0")
	if err != nil {
		return 0, err
	}
	port := all.Addr().(*net.TCPAddr).Port
	if err := all.Close(); err != nil {
		return 0, err
	}
	l, err := net.Listen("tcp4", net.JoinHostPort(address, strconv.Itoa(port)))
	if err != nil {
		return 0, err
	}
	return port, l.Close()
}
