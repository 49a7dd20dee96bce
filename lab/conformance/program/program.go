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
	"os"
	"path/filepath"
	"regexp"
	"slices"
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

var (
	_ conformance.CCM       = (*CCM)(nil)
	_ conformance.FlagTaker = (*CCM)(nil)
	_ conformance.Logs      = (*CCM)(nil)
)

// Name is what a report calls it.
func (p *CCM) Name() string { return filepath.Base(p.Path) }

// Check says all that is wrong with the program and its templates, before there
// is a lab to run it in.
func (p *CCM) Check() error {
	var errs []error
	if err := CheckExecutable(p.Path); err != nil {
		errs = append(errs, fmt.Errorf("the CCM: %w", err))
	}
	for name, text := range p.allTemplates() {
		if err := CheckTemplate(text); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
		}
	}
	for _, kv := range p.Env {
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
func (p *CCM) Start(ctx context.Context) error {
	p.lifecycleMu.Lock()
	defer p.lifecycleMu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running != nil || ctx.Err() != nil {
		return ctx.Err()
	}
	spec, err := p.processSpec()
	if err != nil {
		return err
	}
	run, err := p.Host.Start(spec)
	if err != nil {
		return err
	}
	p.running = run
	go p.awaitExit(run)
	return nil
}

// processSpec fills the templates in, and writes the configuration file.
func (p *CCM) processSpec() (process.Spec, error) {
	spec := process.Spec{Component: cmp.Or(p.component, Component), Path: p.Path, LogFile: p.LogFile}
	var err1, err2, err3 error
	values := p.Values
	values.ClusterName = cmp.Or(p.clusterName, values.ClusterName)
	spec.Args, err1 = values.Fill(p.Args)
	spec.Args = append(spec.Args, p.extraFlags...)
	spec.Env, err2 = values.Fill(p.Env)
	if p.ConfigTemplate != "" {
		var config string
		if config, err3 = fillTemplate(p.ConfigTemplate, values); err3 == nil {
			err3 = atomicfile.Write(p.Values.CloudConfig, []byte(config))
		}
	}
	return spec, errors.Join(err1, err2, err3)
}

// CommandLine fills the templates of the arguments in.
func (p *CCM) CommandLine() ([]string, error) { return p.Values.Fill(p.Args) }

// awaitExit waits for the program to end, and reports a crash unless Stop, Kill or Freeze ended it.
func (p *CCM) awaitExit(run *process.Process) {
	_ = run.Wait(context.Background())
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running != run {
		return
	}
	p.running = nil
	p.exitMessage = "it ended by itself: exit status 0"
	if err := run.Exit(); err != nil {
		p.exitMessage = fmt.Sprintf("it ended by itself: %v", err)
	}
	if p.frozen == run {
		return
	}
	select {
	case p.crashChannel() <- struct{}{}:
	default: // Nobody has asked about those before.
	}
}

// crashBuffer is how many ends that nobody has asked about are kept.
const crashBuffer = 10

// stopGrace is how long it has to end when it is asked to.
const stopGrace = 5 * time.Second

// Stop asks it to end, and kills it if it does not, or if ctx ends. One that was
// frozen is killed: it might not hear.
func (p *CCM) Stop(ctx context.Context) error {
	p.lifecycleMu.Lock()
	defer p.lifecycleMu.Unlock()
	run, grace := p.releaseProcess(), stopGrace
	if run == nil {
		return nil
	}
	if run == p.frozen {
		grace = 0
	}
	return process.Stop(ctx, grace, run)
}

// Crashed gets a value each time it ends without Stop.
func (p *CCM) Crashed() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.crashChannel()
}

func (p *CCM) crashChannel() chan struct{} {
	if p.crashes == nil {
		p.crashes = make(chan struct{}, crashBuffer)
	}
	return p.crashes
}

// logTailLines have among them enough that are no noise.
const logTailLines = 1000

// Log is the last lines of what it has said, and how it ended if it did.
func (p *CCM) Log(lines int) []string {
	said, err := process.Tail(p.LogFile, logTailLines)
	if err != nil {
		said = []string{"its log cannot be read: " + err.Error()}
	}
	said = slices.DeleteFunc(said, func(line string) bool { return p.Noise != nil && p.Noise.MatchString(line) })
	said = said[max(0, len(said)-lines):]
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running == nil && p.exitMessage != "" {
		said = append(said, p.exitMessage)
	}
	return said
}

// LogFiles implements Logs.
func (p *CCM) LogFiles() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	files := []string{p.LogFile}
	for _, number := range slices.Sorted(maps.Keys(p.replicas)) {
		files = append(files, p.replicas[number].LogFile)
	}
	return files
}

// SetExtraFlags implements FlagTaker. Of a flag that is given twice the last one counts.
func (p *CCM) SetExtraFlags(flags ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.extraFlags = flags
}

// Running implements Replica.
func (p *CCM) Running() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.running != nil
}

// Kill implements Replica.
func (p *CCM) Kill(ctx context.Context) error {
	p.lifecycleMu.Lock()
	defer p.lifecycleMu.Unlock()
	run := p.releaseProcess()
	if run == nil {
		return nil
	}
	if err := run.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	return run.Wait(ctx)
}

// Freeze implements Replica.
func (p *CCM) Freeze() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running == nil {
		return errors.New("it does not run")
	}
	p.frozen = p.running
	return p.running.Signal(syscall.SIGSTOP)
}

// Thaw implements Replica.
func (p *CCM) Thaw() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running == nil {
		return errors.New("it does not run")
	}
	return p.running.Signal(syscall.SIGCONT)
}

// releaseProcess returns the running process and forgets it, so that its end is no crash.
func (p *CCM) releaseProcess() *process.Process {
	p.mu.Lock()
	defer p.mu.Unlock()
	run := p.running
	p.running, p.exitMessage = nil, ""
	return run
}

// CanRenameCluster implements conformance.ClusterRenamer: one of the program's templates names the
// cluster.
func (p *CCM) CanRenameCluster() bool {
	for _, text := range p.allTemplates() {
		if strings.Contains(text, ".ClusterName") {
			return true
		}
	}
	return false
}

// RenameCluster implements conformance.ClusterRenamer. Replicas keep the name that they have.
func (p *CCM) RenameCluster(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clusterName = name
}
