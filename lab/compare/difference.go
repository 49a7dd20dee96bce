package compare

// What differs between two labs, and why. IDs and addresses always differ, so the kind
// of each value is compared.

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	cloudproviderapi "k8s.io/cloud-provider/api"

	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/ui"
	"github.com/ccmlab/ccmlab/manifests"
)

// Row is one thing that a comparison looks at.
type Row struct {
	// Section groups rows: components, nodes, demo pods, services, cloud.
	Section string `json:"section"`
	What    string `json:"what"`
	// Values are what the two labs have, as one would read it.
	Values  [2]string `json:"values"`
	Differs bool      `json:"differs"`
	// Why explains a difference, in a sentence for each lab, or in one if it is no
	// matter of cloud providers. Source is where upstream makes it so.
	Why    []string `json:"why,omitempty"`
	Source string   `json:"source,omitempty"`
}

// Sections of a comparison, in their order.
const (
	SectionComponents = "components"
	SectionNodes      = "nodes"
	SectionPods       = "demo pods"
	SectionServices   = "services"
	SectionCloud      = "cloud"
)

// ccmState is what explains most of a lab.
type ccmState int

const (
	noCloudProvider ccmState = iota // no external cloud provider
	waitsForCCM                     // for a CCM that never ran
	ccmStopped                      // by a CCM that ran once
	ccmRuns                         // by a CCM that runs
)

func (f *Facts) ccmState() ccmState {
	switch {
	case f.CloudProvider == cluster.ProviderNone:
		return noCloudProvider
	case f.CCM:
		return ccmRuns
	case f.CCMCalls > 0:
		return ccmStopped
	default:
		return waitsForCCM
	}
}

// cell is one lab's value: its kind, which is compared, and its text, which is shown.
type cell struct{ kind, text string }

// Kinds of what several things can have or not.
const (
	all     = "all"
	some    = "some"
	nothing = "none"
)

// clause says of a lab in some situation why it has what it has, if that is of
// the kind that the situation brings about. NAME in it is the lab's.
type clause struct{ kind, text string }

// aspect describes a row: how its cells are computed and explained.
type aspect struct {
	section, what string
	of            func(*Facts) cell
	why           map[ccmState]clause
	source        string
}

func compareFacts(left, right *Facts) []Row {
	var rows []Row
	for _, a := range append(slices.Clone(aspects), serviceAspects(left, right)...) {
		l, r := a.of(left), a.of(right)
		row := Row{Section: a.section, What: a.what, Values: [2]string{l.text, r.text}, Differs: l.kind != r.kind}
		if row.Differs {
			row.Why, row.Source = a.explainDifference(left, right, l, r)
		}
		rows = append(rows, row)
	}
	order := []string{SectionComponents, SectionNodes, SectionPods, SectionServices, SectionCloud}
	slices.SortStableFunc(rows, func(a, b Row) int {
		return cmp.Compare(slices.Index(order, a.Section), slices.Index(order, b.Section))
	})
	return rows
}

// explainDifference says why two labs differ: by their situations, if these account for
// the values.
func (a aspect) explainDifference(left, right *Facts, l, r cell) (why []string, source string) {
	for _, lab := range []struct {
		name string
		has  cell
	}{{left.Name, l}, {right.Name, r}} {
		if lab.has.kind == noService { // Why the other has it is no question of providers.
			return []string{lab.name + ": this Service was not created there."}, ""
		}
	}
	if isBalancerKind(l) && isBalancerKind(r) {
		return []string{"The kinds of balancers differ: the annotation " + contract.AnnotationKind +
			" chooses; without it they are network balancers in a kind lab, and proxies elsewhere."}, ""
	}
	leftClause, leftOK := a.clauseFor(left)
	rightClause, rightOK := a.clauseFor(right)
	leftOK, rightOK = leftOK && leftClause.kind == l.kind, rightOK && rightClause.kind == r.kind
	if !leftOK && !rightOK {
		return []string{fmt.Sprintf(
			"This is no matter of cloud providers; `lab watch --name %s` and `lab watch --name %s` tell what happened.",
			left.Name, right.Name,
		)}, ""
	}
	half := func(f *Facts, c clause, ok bool) string {
		if !ok {
			c.text = "not as it is set up to be; `lab status --name NAME` may say why"
		}
		return f.Name + ": " + strings.ReplaceAll(c.text, "NAME", f.Name) + "."
	}
	return []string{half(left, leftClause, leftOK), half(right, rightClause, rightOK)}, a.source
}

// clauseFor is why a lab has what it has; of a Service that depends on more than the
// situation.
func (a aspect) clauseFor(f *Facts) (c clause, ok bool) {
	switch {
	case a.section == SectionServices:
		return f.whyService(f.serviceNamed(a.what)), true
	case a.what == aspectProviderID && f.KubeletProviderIDs:
		return clause{all, "each kubelet registered its node with it, as its --provider-id says"}, true
	}
	c, ok = a.why[f.ccmState()]
	return c, ok
}

// aspects are the rows that every comparison has.
var aspects = []aspect{
	{
		SectionComponents, cluster.ComponentKubelet, flagOf(cluster.ComponentKubelet),
		alwaysFlag(cluster.ProviderExternal, "the flag has each kubelet leave its node for a CCM to finish", "",
			"without the flag each kubelet finishes its node itself"),
		"k8s.io/kubernetes/cmd/kubelet/app/options/options.go, --cloud-provider",
	},
	{
		SectionComponents, cluster.ComponentKCM, flagOf(cluster.ComponentKCM),
		alwaysFlag(cluster.ProviderExternal, "external is the one value that is left, and since Kubernetes 1.31 it changes nothing: the cloud's controllers are gone from here", "",
			"without the flag it does the same: it has no cloud's controllers"),
		"k8s.io/kubernetes/cmd/kube-controller-manager/app/core.go; KEP-2395",
	},
	{
		SectionComponents, "CCM", ccmCell,
		map[ccmState]clause{
			noCloudProvider: {noCCM, "no node waits for one"},
			waitsForCCM:     {stoppedCCM, "it was never started; `lab ccm start --name NAME` starts it"},
			ccmStopped:      {stoppedCCM, "it was stopped, and what it made stays as it is"},
			ccmRuns:         {runningCCM, "it runs"},
		}, "",
	},
	{SectionNodes, "Ready", countNodes("Ready", func(n NodeFacts) bool { return n.Ready }), nil, ""},
	{
		SectionNodes, "taints", nodeTaints,
		map[ccmState]clause{
			noCloudProvider: {"", "a kubelet without an external cloud provider sets no such taint"},
			waitsForCCM: {
				taintUninitialized,
				"the kubelet registered its node with this taint, and it is there until a CCM removes it",
			},
			ccmStopped: {"", "the CCM removed the taint before it was stopped"},
			ccmRuns:    {"", "the CCM initialised the nodes and removed the taint"},
		},
		"k8s.io/kubernetes/pkg/kubelet/kubelet_node_status.go, initialNode; k8s.io/cloud-provider/controllers/node/node_controller.go, syncNode",
	},
	{
		SectionNodes, aspectProviderID, providerIDs, setByCCM(
			"only the cloud knows which instance a node is",
			"the CCM found each node's instance and wrote its ID, once and for all",
		),
		"k8s.io/cloud-provider/controllers/node/node_controller.go, getNodeModifiersFromCloudProvider",
	},
	{
		SectionNodes, "zone", nodeValues(func(n NodeFacts) string { return n.Zone }), setByCCM(
			"only the cloud knows where a machine stands",
			"the CCM set topology.kubernetes.io/zone from the node's instance",
		),
		"k8s.io/cloud-provider/controllers/node/node_controller.go, getNodeModifiersFromCloudProvider",
	},
	{
		SectionNodes, "region", nodeValues(func(n NodeFacts) string { return n.Region }), setByCCM(
			"only the cloud knows where a machine stands",
			"the CCM set topology.kubernetes.io/region from the node's instance",
		),
		"k8s.io/cloud-provider/controllers/node/node_controller.go, getNodeModifiersFromCloudProvider",
	},
	{
		SectionNodes, "instance type", nodeValues(func(n NodeFacts) string { return n.InstanceType }), setByCCM(
			"only the cloud knows of what type a machine is",
			"the CCM set node.kubernetes.io/instance-type from the node's instance",
		),
		"k8s.io/cloud-provider/controllers/node/node_controller.go, getNodeModifiersFromCloudProvider",
	},
	{
		SectionNodes, "InternalIP", nodeValues(func(n NodeFacts) string { return n.InternalIP }),
		map[ccmState]clause{
			noCloudProvider: {all, "each kubelet reports its own"},
			waitsForCCM: {
				nothing, "a kubelet with an external cloud provider and no --node-ip leaves its addresses to a CCM",
			},
			ccmStopped: {all, "the CCM set them before it was stopped"},
			ccmRuns:    {all, "the CCM set them from the nodes' instances"},
		},
		"k8s.io/kubernetes/pkg/kubelet/nodestatus/setters.go, NodeAddress; k8s.io/cloud-provider/controllers/node/node_controller.go, updateNodeAddress",
	},
	{
		SectionPods, manifests.DemoSelector, podPhases,
		map[ccmState]clause{
			noCloudProvider: {"Running", "the scheduler found nodes without taints at once"},
			waitsForCCM:     {"Pending", "the scheduler puts no pod on a node whose taint it does not tolerate"},
			ccmStopped:      {"Running", "they were scheduled when the CCM had removed the taints, and stay"},
			ccmRuns:         {"Running", "they were scheduled when the CCM had removed the taints"},
		},
		"k8s.io/kubernetes/pkg/scheduler/framework/plugins/tainttoleration/taint_toleration.go, Filter",
	},
	{
		SectionCloud, "calls by the CCM", ccmCalls,
		map[ccmState]clause{
			noCloudProvider: {nothing, "no component of the cluster knows of the cloud"},
			waitsForCCM:     {nothing, "no component of the cluster but a CCM knows of the cloud"},
			ccmStopped:      {some, "the CCM asked while it ran"},
			ccmRuns: {
				some,
				"the CCM asks which instances there are, and has balancers made; `fakecloud audit sum` lists its calls",
			},
		}, "",
	},
}

const aspectProviderID = "provider ID"

const taintUninitialized = cloudproviderapi.TaintExternalCloudProvider + ":NoSchedule"

// alwaysFlag is why a flag is as it is: the lab was brought up so.
func alwaysFlag(external, whyExternal, none, whyNone string) map[ccmState]clause {
	set := clause{external, whyExternal}
	return map[ccmState]clause{noCloudProvider: {none, whyNone}, waitsForCCM: set, ccmStopped: set, ccmRuns: set}
}

// setByCCM is why a Node has what nobody but a CCM writes on it.
func setByCCM(cloud, ccm string) map[ccmState]clause {
	return map[ccmState]clause{
		noCloudProvider: {nothing, cloud + ", and nobody here asks it"},
		waitsForCCM:     {nothing, cloud + ", and nobody asks it before there is a CCM"},
		ccmStopped:      {all, ccm + ", and that stays without the CCM"},
		ccmRuns:         {all, ccm},
	}
}

func flagOf(component string) func(*Facts) cell {
	return func(f *Facts) cell {
		switch value, known := f.Flags[component]; {
		case !known:
			return cell{"unknown", "not to be seen from here"}
		case value == "":
			return cell{"", "no --cloud-provider"}
		default:
			return cell{value, "--cloud-provider=" + value}
		}
	}
}

const runningCCM, stoppedCCM, noCCM = "running", "stopped", "none"

func ccmCell(f *Facts) cell {
	switch f.ccmState() {
	case noCloudProvider:
		return cell{noCCM, "none"}
	case ccmRuns:
		return cell{runningCCM, "runs"}
	default:
		return cell{stoppedCCM, "does not run"}
	}
}

// shareOfNodes is how many of the nodes have something.
func shareOfNodes(have, of int) string {
	switch have {
	case 0:
		return nothing
	case of:
		return all
	default:
		return some
	}
}

func countNodes(what string, has func(NodeFacts) bool) func(*Facts) cell {
	return func(f *Facts) cell {
		n := 0
		for _, node := range f.Nodes {
			if has(node) {
				n++
			}
		}
		return cell{shareOfNodes(n, len(f.Nodes)), fmt.Sprintf("%d of %d %s", n, len(f.Nodes), what)}
	}
}

// nodeValues is a cell of the nodes' distinct values.
func nodeValues(of func(NodeFacts) string) func(*Facts) cell {
	return func(f *Facts) cell {
		var found []string
		for _, node := range f.Nodes {
			if v := of(node); v != "" {
				found = append(found, v)
			}
		}
		have := len(found)
		slices.Sort(found)
		return cell{shareOfNodes(have, len(f.Nodes)), onNodes(ui.JoinFirst(slices.Compact(found), maxListed), have, len(f.Nodes))}
	}
}

// providerIDs are shown without the instances' IDs, which differ always.
func providerIDs(f *Facts) cell {
	return nodeValues(func(n NodeFacts) string {
		if prefix, _ := cluster.CutProviderID(n.ProviderID); prefix != "" {
			return prefix + "INSTANCE-ID"
		}
		return n.ProviderID
	})(f)
}

// maxListed limits a cell to a few items, for labs with many nodes.
const maxListed = 4

func onNodes(what string, have, of int) string {
	switch have {
	case 0:
		return "none"
	case of:
		return what
	default:
		return fmt.Sprintf("%s on %d of %d", what, have, of)
	}
}

func nodeTaints(f *Facts) cell {
	on := map[string]int{}
	for _, node := range f.Nodes {
		for _, t := range node.Taints {
			on[t]++
		}
	}
	kinds := slices.Sorted(maps.Keys(on))
	var texts []string
	for _, t := range kinds {
		texts = append(texts, fmt.Sprintf("%s on %d of %d", t, on[t], len(f.Nodes)))
	}
	return cell{strings.Join(kinds, ","), cmp.Or(strings.Join(texts, ", "), "none")}
}

// podPhases counts the demo's pods by phase, with the nodes that they run on or why
// they do not run.
func podPhases(f *Facts) cell {
	by := map[string][]PodFacts{}
	for _, p := range f.Pods {
		by[p.Phase] = append(by[p.Phase], p)
	}
	kinds := slices.Sorted(maps.Keys(by))
	var texts []string
	for _, phase := range kinds {
		text := fmt.Sprintf("%d %s", len(by[phase]), phase)
		if nodes := distinctValues(by[phase], func(p PodFacts) string { return p.Node }); len(nodes) > 0 {
			text += " on " + ui.JoinFirst(nodes, maxListed)
		}
		if reasons := distinctValues(by[phase], func(p PodFacts) string { return p.Unschedulable }); len(reasons) > 0 {
			text += ": " + ui.JoinFirst(reasons, maxListed)
		}
		texts = append(texts, text)
	}
	return cell{strings.Join(kinds, ","), cmp.Or(strings.Join(texts, "; "), "no demo")}
}

// distinctValues is what the pods have, in order, once.
func distinctValues(pods []PodFacts, of func(PodFacts) string) []string {
	var found []string
	for _, p := range pods {
		if v := of(p); v != "" {
			found = append(found, v)
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}

func ccmCalls(f *Facts) cell {
	if f.CCMCalls == 0 {
		return cell{nothing, "none"}
	}
	return cell{some, fmt.Sprint(f.CCMCalls)}
}

const noService, pendingService, servedService = "absent", "pending", "address"

// serviceAspects has an aspect for each Service of type LoadBalancer of either lab.
func serviceAspects(left, right *Facts) []aspect {
	var names []string
	for _, s := range slices.Concat(left.Services, right.Services) {
		names = append(names, s.Name)
	}
	slices.Sort(names)
	var found []aspect
	for _, name := range slices.Compact(names) {
		found = append(found, aspect{
			section: SectionServices, what: name,
			of:     func(f *Facts) cell { return f.serviceNamed(name).cell() },
			source: "k8s.io/cloud-provider/controllers/service/controller.go, syncLoadBalancerIfNeeded",
		})
	}
	return found
}

// serviceNamed is nil for one that the lab has not.
func (f *Facts) serviceNamed(name string) *ServiceFacts {
	if i := slices.IndexFunc(f.Services, func(s ServiceFacts) bool { return s.Name == name }); i >= 0 {
		return &f.Services[i]
	}
	return nil
}

func (s *ServiceFacts) cell() cell {
	switch {
	case s == nil:
		return cell{noService, "not there"}
	case s.Address == "":
		return cell{pendingService, s.Type + ", address pending"}
	case s.Kind == "":
		return cell{s.servedKind(), s.Type + ", " + s.Address}
	default:
		return cell{s.servedKind(), fmt.Sprintf("%s, %s (%s)", s.Type, s.Address, s.Kind)}
	}
}

// servedKind is the kind of cell of a Service with an address: it contains the balancer's.
func (s *ServiceFacts) servedKind() string { return servedService + string(s.Kind) }

func isBalancerKind(c cell) bool {
	return len(c.kind) > len(servedService) && strings.HasPrefix(c.kind, servedService)
}

func (f *Facts) whyService(s *ServiceFacts) clause {
	switch f.ccmState() {
	case noCloudProvider:
		return clause{
			pendingService,
			"nobody has the cloud make a balancer, so the address stays pending for ever; the Service still has its ClusterIP and NodePort",
		}
	case waitsForCCM:
		return clause{pendingService, "the address is pending until a CCM has had the cloud make a balancer"}
	case ccmRuns:
		return clause{
			s.servedKind(), "the CCM had the cloud make a balancer, and wrote its address into the Service's status",
		}
	}
	switch {
	case s.Address == "":
		return clause{
			pendingService,
			"the CCM was stopped before it had the cloud make a balancer; `lab ccm start --name NAME` has it go on",
		}
	case !s.Balancer:
		return clause{s.servedKind(), "the CCM wrote the address before it was stopped, and the balancer has gone since"}
	}
	return clause{
		s.servedKind(), "the CCM had the cloud make a balancer, which goes on without it, to the nodes as they were",
	}
}
