package cloud

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"slices"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/store"
	"github.com/ccmlab/ccmlab/fakecloud/store/db"
)

const (
	maxSourceRanges = 100
	maxAffinity     = 24 * 60 * 60 // seconds, as all that follow

	defaultInterval, maxInterval   = 5, 300
	defaultTimeout, maxTimeout     = 2, 60
	defaultThreshold, maxThreshold = 2, 10
	maxPath                        = 1024
)

// CreateLoadBalancer gives the new balancer in state provisioning. Its public addresses are
// final.
func (c *Cloud) CreateLoadBalancer(
	ctx context.Context,
	p Project,
	spec api.LoadBalancerCreate,
) (LoadBalancer, Outcome, error) {
	lb, rangesErr, checkErr := balancerOf(spec)
	err := joinRefusals(
		checkAddressChoice(spec), c.checkFamilies(spec.IPFamilies), checkListeners(spec.Listeners), rangesErr,
		lb.checkOptions(), c.checkKind(lb.Kind), lb.checkFeatures(),
		checkSize(lb.Type, lb.Listeners, len(lb.AllTargets())),
		checkDrain(lb.DrainSeconds, lb.Listeners), checkErr, checkRecords(spec.Records), checkTags(spec.Tags),
		c.checkHealthChecksAllowed(spec.HealthCheck, spec.Listeners),
	)
	if err != nil {
		return LoadBalancer{}, Outcome{}, err
	}
	create := func(ctx context.Context, tx *changeTx) (LoadBalancer, error) {
		return c.newLoadBalancer(ctx, tx, p, spec, lb)
	}
	return createWithOperation(ctx, c, p, "createLoadBalancer", create)
}

// balancerOf gives the balancer asked for, with defaults for what is left zero, and what is wrong with its source
// ranges and its health check. Its metadata, addresses and state are yet to come.
func balancerOf(spec api.LoadBalancerCreate) (lb LoadBalancer, rangesErr, checkErr error) {
	kind := cmp.Or(spec.Kind, api.KindProxy)
	lb.LoadBalancer = api.LoadBalancer{
		IPFamilies: []api.IPFamily{api.IPv4}, Type: cmp.Or(spec.Type, api.LoadBalancerUnlimited), Kind: kind,
		Scheme: cmp.Or(spec.Scheme, api.SchemePublic), Algorithm: cmp.Or(spec.Algorithm, algorithmsOf(kind)[0]),
		Listeners: withCheckDefaults(spec.Listeners), Targets: withTargetDefaults(spec.Targets),
		ClientAffinitySeconds: spec.ClientAffinitySeconds, IdleTimeoutSeconds: spec.IdleTimeoutSeconds,
		DrainSeconds: spec.DrainSeconds, DeletionProtection: api.ValueOf(spec.DeletionProtection),
	}
	if slices.Contains(spec.IPFamilies, api.IPv6) {
		lb.IPFamilies = []api.IPFamily{api.IPv4, api.IPv6}
	}
	lb.SourceRanges, rangesErr = checkRanges(spec.SourceRanges)
	lb.HealthCheck, checkErr = withDefaultsOfCheck(api.ValueOf(spec.HealthCheck))
	return lb, rangesErr, checkErr
}

// newLoadBalancer makes the checks that need the store, and inserts a balancer.
func (c *Cloud) newLoadBalancer(
	ctx context.Context,
	tx *changeTx,
	p Project,
	spec api.LoadBalancerCreate,
	lb LoadBalancer,
) (LoadBalancer, error) {
	if err := c.withinQuota(ctx, tx.Tx, p, QuotaLoadBalancers); err != nil {
		return LoadBalancer{}, err
	}
	address, reserved, addressErr := c.balancerAddress(ctx, tx.Tx, p, spec)
	address6, address6Err := c.balancerAddress6(tx.Tx, spec)
	err := joinRefusals(
		checkBalancerName(ctx, tx.Tx, p, "", spec.Name), addressErr, address6Err,
		c.checkTargets(ctx, tx.Tx, p, "targets", spec.Targets), c.checkOwnTargets(ctx, tx.Tx, p, nil, spec.Listeners),
		checkCertificates(ctx, tx.Tx, p, spec.Listeners),
	)
	if err != nil {
		return LoadBalancer{}, err
	}
	metadata, err := c.newMetadata(ctx, tx, p, "lb", spec.Name, spec.Tags)
	if err != nil {
		return LoadBalancer{}, err
	}
	rule, _ := findRule(LoadBalancerRules, loadBalancerNone, Create)
	metadata.Records = spec.Records
	lb.Metadata, lb.Region, lb.State, lb.due = metadata, c.cfg.Region, rule.To, c.stateEnd(tx.now, rule.Wait)
	lb.Address, lb.IPv6Address = address, address6
	if lb, err = c.withNetwork(ctx, tx.Tx, p, lb, &spec.NetworkID, &spec.PrivateAddress); err != nil {
		return LoadBalancer{}, err
	}
	if reserved == nil {
		return lb, insertResource(ctx, tx, lb)
	}
	lb.AddressID = reserved.ID
	if err := insertResource(ctx, tx, lb); err != nil {
		return LoadBalancer{}, err
	}
	return lb, holdAddress(ctx, tx, reserved, api.AddressHolder{Kind: api.HolderLoadBalancer, ID: lb.ID})
}

func checkListeners(listeners []Listener) error {
	type key struct {
		datagrams bool
		port      int
	}
	byPort := map[key]int{}
	var errs []error
	for i, l := range listeners {
		errs = append(errs, checkListener(l, fmt.Sprintf("listeners.%d", i)))
		k := key{l.Protocol == api.ProtocolUDP, l.Port}
		if j, twice := byPort[k]; twice {
			errs = append(errs, refuse(
				ListenerConflict, "listeners %d and %d both want %s port %d: give each its own port", j, i,
				l.Protocol, l.Port,
			).withField(fmt.Sprintf("listeners.%d.port", i), "is the port of listeners.%d too", j))
			continue
		}
		byPort[k] = i
	}
	return joinRefusals(errs...)
}

func checkListener(l Listener, field string) error {
	if !l.Protocol.Valid() || !validPort(l.Port) || !validPort(l.TargetPort) {
		return refuse(InvalidRequest, "%s: want protocol tcp, udp, http, https or tls and ports from 1 to 65535", field).
			withField(field, "is not valid")
	}
	_, checkErr := withDefaultsOfCheck(l.HealthCheck)
	return joinRefusals(
		checkProxyProtocol(l, field+".proxyProtocol"), checkConnectionLimit(l, field+".connectionLimit"),
		prefixFields(field+".", checkErr), checkHasCertificates(l, field+".certificateIds"), checkHTTPOptions(l, field+"."),
	)
}

func checkHasCertificates(l Listener, field string) error {
	switch isTLS := l.Protocol.IsTLS(); {
	case isTLS && len(l.CertificateIDs) == 0:
		return refuse(InvalidRequest, "port %d: %s needs a certificate", l.Port, l.Protocol).withField(field, "is missing")
	case !isTLS && len(l.CertificateIDs) > 0:
		return refuse(
			InvalidRequest, "port %d: only https and tls have certificates: leave them out for %s", l.Port, l.Protocol,
		).withField(field, "is for https and tls only")
	}
	return nil
}

// checkCertificates refuses certificates of listeners that are none of the project's.
func checkCertificates(ctx context.Context, tx *store.Tx, p Project, listeners []Listener) error {
	var errs []error
	for i, l := range listeners {
		for j, id := range l.CertificateIDs {
			_, err := loadResource[Certificate](ctx, tx, p, id)
			if refused := (*Error)(nil); errors.As(err, &refused) {
				err = refuse(UnknownCertificate, "port %d: no certificate %q in project %q", l.Port, id, p.Name).
					withField(fmt.Sprintf("listeners.%d.certificateIds.%d", i, j), "is not a certificate of the project")
			}
			errs = append(errs, err)
		}
	}
	return joinRefusals(errs...)
}

// withTargetDefaults gives targets without weights that are the default.
func withTargetDefaults(targets []api.Target) []api.Target {
	out := append([]api.Target{}, targets...)
	for i := range out {
		if out[i].Weight == 1 {
			out[i].Weight = 0
		}
	}
	return out
}

// withCheckDefaults gives valid listeners with defaults for what their health checks leave zero, and of their targets.
func withCheckDefaults(listeners []Listener) []Listener {
	out := append([]Listener{}, listeners...)
	for i := range out {
		if check, err := withDefaultsOfCheck(out[i].HealthCheck); err == nil && check != nil {
			out[i].HealthCheck = *check
		}
		if out[i].Targets != nil {
			out[i].Targets = withTargetDefaults(out[i].Targets)
		}
	}
	return out
}

func validPort(port int) bool { return port >= 1 && port <= 65535 }

func checkProxyProtocol(l Listener, field string) error {
	switch {
	case l.ProxyProtocol == "":
		return nil
	case l.ProxyProtocol != api.ProxyProtocolV1 && l.ProxyProtocol != api.ProxyProtocolV2:
		return refuse(InvalidRequest, "no PROXY protocol %q: choose v1 or v2, or leave it out", l.ProxyProtocol).
			withField(field, "is not a version of it")
	case l.Protocol == api.ProtocolUDP:
		return refuse(
			InvalidRequest, "port %d: only tcp carries the PROXY protocol: leave it out for %s", l.Port, l.Protocol,
		).withField(field, "is for tcp only")
	}
	return nil
}

// checkRanges refuses what are no source ranges, and drops duplicates.
func checkRanges(cidrs []string) ([]string, error) {
	if len(cidrs) > maxSourceRanges {
		return nil, refuse(InvalidRequest, "%d source ranges: at most %d are allowed", len(cidrs), maxSourceRanges).
			withField("sourceRanges", "are too many")
	}
	out := []string{}
	var errs []error
	for i, s := range cidrs {
		r, err := parseRange(fmt.Sprintf("sourceRanges.%d", i), s)
		errs = append(errs, err)
		if !slices.Contains(out, r.String()) {
			out = append(out, r.String())
		}
	}
	return out, joinRefusals(errs...)
}

// withDefaultsOfCheck fills in defaults for fields left zero and checks the result,
// which is nil if there is to be no health check.
func withDefaultsOfCheck(h HealthCheck) (*HealthCheck, error) {
	if h == (HealthCheck{}) || h == (HealthCheck{Protocol: api.HealthCheckNone}) {
		return nil, nil
	}
	full := h
	if full.Protocol.IsHTTP() {
		full.Path = cmp.Or(full.Path, "/")
	}
	full.IntervalSeconds = cmp.Or(full.IntervalSeconds, defaultInterval)
	full.TimeoutSeconds = cmp.Or(full.TimeoutSeconds, min(defaultTimeout, full.IntervalSeconds))
	full.HealthyThreshold = cmp.Or(full.HealthyThreshold, defaultThreshold)
	full.UnhealthyThreshold = cmp.Or(full.UnhealthyThreshold, defaultThreshold)
	return &full, checkHealthCheck(full)
}

func checkHealthCheck(h HealthCheck) error {
	var errs []error
	want := func(ok bool, field, format string, args ...any) {
		if !ok {
			errs = append(errs, refuse(InvalidRequest, "the health check's "+field+" "+format, args...).
				withField("healthCheck."+field, format, args...))
		}
	}
	_, pathErr := url.ParseRequestURI(h.Path)
	_, codesErr := parseCodes(h.ExpectedCodes)
	switch h.Protocol {
	case api.HealthCheckNone:
		want(false, "protocol", "is none: leave out the rest, or choose tcp, http or https")
		return joinRefusals(errs...)
	case api.HealthCheckTCP:
		want(h.Path == "", "path", "is for http and https: leave it out")
		want(h.ExpectedCodes == "", "expectedCodes", "are for http and https: leave them out")
		want(h.Host == "", "host", "is for http and https: leave it out")
		want(h.Response == "", "response", "is for http and https: leave it out")
	case api.HealthCheckHTTP, api.HealthCheckHTTPS:
		want(pathErr == nil && h.Path[0] == '/' &&
			len(h.Path) <= maxPath, "path", "must begin with \"/\" and be a valid URL path")
		want(codesErr == nil, "expectedCodes", "must be statuses and ranges of them, such as 200-299,301: %v", codesErr)
	default:
		want(false, "protocol", "%q is unknown: choose tcp, http, https or none", h.Protocol)
	}
	want(validPort(h.Port), "port", "must be from 1 to 65535")
	want(h.IntervalSeconds >= 1 && h.IntervalSeconds <= maxInterval, "intervalSeconds", "must be from 1 to %d", maxInterval)
	want(
		h.TimeoutSeconds >= 1 && h.TimeoutSeconds <= min(maxTimeout, h.IntervalSeconds), "timeoutSeconds",
		"must be from 1 to %d, and not above the interval", maxTimeout,
	)
	want(h.HealthyThreshold >= 1 &&
		h.HealthyThreshold <= maxThreshold, "healthyThreshold", "must be from 1 to %d", maxThreshold)
	want(h.UnhealthyThreshold >= 1 &&
		h.UnhealthyThreshold <= maxThreshold, "unhealthyThreshold", "must be from 1 to %d", maxThreshold)
	return joinRefusals(errs...)
}

// checkBalancerName refuses a name that is not valid, or that another balancer than self
// has.
func checkBalancerName(ctx context.Context, tx *store.Tx, p Project, self, name string) error {
	if err := checkResourceName(name); err != nil {
		return err
	}
	return checkUnused(ctx, tx, api.ResourceLoadBalancer, p, self, name)
}

// checkOwnTargets checks the targets of listeners that the balancer does not have yet.
func (c *Cloud) checkOwnTargets(ctx context.Context, tx *store.Tx, p Project, has, listeners []Listener) error {
	var errs []error
	for i, l := range listeners {
		if !slices.ContainsFunc(has, l.Equal) {
			errs = append(errs, c.checkTargets(ctx, tx, p, fmt.Sprintf("listeners.%d.targets", i), l.Targets))
		}
	}
	return joinRefusals(errs...)
}

const maxWeight = 256

// checkTargets refuses targets that are not instances of the project, are terminated, have an
// address outside of the target ranges, or are named twice. At is the field that has them.
func (c *Cloud) checkTargets(ctx context.Context, tx *store.Tx, p Project, at string, targets []api.Target) error {
	named := make(map[string]bool, len(targets))
	var errs []error
	for i, t := range targets {
		field, what := fmt.Sprintf("%s.%d.instanceId", at, i), "instance"
		if t.IP != "" {
			field, what = fmt.Sprintf("%s.%d.ip", at, i), "address"
		}
		var err error
		switch {
		case (t.InstanceID == "") == (t.IP == ""):
			err = refuse(InvalidRequest, "target %d: give either instanceId or ip", i).withField(field, "or the other is to be given")
		case t.Weight < 0 || t.Weight > maxWeight:
			err = refuse(InvalidRequest, "target %d: want a weight from 1 to %d", i, maxWeight).
				withField(fmt.Sprintf("%s.%d.weight", at, i), "is out of range")
		case named[t.Name()]:
			err = refuse(InvalidRequest, "%s %q is a target twice: name it once", what, t.Name()).withField(field, "is named twice")
		case t.IP != "":
			err = c.checkTargetIP(t.IP, field)
		default:
			err = c.checkTargetInstance(ctx, tx, p, i, t.InstanceID, field)
		}
		named[t.Name()] = true
		errs = append(errs, err)
	}
	return joinRefusals(errs...)
}

func (c *Cloud) checkTargetIP(text, field string) error {
	a, err := netip.ParseAddr(text)
	if err != nil || !a.Is4() {
		return refuse(InvalidRequest, "target %q: want an IPv4 address", text).withField(field, "is not an IPv4 address")
	}
	return c.checkTargetAddress(a, field)
}

func (c *Cloud) checkTargetInstance(
	ctx context.Context,
	tx *store.Tx,
	p Project,
	i int,
	id, field string,
) error {
	in, err := loadResource[Instance](ctx, tx, p, id)
	var refused *Error
	switch {
	case errors.As(err, &refused):
		return refuse(UnknownInstance, "target %d: no instance %q in project %q", i, id, p.Name).
			withField(field, "is not an instance of the project")
	case err == nil && in.State == api.InstanceTerminated:
		return refuse(UnknownInstance, "target %d: instance %q is terminated", i, id).
			withField(field, "is terminated")
	case err == nil:
		return c.checkTargetAddress(in.Address, field)
	}
	return err
}

// GetLoadBalancer reads one balancer.
func (c *Cloud) GetLoadBalancer(ctx context.Context, p Project, id string) (LoadBalancer, error) {
	return getResource[LoadBalancer](ctx, c, p, id)
}

// GetDeletedLoadBalancer gives a balancer as it was when it was deleted, by its serial number, while the event of
// that is kept.
func (c *Cloud) GetDeletedLoadBalancer(ctx context.Context, p Project, serial int64) (LoadBalancer, error) {
	return readOne(ctx, c, func(tx *store.Tx) (lb LoadBalancer, err error) {
		body, err := tx.DeletedResource(ctx, db.DeletedResourceParams{
			ProjectID: p.ID, Resource: string(api.ResourceLoadBalancer), Serial: serial,
		})
		if errors.Is(err, sql.ErrNoRows) {
			return lb, refuse(NotFound, "no load balancer of number %d was deleted in project %q lately", serial, p.Name)
		}
		if err == nil {
			err = json.Unmarshal([]byte(body), &lb)
		}
		return lb, err
	})
}

// ListLoadBalancers gives one page, oldest first, and whether more follow.
func (c *Cloud) ListLoadBalancers(
	ctx context.Context,
	p Project,
	f Filter,
) (page []LoadBalancer, more bool, err error) {
	return listResources[LoadBalancer](ctx, c, p, f)
}

// UpdateLoadBalancer replaces what is given. An update that changes nothing leaves version
// and state alone.
func (c *Cloud) UpdateLoadBalancer(
	ctx context.Context,
	p Project,
	id string,
	u api.LoadBalancerUpdate,
) (LoadBalancer, Outcome, error) {
	var listeners []Listener
	replaceIfGiven(&listeners, u.Listeners)
	if err := c.checkHealthChecksAllowed(u.HealthCheck, listeners); err != nil {
		return LoadBalancer{}, Outcome{}, err
	}
	var lb LoadBalancer
	var outcome Outcome
	err := c.change(ctx, func(ctx context.Context, tx *changeTx) error {
		old, err := loadToChange[LoadBalancer](ctx, tx, p, id)
		if err != nil {
			return err
		}
		rule, ok := findRule(LoadBalancerRules, old.State, Update)
		if !ok {
			return refuse(
				WrongState,
				"cannot update load balancer %q (%s) while it is %s: this is final; create another when it is gone",
				old.Name, old.ID, old.State,
			)
		}
		if lb, err = c.mergeUpdate(ctx, tx.Tx, p, old, u); err != nil {
			return err
		}
		if lb, err = c.withNetwork(ctx, tx.Tx, p, lb, u.NetworkID, u.PrivateAddress); err != nil {
			return err
		}
		if sameBalancer(old, lb) {
			lb = old
			return nil
		}
		if err := c.saveToRebuild(ctx, tx, &lb, rule); err != nil {
			return err
		}
		outcome.Operation, err = c.beginOperation(ctx, tx, p.ID, api.ResourceLoadBalancer, lb.ID, Update)
		return err
	})
	return lb, outcome, err
}

// saveToRebuild saves a balancer that was changed, in the state after that, in which the worker brings the
// change into force.
func (c *Cloud) saveToRebuild(
	ctx context.Context,
	tx *changeTx,
	lb *LoadBalancer,
	rule Rule[api.LoadBalancerState],
) error {
	from := lb.State
	lb.State, lb.StateReason, lb.StateReasonCode = rule.To, "", ""
	if lb.State != from || lb.due == nil {
		// A balancer that is being built keeps its due time. Otherwise frequent updates
		// would keep it from ever being built.
		lb.due = c.stateEnd(tx.now, rule.Wait)
	}
	return saveResource(ctx, tx, from, lb)
}

// mergeUpdate checks an update and gives the balancer with the update applied.
func (c *Cloud) mergeUpdate(
	ctx context.Context,
	tx *store.Tx,
	p Project,
	lb LoadBalancer,
	u api.LoadBalancerUpdate,
) (LoadBalancer, error) {
	errs := []error{checkSameAddress(lb, u), checkSameFamilies(lb, u)}
	if u.Name != nil {
		errs = append(errs, checkBalancerName(ctx, tx, p, lb.ID, *u.Name))
		lb.Name = *u.Name
	}
	if u.Listeners != nil {
		errs = append(
			errs, checkListeners(*u.Listeners), checkCertificates(ctx, tx, p, *u.Listeners),
			c.checkOwnTargets(ctx, tx, p, lb.Listeners, *u.Listeners),
		)
		lb.Listeners = withCheckDefaults(*u.Listeners)
	}
	if u.Targets != nil && !sameSet(lb.Targets, withTargetDefaults(*u.Targets)) {
		errs = append(errs, c.checkTargets(ctx, tx, p, "targets", *u.Targets))
		lb.Targets = withTargetDefaults(*u.Targets)
	}
	if u.SourceRanges != nil {
		ranges, err := checkRanges(*u.SourceRanges)
		errs = append(errs, err)
		lb.SourceRanges = ranges
	}
	kind := lb.Kind
	lb.replaceOptions(u)
	if lb.Kind != kind {
		errs = append(errs, c.checkKind(lb.Kind))
	}
	errs = append(
		errs, lb.checkOptions(), lb.checkFeatures(), checkSize(lb.Type, lb.Listeners, len(lb.AllTargets())),
		checkDrain(lb.DrainSeconds, lb.Listeners), checkReservable(lb),
	)
	if u.HealthCheck != nil {
		check, err := withDefaultsOfCheck(*u.HealthCheck)
		errs = append(errs, err)
		lb.HealthCheck = check
	}
	if u.Records != nil {
		errs = append(errs, checkRecords(u.Records))
		lb.Records = u.Records
	}
	if u.Tags != nil {
		errs = append(errs, checkTags(*u.Tags))
		lb.Tags = tagsOrEmpty(*u.Tags)
	}
	return lb, joinRefusals(errs...)
}

// sameBalancer compares the fields that an update can change. The order of targets,
// listeners and source ranges does not matter.
func sameBalancer(a, b LoadBalancer) bool {
	same := sameSet(a.Targets, b.Targets) && sameListeners(a.Listeners, b.Listeners) && sameSet(a.SourceRanges, b.SourceRanges)
	for _, lb := range []*LoadBalancer{&a, &b} {
		lb.Targets, lb.Listeners, lb.SourceRanges = nil, nil, nil
	}
	return same && toJSON(a) == toJSON(b)
}

func sameListeners(a, b []Listener) bool {
	isNew := func(l Listener) bool { return !slices.ContainsFunc(a, l.Equal) } // No two have the same port.
	return len(a) == len(b) && !slices.ContainsFunc(b, isNew)
}

// maxRecords bounds the bytes of a resource's records: every event of it has them.
const maxRecords = 64 << 10

func checkRecords(records map[string]json.RawMessage) error {
	size := 0
	for dialect, record := range records {
		size += len(dialect) + len(record)
	}
	if size > maxRecords {
		return refuse(InvalidRequest, "the records have %d bytes: at most %d are allowed", size, maxRecords).
			withField("records", "are too large")
	}
	return nil
}

// sameSet compares slices regardless of order.
func sameSet[T comparable](a, b []T) bool {
	if len(a) != len(b) {
		return false
	}
	in := make(map[T]bool, len(a))
	for _, v := range a {
		in[v] = true
	}
	for _, v := range b {
		if !in[v] {
			return false
		}
		delete(in, v) // So that a duplicate in b does not match.
	}
	return true
}

// DeleteLoadBalancer stops forwarding at once. The balancer itself is gone after a while.
func (c *Cloud) DeleteLoadBalancer(ctx context.Context, p Project, id string) (LoadBalancer, Outcome, error) {
	var lb LoadBalancer
	var outcome Outcome
	err := c.change(ctx, func(ctx context.Context, tx *changeTx) (err error) {
		if lb, err = loadToChange[LoadBalancer](ctx, tx, p, id); err != nil {
			return err
		}
		rule, ok := findRule(LoadBalancerRules, lb.State, Delete)
		switch {
		case !ok:
			return refuse(WrongState, "cannot delete load balancer %q (%s) while it is %s", lb.Name, lb.ID, lb.State)
		case rule.Same:
			return nil
		case lb.DeletionProtection:
			return refuse(
				Protected, "load balancer %q (%s) is protected from deletion: update it with deletionProtection "+
					"false first (`fakecloud load-balancers update %s --deletion-protection=false`)",
				lb.Name, lb.ID, lb.Name,
			)
		}
		from := lb.State
		lb.State, lb.StateReason, lb.StateReasonCode, lb.due = rule.To, "", "", c.stateEnd(tx.now, rule.Wait)
		if err := saveResource(ctx, tx, from, &lb); err != nil {
			return err
		}
		outcome.Operation, err = c.beginOperation(ctx, tx, p.ID, api.ResourceLoadBalancer, lb.ID, Delete)
		return err
	})
	if err != nil {
		return LoadBalancer{}, Outcome{}, err
	}
	c.planeMu.Lock()
	defer c.planeMu.Unlock()
	c.stopForwarding(id)
	return lb, outcome, nil
}
