package suite

// A driver without a CCM and without a lab: whoever writes one sees what works, and what it is not asked.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/ccmlab/ccmlab/lab/conformance"
	"github.com/ccmlab/ccmlab/lab/conformance/driver"
	"github.com/ccmlab/ccmlab/lab/conformance/driver/protocol"
	"github.com/ccmlab/ccmlab/lab/conformance/faultproxy"
	"github.com/ccmlab/ccmlab/lab/conformance/profiles"
	"github.com/ccmlab/ccmlab/lab/conformance/program"
	"github.com/ccmlab/ccmlab/lab/process"
	"github.com/ccmlab/ccmlab/lab/ui"
)

// Trying is what a driver is tried with.
type Trying struct {
	Driver *Driver
	// Values are what its templates can name. There is no lab: most are empty.
	Values program.Values
	// Calls are calls of the cloud, "GET /v1/servers", to be matched with the rules of its proxy, besides one for
	// each rule.
	Calls []string
}

// TriedDriver is what was seen of a driver.
type TriedDriver struct {
	Driver protocol.Driver `json:"driver"`
	// Unknown are features that the driver names and this suite does not know: mistyped, or of a later release.
	Unknown []string `json:"unknown,omitempty"`
	// Calls are what the proxy takes calls for.
	Calls []MatchedCall `json:"calls,omitempty"`
	// Lost are the features that there are not.
	Lost []LostFeature `json:"lost"`
}

// MatchedCall is a call of the cloud, and what the proxy takes it for.
type MatchedCall struct {
	Call string `json:"call"`
	// Rule is the number of the rule that fits, from 1 on; 0 for none, and then Thing is "".
	Rule  int               `json:"rule"`
	Thing conformance.Thing `json:"thing,omitempty"`
	// Meant is the number of the rule that the call was made for, where it is not that one which takes it.
	Meant int `json:"meant,omitempty"`
}

// LostFeature is a feature that a driver does not have, and what is not tested without it.
type LostFeature struct {
	Feature  conformance.Feature `json:"feature"`
	Core     []string            `json:"core,omitempty"`
	Extended int                 `json:"extended"`
}

// Try greets the driver, has it make an instance and terminate it, and lists the balancers. It says what the driver
// does not have.
func (t Trying) Try(ctx context.Context, steps *ui.Steps) (tried *TriedDriver, err error) {
	r := &tryRun{Trying: t, stop: func() error { return nil }}
	if r.dir, err = os.MkdirTemp("", "ccmlab-driver-check-"); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	for _, step := range []struct {
		title string
		do    func(context.Context) (string, error)
	}{
		{"hello", r.sayHello},
		{"proxy", r.openProxy},
		{"ccm", r.checkCCM},
		{"instance", r.createInstance},
		{"termination", r.terminateInstance},
		{"balancers", r.listBalancers},
	} {
		if err := steps.Do(step.title, func(func(string)) (string, error) { return step.do(ctx) }); err != nil {
			return nil, fmt.Errorf("%s: %w", step.title, err)
		}
	}
	described := r.cloud.Described()
	return &TriedDriver{
		Driver: described, Unknown: r.cloud.UnknownFeatures(), Calls: matchCalls(r.proxy, described.Proxy, t.Calls),
		Lost: lostFeatures(r.cloud.Features(), described.Unsupported),
	}, nil
}

// tryRun is one try of a driver.
type tryRun struct {
	Trying
	dir   string // of what the program writes
	cloud *driver.Cloud
	stop  func() error      // ends the program
	proxy *faultproxy.Proxy // nil if the driver asks for none
	made  conformance.Instance
}

func (r *tryRun) sayHello(ctx context.Context) (string, error) {
	host := process.Host{Lab: r.dir, KillWithStarter: true}
	cloud, stop, err := r.Driver.connect(ctx, host, filepath.Join(r.dir, "driver.log"), r.Values)
	if err != nil {
		return "", err
	}
	r.cloud, r.stop = cloud, stop
	said := cloud.Described()
	return strings.TrimSpace(said.Name+" "+said.Version) + fmt.Sprintf(", features: %d", len(said.Features)), nil
}

func (r *tryRun) openProxy(context.Context) (done string, err error) {
	asked := r.cloud.Described().Proxy
	if asked == nil {
		return "it asks for none", nil
	}
	r.proxy, err = openProxy(r.cloud, "127.0.0.1")
	return fmt.Sprintf("for %s, rules: %d", asked.Upstream, len(asked.Rules)), err
}

// checkCCM looks at how the CCM is to be started, as far as the driver says it.
func (r *tryRun) checkCCM(context.Context) (string, error) {
	said := r.cloud.Described().CCM
	if said == nil {
		return "it names none: --ccm of lab conformance says how it is started", nil
	}
	ccm := program.CCM{Path: said.Path, Args: said.Args, Env: said.Env, ConfigTemplate: said.Config}
	if said.Path == "" {
		return fmt.Sprintf("--ccm names the program; arguments: %d", len(said.Args)), ccm.CheckTemplates()
	}
	return fmt.Sprintf("%s, arguments: %d", said.Path, len(said.Args)), ccm.Check()
}

func (r *tryRun) createInstance(ctx context.Context) (done string, err error) {
	r.made, err = r.cloud.CreateInstance(ctx, conformance.InstanceSpec{Name: r.Values.ClusterName + "-check"})
	return fmt.Sprintf("%s runs, provider ID %s, %s", r.made.ID, r.made.ProviderID, r.made.InternalIPs), err
}

// terminateInstance is not interrupted: the instance would be left.
func (r *tryRun) terminateInstance(ctx context.Context) (string, error) {
	return r.made.ID + " has ended", r.cloud.TerminateInstance(context.WithoutCancel(ctx), r.made.ID)
}

func (r *tryRun) listBalancers(ctx context.Context) (string, error) {
	all, err := r.cloud.ListBalancers(ctx)
	return fmt.Sprintf("of the cluster: %d", len(all)), err
}

func (r *tryRun) close() error {
	var proxyErr error
	if r.proxy != nil {
		proxyErr = r.proxy.Close()
	}
	return errors.Join(proxyErr, r.stop(), os.RemoveAll(r.dir))
}

// placeholder matches a name in braces in a rule's path.
var placeholder = regexp.MustCompile(`\{[^}]*\}`)

// matchCalls says what the proxy takes each call for, and one call for each of its rules.
func matchCalls(proxy *faultproxy.Proxy, asked *protocol.Proxy, calls []string) (matched []MatchedCall) {
	if proxy == nil {
		return nil
	}
	match := func(method, path string, meant int) {
		rule, number := proxy.Match(method, path)
		m := MatchedCall{Call: method + " " + path, Rule: number, Thing: rule.Thing}
		if meant != number {
			m.Meant = meant
		}
		matched = append(matched, m)
	}
	for i, rule := range asked.Rules {
		path := placeholder.ReplaceAllString(rule.Path, "x")
		match(methodFor(proxy, rule, path, i+1), path, i+1)
	}
	for _, call := range calls {
		method, path, said := strings.Cut(call, " ")
		if !said {
			method, path = http.MethodGet, call
		}
		match(method, path, 0)
	}
	return matched
}

// methodFor is the rule's method. For a rule of any, it is one that no earlier rule takes, if there is one.
func methodFor(proxy *faultproxy.Proxy, rule protocol.ProxyRule, path string, number int) string {
	for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete} {
		if _, by := proxy.Match(method, path); rule.Method == "" && by == number {
			return method
		}
	}
	return cmp.Or(rule.Method, http.MethodGet)
}

// lostFeatures are those that a cloud lacks, if a test needs them.
func lostFeatures(have []conformance.Feature, unsupported conformance.Unsupported) (lost []LostFeature) {
	for _, f := range conformance.AllFeatures() {
		core, extended := profiles.TestsThatNeed(f)
		if unsupported.Lacks(f, have) && len(core)+extended > 0 {
			lost = append(lost, LostFeature{f, core, extended})
		}
	}
	return lost
}
