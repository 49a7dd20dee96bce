package suite

// A driver without a CCM and without a lab: whoever writes one sees what works, and what it is not asked.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/ccmlab/ccmlab/lab/conformance"
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
	// Headers are "NAME: VALUE", templates, of the calls of the cloud by which faults are tried: the CCM's credentials.
	Headers []string
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
	// Faults are those that leave something out of an answer, tried with answers of the cloud.
	Faults []TriedFault `json:"faults,omitempty"`
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

// TriedFault is a fault that was tried with an answer of the cloud.
type TriedFault struct {
	Call  string                `json:"call"`
	Rule  int                   `json:"rule"`
	Fault conformance.FaultKind `json:"fault"`
	// Made tells whether it has changed the answer; NotMade says why not, and is the rule's mistake unless Unknown.
	Made    bool   `json:"made"`
	NotMade string `json:"notMade,omitempty"`
	Unknown bool   `json:"unknown,omitempty"`
}

// LostFeature is a feature that a driver does not have, and what is not tested without it.
type LostFeature struct {
	Feature  conformance.Feature `json:"feature"`
	Core     []string            `json:"core,omitempty"`
	Extended int                 `json:"extended"`
}

// Try greets the driver, has it make an instance and terminate it, and lists the balancers. It tries the faults that
// change answers, and says what the driver does not have.
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
		{"changes", r.tryChanges},
		{"faults", r.tryFaults},
		{"termination", r.terminateInstance},
		{"balancers", r.listBalancers},
		{"made", r.checkMade},
	} {
		if err := steps.Do(step.title, func(func(string)) (string, error) { return step.do(ctx) }); err != nil {
			return nil, fmt.Errorf("%s: %w", step.title, err)
		}
	}
	described := r.cloud.Described()
	return &TriedDriver{
		Driver: described, Unknown: r.cloud.UnknownFeatures(), Calls: matchCalls(r.proxy, described.Proxy, t.Calls),
		Faults: r.faults, Lost: lostFeatures(r.cloud.Features(), described.Unsupported),
	}, nil
}

// tryRun is one try of a driver.
type tryRun struct {
	Trying
	dir   string // of what the program writes
	cloud *conformance.Client
	stop  func() error      // ends the program
	proxy *faultproxy.Proxy // nil if the driver asks for none
	made  conformance.Instance
	// balancer is a stranger's; nil if the cloud has none.
	balancer *conformance.Balancer
	// mistakes are told by checkMade, when what was made is gone.
	mistakes []error

	filled []string // Headers
	faults []TriedFault
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
	if r.filled, err = r.Values.Fill(r.Headers); err != nil {
		return "", err
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

// tryChanges sees whether what tests do behind the CCM's back takes place: everybody passes a test of a change that
// was not made. A mistake is told by checkMade.
func (r *tryRun) tryChanges(ctx context.Context) (string, error) {
	tried := 0
	try := func(needs conformance.Feature, change func() error) {
		if slices.Contains(r.cloud.Features(), needs) {
			tried++
			if err := change(); err != nil {
				r.mistakes = append(r.mistakes, fmt.Errorf("%s: %w", needs, err))
			}
		}
	}
	try(conformance.FeatureChangeAddresses, func() error {
		now, err := r.cloud.ChangeAddresses(ctx, r.made.ID)
		if err == nil && slices.Equal(now.InternalIPs, r.made.InternalIPs) &&
			slices.Equal(now.ExternalIPs, r.made.ExternalIPs) {
			err = fmt.Errorf("instance %s still has %v and %v", now.ID, now.InternalIPs, now.ExternalIPs)
		}
		return err
	})
	try(conformance.FeatureStrangers, func() error {
		made, err := r.cloud.CreateForeignBalancer(ctx, conformance.Name{Name: r.Values.ClusterName + "-check"})
		if err == nil {
			r.balancer = &made
		}
		return err
	})
	if r.balancer == nil {
		return fmt.Sprintf("tried: %d", tried), nil
	}
	id, name := r.balancer.ID, r.Values.ClusterName+"-renamed"
	try(conformance.FeatureRenameBalancer, func() error {
		err := r.cloud.RenameBalancer(ctx, id, conformance.Name{Name: name})
		return r.checkBalancer(ctx, err, func(b conformance.Balancer) bool { return b.Name == name })
	})
	try(conformance.FeatureChangeBalancer, func() error {
		listener := conformance.Listener{Protocol: "TCP", Port: 4242, TargetPort: 30042}
		err := r.cloud.ChangeBalancer(ctx, id, conformance.BalancerChange{
			Listeners: []conformance.Listener{listener}, Targets: []string{r.made.ID},
		})
		return r.checkBalancer(ctx, err, func(b conformance.Balancer) bool {
			return len(b.Listeners) == 0 || b.Listeners[0].Port == listener.Port
		})
	})
	return fmt.Sprintf("tried: %d", tried), nil
}

// checkBalancer returns an error unless a change that returned err has left the balancer as it was asked to.
func (r *tryRun) checkBalancer(ctx context.Context, err error, is func(conformance.Balancer) bool) error {
	if err != nil {
		return err
	}
	now, there, err := r.cloud.GetBalancer(ctx, r.balancer.ID)
	if err == nil && (!there || !is(now)) {
		err = fmt.Errorf("balancer %s is not as it was asked to be: %+v", r.balancer.ID, now)
	}
	return err
}

// removeBalancer deletes the stranger's balancer, and sees whether it is gone.
func (r *tryRun) removeBalancer(ctx context.Context) error {
	if r.balancer == nil {
		return nil
	}
	err := r.cloud.DeleteBalancer(ctx, r.balancer.ID)
	if _, there, findErr := r.cloud.GetBalancer(ctx, r.balancer.ID); err == nil && findErr == nil && there {
		err = fmt.Errorf("balancer %s was deleted, and is still there", r.balancer.ID)
	}
	return err
}

// tryFaults makes each fault that leaves something out of the answer to a call that reads: of a list, or of the
// instance that was made. A mistake is told by checkMade.
func (r *tryRun) tryFaults(ctx context.Context) (string, error) {
	if r.proxy == nil {
		return "there is no proxy", nil
	}
	for i, rule := range r.cloud.Described().Proxy.Rules {
		path := rule.Path
		if rule.Thing == conformance.Instances {
			path = placeholder.ReplaceAllLiteralString(path, url.PathEscape(r.made.ID))
		}
		if rule.Method != http.MethodGet || strings.Contains(path, "{") {
			continue
		}
		for _, kind := range r.proxy.EditingKinds(i + 1) {
			tried := TriedFault{Call: rule.Method + " " + path, Rule: i + 1, Fault: kind}
			fault := conformance.Fault{Kind: kind, On: []conformance.Thing{rule.Thing}}
			tried.NotMade, tried.Unknown = r.tryFault(ctx, fault, path)
			tried.Made = tried.NotMade == ""
			if r.faults = append(r.faults, tried); kind == conformance.FaultEmptyList && tried.Unknown {
				break // There is nothing of which anything could be left out.
			}
		}
	}
	made := slices.DeleteFunc(slices.Clone(r.faults), func(f TriedFault) bool { return !f.Made })
	return fmt.Sprintf("in answers: tried %d, made %d", len(r.faults), len(made)), nil
}

// tryFault returns why the fault does not change the answer to a call; unknown if that need not be the rule's mistake.
func (r *tryRun) tryFault(
	ctx context.Context, fault conformance.Fault, path string,
) (notMade string, unknown bool) {
	injection, err := r.proxy.InjectFault(ctx, fault)
	if err != nil {
		return err.Error(), false
	}
	defer func() { _ = injection.Lift(ctx) }() // It cannot fail.
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.proxy.URL()+path, http.NoBody)
	if err != nil {
		return err.Error(), false
	}
	for _, header := range r.filled {
		name, value, _ := strings.Cut(header, ":")
		req.Header.Set(name, strings.TrimSpace(value))
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err.Error(), true
	}
	_ = resp.Body.Close()
	if resp.StatusCode >= http.StatusMultipleChoices {
		return "the cloud answers " + resp.Status, true
	}
	hits, err := injection.Hits(ctx)
	switch {
	case hits > 0:
		return "", false
	case err == nil:
		return "another rule takes the call", false
	}
	return err.Error(), fault.Kind == conformance.FaultEmptyList && faultproxy.IsUnchanged(err)
}

// checkMade returns an error if a change was not made, or a rule says wrongly what its fault is to leave out.
func (r *tryRun) checkMade(context.Context) (string, error) {
	for _, f := range r.faults {
		if !f.Made && !f.Unknown {
			r.mistakes = append(r.mistakes, fmt.Errorf("rule %d: %s", f.Rule, f.NotMade))
		}
	}
	return "changes and faults that could be seen", errors.Join(r.mistakes...)
}

// terminateInstance is not interrupted: the instance would be left.
func (r *tryRun) terminateInstance(ctx context.Context) (string, error) {
	ctx = context.WithoutCancel(ctx)
	r.mistakes = append(r.mistakes, r.removeBalancer(ctx))
	return r.made.ID + " has ended", r.cloud.TerminateInstance(ctx, r.made.ID)
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
