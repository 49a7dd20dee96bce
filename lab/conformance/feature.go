package conformance

// What may differ from one cloud or CCM to another without either being wrong.

import (
	"slices"

	"github.com/ccmlab/ccmlab/lab/conformance/driver/protocol"
)

// Feature names something that not every cloud, or cluster, can do. A test that needs a feature
// which is not there is skipped, by name.
type Feature string

// Features of a cloud, and of the cluster in it, for which a driver answers no operation of its own, but for traffic.
const (
	// FeatureLoadBalancers: the cloud has load balancers. A driver need not name it: it is there unless
	// `unsupported` says why not, and then GET /v1/balancers answers an empty list.
	FeatureLoadBalancers Feature = "load-balancers"
	// FeatureMachines: an instance that is asked to be a machine boots and joins the cluster.
	FeatureMachines Feature = "machines"
	// FeatureTraffic: pods run, and what a balancer accepts reaches them over
	// TCP, from where the suite runs. Without it two stand-ins that may be targets are there for all
	// tests of balancers: a CCM may refuse a balancer without a Node to send to.
	FeatureTraffic Feature = "traffic"
	// FeaturePassThrough: balancers pass packets on as they come, and the pod sees its client's address
	// where the Service's externalTrafficPolicy is Local. Between the suite and the balancer nobody
	// translates addresses.
	FeaturePassThrough Feature = "pass-through"
	// FeatureZones: an instance is in a zone, a region or both. Labels must say exactly that: what the
	// cloud does not have stays empty, and then a Node must not have that label.
	FeatureZones Feature = "zones"
	// FeatureInstanceTypes: an instance is of a type.
	FeatureInstanceTypes Feature = "instance-types"
	// FeatureUnlikeInstances: an instance can be asked to differ from another one in its zone, its type or
	// both. A cloud with one zone and one type does not have it.
	FeatureUnlikeInstances Feature = "unlike-instances"
	// FeatureSeveralAddresses: an instance has more than one internal address.
	FeatureSeveralAddresses Feature = "several-addresses"
	// FeatureDualStack: an instance has internal addresses of both families.
	FeatureDualStack Feature = "dual-stack"
	// FeatureNodeNames: an instance's Node is called as the instance, by a name that is chosen
	// when the instance is made, and the CCM finds the instance by that. Where it is not
	// declared, nodeName of the instance says what the Node is called.
	FeatureNodeNames Feature = "node-names"
	// FeatureCapitalNames: an instance's name may have capitals. Its Node's name is in lower case, as a
	// kubelet takes it from the host's.
	FeatureCapitalNames Feature = "capital-names"
	// FeatureKubeletProviderIDs: kubelets are given --provider-id, without which the CCM does
	// not know a Node's instance. Stand-ins register with it, too, else without a provider ID.
	FeatureKubeletProviderIDs Feature = "kubelet-provider-ids"
	// FeatureListeners: the ports can be seen that a balancer listens on. A floating IP and a
	// pass-through have none.
	FeatureListeners Feature = "listeners"
	// FeatureNodePorts: a balancer sends to the node ports of its Service, which its listeners
	// show. One with direct server return, or one that sends to pods, does not. Where that depends on
	// the balancer's type, the type counts that a Service without annotations gets.
	FeatureNodePorts Feature = "node-ports"
	// FeatureTargets: a balancer sends to all Nodes that may be targets, and they can be seen, as
	// the balancer has them: one that is in it twice, or whose instance is gone, is not left out.
	FeatureTargets Feature = "targets"
	// FeatureUDP: balancers have UDP listeners.
	FeatureUDP Feature = "udp"
	// FeatureSourceRanges: balancers can refuse clients by their address.
	FeatureSourceRanges Feature = "source-ranges"
	// FeatureAffinity: balancers can send a client to the same target.
	FeatureAffinity Feature = "affinity"
	// FeatureAffinityTimeout: they can be told for how many seconds, too, else affinity is on or off.
	FeatureAffinityTimeout Feature = "affinity-timeout"
	// FeatureHealthCheck: balancers check their targets, and can do so over HTTP.
	FeatureHealthCheck Feature = "health-check"
	// FeatureBlackholes: a route stays when the instance ends that it leads to.
	FeatureBlackholes Feature = "blackhole-routes"
)

// declaredFeatures are those above.
var declaredFeatures = []Feature{
	FeatureLoadBalancers, FeatureMachines, FeatureTraffic, FeaturePassThrough, FeatureZones, FeatureInstanceTypes,
	FeatureSeveralAddresses, FeatureNodeNames, FeatureKubeletProviderIDs, FeatureListeners, FeatureNodePorts,
	FeatureTargets, FeatureUDP, FeatureSourceRanges, FeatureAffinity, FeatureAffinityTimeout, FeatureHealthCheck,
	FeatureBlackholes, FeatureUnlikeInstances, FeatureDualStack, FeatureCapitalNames,
}

// OperationFeatures lists those by which a driver is asked for operations, but for its faults.
func OperationFeatures() (features []Feature) {
	for _, name := range protocol.Features() {
		if f := Feature(name); !slices.Contains(features, f) {
			features = append(features, f)
		}
	}
	return features
}

// AllFeatures lists every feature that a cloud can have.
func AllFeatures() []Feature {
	all := slices.Clone(declaredFeatures)
	for _, f := range OperationFeatures() {
		if f != RoleInstanceBatches && f != RoleCallJournal && !slices.Contains(all, f) {
			all = append(all, f)
		}
	}
	for _, kind := range AllFaultKinds() {
		all = append(all, FaultFeature(kind))
	}
	return all
}

// Features for which a driver answers operations.
const (
	// FeatureRenameBalancer: a balancer's name can change.
	FeatureRenameBalancer Feature = "rename-balancer"
	// FeatureChangeBalancer: a balancer's listeners and targets can be changed by
	// others than its owner.
	FeatureChangeBalancer Feature = "change-balancer"
	// FeatureResetBalancer: a balancer's health check, source ranges and client affinity, as far as
	// the cloud has them, can be taken away by others than its owner.
	FeatureResetBalancer Feature = "reset-balancer"
	// FeatureTagBalancer: balancers have tags, or labels, and others than their owner can add some.
	FeatureTagBalancer Feature = "tag-balancer"
	// FeatureChangeAddresses: an instance that runs can get other addresses.
	FeatureChangeAddresses Feature = "change-addresses"
	// FeatureRenameInstance: an instance that runs can get another name.
	FeatureRenameInstance Feature = "rename-instance"
	// FeatureRebootInstance: an instance that runs can be rebooted.
	FeatureRebootInstance Feature = "reboot-instance"
	// FeatureReservedAddresses: an address can be kept for a balancer to come.
	FeatureReservedAddresses Feature = "reserved-addresses"
	// FeatureStrangers: balancers of other owners can be beside the cluster's.
	FeatureStrangers Feature = "strangers"
	// FeatureNamesakeBalancers: balancers of another cluster of the same name can be beside
	// the cluster's.
	FeatureNamesakeBalancers Feature = "namesake-balancers"
	// FeatureTwinBalancers: two balancers can say that they are one Service's.
	FeatureTwinBalancers Feature = "twin-balancers"
	// FeatureBalancerQuota: the cloud can be made to refuse further balancers.
	FeatureBalancerQuota Feature = "balancer-quota"
	// FeatureNamesakeInstances: instances that are called as one of the cluster's can be beside it, and
	// it shows that they are another cluster's.
	FeatureNamesakeInstances Feature = "namesake-instances"
	// FeatureRoutes: the cloud routes pods' traffic, and the cluster gives each
	// Node a range of pods' addresses.
	FeatureRoutes Feature = "routes"
	// FeatureDivertRoutes: a route can be made to lead elsewhere by others than
	// its owner.
	FeatureDivertRoutes Feature = "divert-routes"
	// FeatureStrangerRoutes: routes of other owners can be beside the cluster's,
	// and it shows whose they are.
	FeatureStrangerRoutes Feature = "stranger-routes"
	// FeatureNamesakeRoutes: routes of another cluster of the same name can be beside the
	// cluster's.
	FeatureNamesakeRoutes Feature = "namesake-routes"
	// FeatureRouteQuota: the cloud can be made to refuse further routes.
	FeatureRouteQuota Feature = "route-quota"
	// FeatureCalls: the cloud counts the CCM's calls.
	FeatureCalls Feature = "calls"
	// FeatureZoneOutage: a zone can be lost with all its instances, which come back.
	FeatureZoneOutage Feature = "zone-outage"
	// FeatureExpiry: the CCM's credentials can expire, and be renewed in the place that the
	// running CCM has them from: the file's content changes, and neither its path nor the process.
	FeatureExpiry Feature = "credential-expiry"
	// FeatureCARenewal: the certificate that the CCM is shown can be renewed by a new CA, which
	// comes in the place that the running CCM has the former CA from, as its {{.CAFile}}.
	FeatureCARenewal Feature = "ca-renewal"
	// FeatureOtherProject: the CCM can be given the credentials of another project,
	// or account.
	FeatureOtherProject Feature = "other-project"
)

// Features of a CCM.
const (
	// FeatureReplicas: several of it can run beside each other. It has it by implementing
	// Replicated.
	FeatureReplicas Feature = "replicas"
	// FeatureRenameCluster: its cluster can be given another name, by a restart. It has it by
	// implementing ClusterRenamer.
	FeatureRenameCluster Feature = "rename-cluster"
	// FeatureFlags: it can be started with further flags of upstream's app. It has it by
	// implementing FlagTaker.
	FeatureFlags Feature = "flags"
	// FeatureHealthAddress: it is told where to serve health and metrics. It has it by implementing
	// HealthServer; a program that one of its templates gives {{.Port}}.
	FeatureHealthAddress Feature = "health-address"
)

// FeatureLocalAPIServer tells that the cluster's API server is reached at a loopback address, so that a test can
// lead the CCM to it by a way that can be shut. It follows from the cluster.
const FeatureLocalAPIServer Feature = "local-api-server"

// featuresOfCCM are those that follow from what a CCM implements.
func featuresOfCCM(ccm CCM) []Feature {
	var features []Feature
	if _, ok := ccm.(Replicated); ok {
		features = append(features, FeatureReplicas)
	}
	if renamer, ok := ccm.(ClusterRenamer); ok && renamer.CanRenameCluster() {
		features = append(features, FeatureRenameCluster)
	}
	if _, ok := ccm.(FlagTaker); ok {
		features = append(features, FeatureFlags)
	}
	if server, ok := ccm.(HealthServer); ok && server.HealthAddress() != "" {
		features = append(features, FeatureHealthAddress)
	}
	return features
}

const faultFeaturePrefix = "fault-"

// FaultFeature is the feature of a cloud into which a fault of this kind can be injected.
func FaultFeature(k FaultKind) Feature { return Feature(faultFeaturePrefix + k) }

// Capability names something that a CCM may do beyond the core. A test of one is extended; it
// counts for the verdict only if the CCM claims the capability.
type Capability string

// The capabilities.
const (
	// CapabilityForeignNodes: a Node with another provider's ID is left alone.
	CapabilityForeignNodes Capability = "foreign-nodes"
	// CapabilityProvidedIP: a kubelet's --node-ip that is no address of the
	// instance keeps its Node uninitialised.
	CapabilityProvidedIP Capability = "provided-ip"
	// CapabilityNamesInAnyCase: a Node is initialised from the instance whose name differs from its own
	// in case only.
	CapabilityNamesInAnyCase Capability = "names-in-any-case"
	// CapabilityUDP: Services with UDP ports, alone and beside TCP.
	CapabilityUDP Capability = "udp-services"
	// CapabilitySourceRanges: spec.loadBalancerSourceRanges.
	CapabilitySourceRanges Capability = "service-source-ranges"
	// CapabilitySourceRangesAnnotation: the annotation service.beta.kubernetes.io/load-balancer-source-ranges,
	// which upstream's helper reads where the field has none.
	CapabilitySourceRangesAnnotation Capability = "source-ranges-annotation"
	// CapabilityAffinity: spec.sessionAffinity ClientIP.
	CapabilityAffinity Capability = "service-affinity"
	// CapabilityHealthCheck: balancers check their targets without being asked to.
	CapabilityHealthCheck Capability = "health-checks"
	// CapabilityLocalTraffic: spec.externalTrafficPolicy Local.
	CapabilityLocalTraffic Capability = "local-traffic-policy"
	// CapabilityClientAddress: clients and pods see each other as if no balancer were between them, and
	// pods are replaced, and affinity is switched, without a client noticing.
	CapabilityClientAddress Capability = "client-address"
	// CapabilityRename: balancers are recognised whatever their name.
	CapabilityRename Capability = "renamed-balancers"
	// CapabilityRepair: what happens to a balancer behind the CCM's back is put
	// right without anybody touching the Service.
	CapabilityRepair Capability = "repair"
	// CapabilityDrift: what happened to a balancer behind the CCM's back is put right when its
	// Service changes the next time.
	CapabilityDrift Capability = "drift"
	// CapabilityForeignTags: tags that somebody else put on a balancer of the cluster's stay.
	CapabilityForeignTags Capability = "foreign-tags"
	// CapabilityIPMode: the Service's status says whether traffic comes to nodes with the balancer's
	// address as its destination (VIP) or not (Proxy).
	CapabilityIPMode Capability = "ip-mode"
	// CapabilityWaitingNodes: a Node without an instance keeps no Service from its balancer.
	CapabilityWaitingNodes Capability = "waiting-nodes"
	// CapabilityDuplicateNodes: nor do two Nodes of one instance.
	CapabilityDuplicateNodes Capability = "duplicate-nodes"
	// CapabilityExclusionValue: the label node.kubernetes.io/exclude-from-external-load-balancers
	// excludes no Node when its value is false, as upstream has it from v1.34 on.
	CapabilityExclusionValue Capability = "exclusion-label-value"
	// CapabilityStaysUp: the CCM does not end by itself when the cloud fails.
	CapabilityStaysUp Capability = "stays-up"
	// CapabilityRefusedServices: the targets of a Service's balancer follow the Nodes although
	// the CCM cannot do what else the Service asks for.
	CapabilityRefusedServices Capability = "refused-services"
	// CapabilityRenamedCluster: a cluster that gets another name keeps its balancers.
	CapabilityRenamedCluster Capability = "renamed-cluster"
	// CapabilityOrphans: balancers whose Service is gone are found and deleted.
	CapabilityOrphans Capability = "orphaned-balancers"
	// CapabilityDoubtfulInstances: no instance is given up for gone because a list
	// lacks it.
	CapabilityDoubtfulInstances Capability = "doubtful-instances"
	// CapabilityDoubtfulBalancers: no balancer is given up for gone because the
	// cloud's answer about balancers is doubtful.
	CapabilityDoubtfulBalancers Capability = "doubtful-balancers"
	// CapabilityDoubtfulRoutes: no route is given up for gone because the cloud's answer about routes is
	// doubtful.
	CapabilityDoubtfulRoutes Capability = "doubtful-routes"
	// CapabilityRetryAfter: while the cloud asks to be called no more, with Retry-After, it is not.
	CapabilityRetryAfter Capability = "retry-after"
	// CapabilityTwinBalancers: of several balancers that say they are one Service's none is left
	// when the Service goes.
	CapabilityTwinBalancers Capability = "twin-balancers-deleted"
	// CapabilityPromptInitialization: a Node that has waited long is initialised as
	// soon as there is its instance, and not when a back-off ends.
	CapabilityPromptInitialization Capability = "prompt-initialization"
	// CapabilityPromptRemoval: a Node goes when its instance has ended, whatever
	// its kubelet said last.
	CapabilityPromptRemoval Capability = "prompt-removal"
	// CapabilityUninitializedRemoval: a Node that has no provider ID yet goes when the instance of its
	// name has ended.
	CapabilityUninitializedRemoval Capability = "uninitialized-removal"
	// CapabilityStableNodes: a Node and its addresses stay as they are when its instance is renamed or
	// rebooted.
	CapabilityStableNodes Capability = "stable-nodes"
	// CapabilityMassDeletionGuard: a cloud that reports most instances gone at once does not get
	// their Nodes deleted.
	CapabilityMassDeletionGuard Capability = "mass-deletion-guard"
	// CapabilityActiveStatus: a Service shows its balancer's address only once the cloud says that
	// the balancer works.
	CapabilityActiveStatus Capability = "active-status"
	// CapabilityControllersFlag: what --controllers switches off is left to others
	// altogether.
	CapabilityControllersFlag Capability = "controllers-flag"
	// CapabilityLoadBalancerIP: spec.loadBalancerIP.
	CapabilityLoadBalancerIP Capability = "load-balancer-ip"
	// CapabilityQuiet: nothing is written to the cloud when nothing changed.
	CapabilityQuiet Capability = "quiet"
	// CapabilityCallBudget: what a Node and a Service cost in calls of the cloud's
	// API stays within limits, however many Nodes there are.
	CapabilityCallBudget Capability = "call-budget"
	// CapabilityExplains: an Event says why a Node or a Service waits.
	CapabilityExplains Capability = "explains"
	// CapabilityPodRoutes: the cloud has a route to each Node's pods.
	CapabilityPodRoutes Capability = "pod-routes"
	// CapabilityNamesakeClusters: what another cluster of the same name has in the same project,
	// or account, is left alone.
	CapabilityNamesakeClusters Capability = "namesake-clusters"
	// CapabilityRenewedCredentials: credentials that are renewed where the CCM has
	// them are used without a restart.
	CapabilityRenewedCredentials Capability = "renewed-credentials"
	// CapabilityRenewedCA: so is the CA that the cloud's certificate is verified with.
	CapabilityRenewedCA Capability = "renewed-ca"
	// CapabilityOwnProject: nothing is concluded from what the credentials of
	// another project, or account, show.
	CapabilityOwnProject Capability = "own-project"
	// CapabilityHealth: it serves /healthz and /metrics where it is told to.
	CapabilityHealth Capability = "health"
	// CapabilityHA: of several CCMs that run beside each other one acts, and another
	// does when that one cannot.
	CapabilityHA Capability = "high-availability"
)

// Unsupported says of features, capabilities and profiles, by name, why they are missing. Their tests
// are skipped with that reason.
type Unsupported map[string]string

// Lacks tells whether a feature is missing: it is declared, or not among those that are there.
func (u Unsupported) Lacks(f Feature, have []Feature) bool {
	_, declared := u[string(f)]
	return declared || f != FeatureLoadBalancers && !slices.Contains(have, f)
}

// HasFeature tells whether cloud, CCM or cluster have a feature, and nobody has declared it unsupported.
func (s *Suite) HasFeature(f Feature) bool { return !s.unsupported.Lacks(f, s.features()) }

// features lists what cloud, CCM and cluster can do, whether it is declared unsupported or not.
func (s *Suite) features() []Feature {
	ccm := s.CCM
	if supervised, ok := ccm.(*supervisedCCM); ok {
		ccm = supervised.CCM
	}
	have := append(s.Cloud.Features(), featuresOfCCM(ccm)...)
	if s.APIServer != "" {
		have = append(have, FeatureLocalAPIServer)
	}
	return have
}
