package conformance

// What may differ from one cloud or CCM to another without either being wrong.

// Feature names something that not every cloud, cluster or CCM has. What a test
// needs and is not there skips the test, by name.
type Feature string

// Features of a cloud and of the cluster in it.
const (
	// FeatureMachines: an instance created with Machine joins the cluster.
	FeatureMachines Feature = "machines"
	// FeatureTraffic: pods run, and what a balancer accepts reaches them over
	// TCP, from where the suite runs.
	FeatureTraffic Feature = "traffic"
	// FeatureZones: an instance is in a zone, a region or both.
	FeatureZones Feature = "zones"
	// FeatureInstanceTypes: an instance is of a type.
	FeatureInstanceTypes Feature = "instance-types"
	// FeatureSeveralAddresses: an instance has more than one internal address.
	FeatureSeveralAddresses Feature = "several-addresses"
	// FeatureTargets: a balancer's targets can be seen.
	FeatureTargets Feature = "targets"
	// FeatureUDP: balancers have UDP listeners.
	FeatureUDP Feature = "udp"
	// FeatureSourceRanges: balancers can refuse clients by their address.
	FeatureSourceRanges Feature = "source-ranges"
	// FeatureAffinity: balancers can send a client to the same target.
	FeatureAffinity Feature = "affinity"
	// FeatureHealthCheck: balancers ask targets over HTTP whether they serve.
	FeatureHealthCheck Feature = "health-check"
	// FeatureRenameBalancer: a balancer's name can change.
	FeatureRenameBalancer Feature = "rename-balancer"
	// FeatureChangeBalancer: a balancer's listeners and targets can be changed by
	// others than its owner.
	FeatureChangeBalancer Feature = "change-balancer"
	// FeatureReservedAddresses: an address can be kept for a balancer to come.
	FeatureReservedAddresses Feature = "reserved-addresses"
	// FeatureStrangers: balancers of other owners can be beside the cluster's.
	FeatureStrangers Feature = "strangers"
	// FeatureRoutes: the cloud routes pods' traffic, and the cluster gives each
	// Node a range of pods' addresses.
	FeatureRoutes Feature = "routes"
	// FeatureDivertRoutes: a route can be made to lead elsewhere by others than
	// its owner.
	FeatureDivertRoutes Feature = "divert-routes"
	// FeatureStrangerRoutes: routes of other owners can be beside the cluster's,
	// and it shows whose they are.
	FeatureStrangerRoutes Feature = "stranger-routes"
	// FeatureRouteQuota: the cloud can be made to refuse further routes.
	FeatureRouteQuota Feature = "route-quota"
	// FeatureCalls: the cloud counts the CCM's calls.
	FeatureCalls Feature = "calls"
	// FeatureZoneOutage: a zone can be lost with all its instances, which come back.
	FeatureZoneOutage Feature = "zone-outage"
	// FeatureExpiry: the CCM's credentials can expire and be renewed where it has
	// them.
	FeatureExpiry Feature = "credential-expiry"
	// FeatureOtherProject: the CCM can be given the credentials of another project,
	// or account.
	FeatureOtherProject Feature = "other-project"
	// FeatureReplicas: several of the CCM can run beside each other. The suite sees
	// to that where the CCM implements Replicated.
	FeatureReplicas Feature = "replicas"
)

// FeatureOf is the feature that a cloud must have for a fault to be injected.
func FeatureOf(k FaultKind) Feature { return Feature("fault-" + k) }

// Capabilities of a CCM beyond the core. A test of one is extended; it counts
// for the verdict only if the CCM claims the capability.
const (
	// CapabilityForeignNodes: a Node with another provider's ID is left alone.
	CapabilityForeignNodes Feature = "foreign-nodes"
	// CapabilityProvidedIP: a kubelet's --node-ip that is no address of the
	// instance keeps its Node uninitialised.
	CapabilityProvidedIP Feature = "provided-ip"
	// CapabilityUDP: Services with UDP ports, alone and beside TCP.
	CapabilityUDP Feature = "udp-services"
	// CapabilitySourceRanges: spec.loadBalancerSourceRanges.
	CapabilitySourceRanges Feature = "service-source-ranges"
	// CapabilityAffinity: spec.sessionAffinity ClientIP.
	CapabilityAffinity Feature = "service-affinity"
	// CapabilityLocalTraffic: spec.externalTrafficPolicy Local.
	CapabilityLocalTraffic Feature = "local-traffic-policy"
	// CapabilityRename: balancers are recognised whatever their name.
	CapabilityRename Feature = "renamed-balancers"
	// CapabilityRepair: what happens to a balancer behind the CCM's back is put
	// right without anybody touching the Service.
	CapabilityRepair Feature = "repair"
	// CapabilityDoubtfulInstances: no instance is given up for gone because a list
	// lacks it.
	CapabilityDoubtfulInstances Feature = "doubtful-instances"
	// CapabilityDoubtfulBalancers: no balancer is given up for gone because the
	// cloud's answer about balancers is doubtful.
	CapabilityDoubtfulBalancers Feature = "doubtful-balancers"
	// CapabilityPromptInitialization: a Node that has waited long is initialised as
	// soon as there is its instance, and not when a back-off ends.
	CapabilityPromptInitialization Feature = "prompt-initialization"
	// CapabilityPromptRemoval: a Node goes when its instance has ended, whatever
	// its kubelet said last.
	CapabilityPromptRemoval Feature = "prompt-removal"
	// CapabilityMassDeletionGuard: a cloud that says of most instances at once
	// that they do not exist is not believed.
	CapabilityMassDeletionGuard Feature = "mass-deletion-guard"
	// CapabilityLoadBalancerIP: spec.loadBalancerIP.
	CapabilityLoadBalancerIP Feature = "load-balancer-ip"
	// CapabilityQuiet: nothing is written to the cloud when nothing changed.
	CapabilityQuiet Feature = "quiet"
	// CapabilityCallBudget: what a Node and a Service cost in calls of the cloud's
	// API stays within limits, however many Nodes there are.
	CapabilityCallBudget Feature = "call-budget"
	// CapabilityExplains: an Event says why a Node or a Service waits.
	CapabilityExplains Feature = "explains"
	// CapabilityPodRoutes: the cloud has a route to each Node's pods.
	CapabilityPodRoutes Feature = "pod-routes"
	// CapabilityRenewedCredentials: credentials that are renewed where the CCM has
	// them are used without a restart.
	CapabilityRenewedCredentials Feature = "renewed-credentials"
	// CapabilityOwnProject: nothing is concluded from what the credentials of
	// another project, or account, show.
	CapabilityOwnProject Feature = "own-project"
	// CapabilityHA: of several CCMs that run beside each other one acts, and another
	// does when that one cannot.
	CapabilityHA Feature = "high-availability"
)
