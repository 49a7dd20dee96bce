package conformance

// A CCM that is a program on this machine: which flags, environment and
// configuration it is given, and how it is started and stopped.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"text/template"
	"time"

	"github.com/ccmlab/ccmlab/lab/atomicfile"
	"github.com/ccmlab/ccmlab/lab/process"
)

// ComponentCCM is the program's name among the lab's processes, by which the
// lab ends what a suite that was killed left behind.
const ComponentCCM = "conformance-ccm"

// Values are what a Program's templates can name, as {{.Kubeconfig}}.
type Values struct {
	// Kubeconfig is a file: the way to the cluster.
	Kubeconfig string
	// CloudConfig is a file: the program's ConfigTemplate filled in, else what
	// the lab gives its own CCM.
	CloudConfig string
	// ClusterName is the cluster's name, with which the cloud marks what is its.
	ClusterName string
	// ClusterCIDR is the range of pods' addresses.
	ClusterCIDR string
	// CloudURL is where the cloud's API is.
	CloudURL string
	// TokenFile holds the token that the CCM shows to the cloud.
	TokenFile string
	// Project is the cloud's project, or account, that the cluster is in.
	Project string
	// CAFile holds the certificate that signed the cloud's; "" where the cloud
	// speaks plain HTTP.
	CAFile string
	// Address and Port are free to listen on, for health and metrics.
	Address string
	Port    int
}

// ValueNames are the fields of Values, as templates name them, for help and
// messages.
func ValueNames() string {
	var names []string
	for _, f := range reflect.VisibleFields(reflect.TypeFor[Values]()) {
		names = append(names, "."+f.Name)
	}
	return strings.Join(names, ", ")
}

// Program is a CCM that is a program. It implements CCM. Args, Env and
// ConfigTemplate are templates (text/template) over Values.
type Program struct {
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
	// LogFile gets what it says, appended.
	LogFile string
	// Noise, unless nil, matches lines that Log leaves out.
	Noise *regexp.Regexp

	component string // "" is ComponentCCM

	turn     sync.Mutex // held while it is being started or stopped
	mu       sync.Mutex // guards what follows
	running  *process.Process
	frozen   *process.Process // the last one that ever was
	ended    string           // how it last ended by itself
	crashes  chan struct{}
	replicas map[int]*Program // others of the kind, by number
}

var (
	_ CCM  = (*Program)(nil)
	_ Logs = (*Program)(nil)
)

// Name is what a report calls it.
func (p *Program) Name() string { return filepath.Base(p.Path) }

// Check says all that is wrong with the program and its templates, before there
// is a lab to run it in.
func (p *Program) Check() error {
	errs := []error{executable(p.Path)}
	// With everything there and with nothing there: both branches of an if.
	for name, text := range p.templates() {
		_, err := fill(text, everyValue())
		if err == nil {
			_, err = fill(text, Values{})
		}
		if err != nil {
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

// templates yields them with what to call each.
func (p *Program) templates() func(yield func(name, text string) bool) {
	return func(yield func(name, text string) bool) {
		for i, arg := range p.Args {
			if !yield(fmt.Sprintf("argument %d, %q", i+1, arg), arg) {
				return
			}
		}
		for _, kv := range p.Env {
			if !yield(fmt.Sprintf("environment %q", kv), kv) {
				return
			}
		}
		if p.ConfigTemplate != "" {
			yield("the CCM's configuration", p.ConfigTemplate)
		}
	}
}

func executable(path string) error {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return fmt.Errorf("the CCM: %w", err)
	case !filepath.IsAbs(path):
		return fmt.Errorf("the CCM: %s is not an absolute path", path)
	case !info.Mode().IsRegular() || info.Mode()&0o111 == 0:
		return fmt.Errorf("the CCM: %s is not an executable file", path)
	}
	return nil
}

// everyValue has something in every field.
func everyValue() Values {
	var v Values
	all := reflect.ValueOf(&v).Elem()
	for i := range all.NumField() {
		if f := all.Field(i); f.Kind() == reflect.String {
			f.SetString("x")
		} else {
			f.SetInt(1)
		}
	}
	return v
}

func fill(text string, v Values) (string, error) {
	t, err := template.New("template").Parse(text)
	if err != nil {
		return "", err
	}
	var out strings.Builder
	if err := t.Execute(&out, v); err != nil {
		_, what, _ := strings.Cut(err.Error(), " at ") // Before that it says where, which the caller knows better.
		return "", fmt.Errorf("%s; the fields are %s", what, ValueNames())
	}
	return out.String(), nil
}

func fillAll(texts []string, v Values) ([]string, error) {
	var filled []string
	for _, text := range texts {
		s, err := fill(text, v)
		if err != nil {
			return nil, err
		}
		filled = append(filled, s)
	}
	return filled, nil
}

// Start writes the configuration and returns when the program runs, which does
// not say that it will for long.
func (p *Program) Start(ctx context.Context) error {
	p.turn.Lock()
	defer p.turn.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running != nil || ctx.Err() != nil {
		return ctx.Err()
	}
	spec, err := p.spec()
	if err != nil {
		return err
	}
	run, err := p.Host.Start(spec)
	if err != nil {
		return err
	}
	p.running = run
	go p.watch(run)
	return nil
}

// spec fills the templates in.
func (p *Program) spec() (process.Spec, error) {
	spec := process.Spec{Component: cmp.Or(p.component, ComponentCCM), Path: p.Path, LogFile: p.LogFile}
	var err1, err2, err3 error
	spec.Args, err1 = fillAll(p.Args, p.Values)
	spec.Env, err2 = fillAll(p.Env, p.Values)
	if p.ConfigTemplate != "" {
		var config string
		if config, err3 = fill(p.ConfigTemplate, p.Values); err3 == nil {
			err3 = atomicfile.Write(p.Values.CloudConfig, []byte(config))
		}
	}
	return spec, errors.Join(err1, err2, err3)
}

// CommandLine fills the templates of the arguments in.
func (p *Program) CommandLine() ([]string, error) { return fillAll(p.Args, p.Values) }

// watch waits for the program to end, and tells unless Stop, Kill or Freeze was
// why.
func (p *Program) watch(run *process.Process) {
	_ = run.Wait(context.Background())
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running != run {
		return
	}
	p.running = nil
	p.ended = "it ended by itself: exit status 0"
	if err := run.Exit(); err != nil {
		p.ended = fmt.Sprintf("it ended by itself: %v", err)
	}
	if p.frozen == run {
		return
	}
	select {
	case p.told() <- struct{}{}:
	default: // Nobody has asked about those before.
	}
}

// stopGrace is how long it has to end when it is asked to.
const stopGrace = 5 * time.Second

// Stop asks it to end, and kills it if it does not, or if ctx ends. One that was
// frozen is killed: it might not hear.
func (p *Program) Stop(ctx context.Context) error {
	p.turn.Lock()
	defer p.turn.Unlock()
	run, grace := p.letGo(), stopGrace
	if run == nil {
		return nil
	}
	if run == p.frozen {
		grace = 0
	}
	return process.Stop(ctx, grace, run)
}

// Crashed gets a value each time it ends without Stop.
func (p *Program) Crashed() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.told()
}

func (p *Program) told() chan struct{} {
	if p.crashes == nil {
		p.crashes = make(chan struct{}, 2*maxCrashes)
	}
	return p.crashes
}

// manyLines have among them enough that are no noise.
const manyLines = 1000

// Log is the last lines of what it has said, and how it ended if it did.
func (p *Program) Log(lines int) []string {
	said, err := process.Tail(p.LogFile, manyLines)
	if err != nil {
		said = []string{"its log cannot be read: " + err.Error()}
	}
	said = slices.DeleteFunc(said, func(line string) bool { return p.Noise != nil && p.Noise.MatchString(line) })
	said = said[max(0, len(said)-lines):]
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running == nil && p.ended != "" {
		said = append(said, p.ended)
	}
	return said
}

// LogFiles implements Logs.
func (p *Program) LogFiles() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	files := []string{p.LogFile}
	for _, number := range slices.Sorted(maps.Keys(p.replicas)) {
		files = append(files, p.replicas[number].LogFile)
	}
	return files
}
