// Package contract declares the names that the CCM shares with whoever watches
// it: the lab's views, its lessons and the conformance suite. They are what the
// CCM writes into the cloud (tags), onto cluster objects (provider IDs,
// annotations) and into Events (reasons). People and programs rely on them, so a
// name stays once it is here.
//
// The package imports nothing but the standard library: the lab starts the CCM
// as a process and imports no other package of it.
package contract

import "strings"

// ProviderName is the cloud provider's, and the scheme of its provider IDs.
const ProviderName = "fakecloud"

// ProviderIDPrefix begins every provider ID of this cloud.
const ProviderIDPrefix = ProviderName + "://"

// ProviderID is the value of Node.spec.providerID for an instance.
func ProviderID(instanceID string) string { return ProviderIDPrefix + instanceID }

// InstanceIDFromProviderID returns the instance's ID, and false for the provider
// ID of another cloud.
func InstanceIDFromProviderID(providerID string) (string, bool) {
	instanceID, ok := strings.CutPrefix(providerID, ProviderIDPrefix)
	if !ok || instanceID == "" || strings.ContainsAny(instanceID, "/ ") {
		return "", false
	}
	return instanceID, true
}

// Tags of the cloud's resources.
const (
	// TagCluster is the name of the cluster that owns the resource. The CCM sets it
	// on balancers and routes; the creator of an instance sets it there.
	TagCluster = "kubernetes-cluster"
	// TagClusterUID is the UID of the cluster's namespace kube-system, which no
	// other cluster has, whatever it is called. Where it is set it decides who owns
	// the resource, and TagCluster is for people.
	TagClusterUID = "kubernetes-cluster-uid"
	// TagServiceUID is the UID of the Service that owns the balancer.
	TagServiceUID = "kubernetes-service-uid"
	// TagService (namespace/name) is for people; nothing is looked up by it.
	TagService = "kubernetes-service"
	// TagServiceAddress on a balancer is the name or ID by which its Service chose the
	// reserved address that the balancer has. By now the name may be another address's.
	TagServiceAddress = "kubernetes-service-address"
	// TagOnDelete on a balancer is what its Service's annotation on-delete says: it outlives the
	// Service.
	TagOnDelete = "kubernetes-on-delete"
	// TagHealthCheck on a balancer is the protocol of the health check that its Service asks for, "none" for none. A
	// balancer of a release without this tag lacks it.
	TagHealthCheck = "kubernetes-health-check"
	// TagServiceTags on a balancer are the keys of the tags that its Service asks for, with commas
	// between: these are taken away when the Service does not ask for them any more.
	TagServiceTags = "kubernetes-service-tags"
	// TagNode is the name of the Node that a route leads to.
	TagNode = "kubernetes-node"
)

// TagMachine on an instance, with the value NoMachine, keeps the lab from running a
// machine for it. The CCM does not read it. The conformance suite makes such
// instances, and plays the kubelet of their Nodes itself.
const (
	TagMachine = "ccmlab-machine"
	NoMachine  = "none"
)

// AnnotationPrefix begins all annotations of this CCM. One that begins with it and
// is not defined is an error: a typo must not be silent.
const AnnotationPrefix = "fakecloud.ccmlab.io/"

// Names of annotations below, without the prefix.
const (
	NameHealthCheck = "health-check"
	NameKind        = "kind"
)

// Annotations that others than the CCM's parser read or write. All that a Service
// may ask for are in package annotations.
const (
	// AnnotationHealthCheck says how a Service's targets are checked, where kube-proxy is not to be asked.
	AnnotationHealthCheck = AnnotationPrefix + NameHealthCheck
	// AnnotationKind chooses between a proxy and a network balancer.
	AnnotationKind = AnnotationPrefix + NameKind
	// AnnotationPrompted on a Node says when the cloud watch last prompted it. It
	// has no other meaning: any change of a Node makes upstream's node controller
	// sync it at once, where its own retry may be a quarter of an hour away. It
	// stays when the Node is initialised: it tells why that went so fast, and
	// removing it would be one more write for each Node.
	AnnotationPrompted = AnnotationPrefix + "prompted"
)

// EventSource is the component that the CCM's own Events name. Upstream's
// controllers in the same process name themselves.
const EventSource = "fakecloud-ccm"

// Reasons of Events on Nodes.
const (
	ReasonInstanceNotFound  = "InstanceNotFound"
	ReasonInstanceAmbiguous = "InstanceAmbiguous"
	ReasonInstanceStopped   = "InstanceStopped"
	ReasonInstanceInError   = "InstanceInError"
	ReasonForeignProviderID = "ForeignProviderID"
	// ReasonProviderIDMissing: the Node has no provider ID, and nobody will give it one.
	ReasonProviderIDMissing = "ProviderIDMissing"
	ReasonProvidedNodeIP    = "ProvidedNodeIPMismatch"
	// ReasonNoInternalAddress: the instance has none that the cloud config lets a Node have.
	ReasonNoInternalAddress = "NoInternalAddress"
	ReasonNodeLabelSkipped  = "NodeLabelSkipped"
	ReasonMassDeletionHeld  = "MassDeletionHeld"
	// ReasonMassDeletionGuardFailed: the mass-deletion guard cannot save its record, so it deletes
	// no Node.
	ReasonMassDeletionGuardFailed = "MassDeletionGuardFailed"
	ReasonRouteConflict           = "RouteConflict"
	// ReasonRouteNotSupported: the cloud has no routes for such a range, whatever is tried.
	ReasonRouteNotSupported = "RouteNotSupported"
	// ReasonNodeRemoved is of an Event on a Node that was deleted.
	ReasonNodeRemoved = "NodeRemoved"
)

// Reasons of Events on the ConfigMap of the mass-deletion guard.
const (
	// ReasonMassDeletionStopped: too many Nodes were reported gone at once, and no more are deleted.
	ReasonMassDeletionStopped = "MassDeletionStopped"
	// ReasonMassDeletionConfirmed is of a Normal Event: a person has confirmed the deletions.
	ReasonMassDeletionConfirmed = "MassDeletionConfirmed"
)

// The ConfigMap with the records of the mass-deletion guards. To confirm the deletion of the held
// Nodes, or load balancers without a Service, a person annotates it with the number of the trip that
// the Events name.
const (
	GuardNamespace                  = "kube-system"
	GuardConfigMap                  = "fakecloud-mass-deletion-guard"
	AnnotationConfirmMassDeletion   = AnnotationPrefix + "confirm-mass-deletion"
	AnnotationConfirmOrphanDeletion = AnnotationPrefix + "confirm-orphan-deletion"
)

// Reasons of Events on Services.
const (
	// ReasonInvalidService: the Service asks for something that no balancer supports, or that cannot
	// be parsed.
	ReasonInvalidService        = "InvalidService"
	ReasonLoadBalancerFailed    = "LoadBalancerFailed"
	ReasonPortCannotBeBound     = "PortCannotBeBound"
	ReasonLoadBalancerNameTaken = "LoadBalancerNameTaken"
	// ReasonAddressNotAvailable: the chosen address is not reserved, or in use.
	ReasonAddressNotAvailable = "AddressNotAvailable"
	// ReasonLoadBalancerAmbiguous: several balancers carry the Service's tags, or
	// the balancer carries those of more than one cluster.
	ReasonLoadBalancerAmbiguous = "LoadBalancerAmbiguous"
	// ReasonLoadBalancerDegraded: the balancer is active and refuses clients.
	ReasonLoadBalancerDegraded = "LoadBalancerDegraded"
	// ReasonNoTargets: the balancer sends to no Node.
	ReasonNoTargets = "NoTargets"
	// ReasonLoadBalancerRepaired is of a Normal Event, one for each repair.
	ReasonLoadBalancerRepaired = "LoadBalancerRepaired"
	// ReasonLoadBalancerReplaced and ReasonIPv4Only are of Normal Events.
	ReasonLoadBalancerReplaced = "ReplacingLoadBalancer"
	ReasonIPv4Only             = "IPv4Only"
	// ReasonLoadBalancerKept is of a Normal Event: the Service goes, and its balancer stays.
	ReasonLoadBalancerKept = "LoadBalancerKept"
	// ReasonLoadBalancerProtected: the Service goes, and its balancer must not be deleted.
	ReasonLoadBalancerProtected = "LoadBalancerProtected"
	ReasonQuotaExceeded         = "QuotaExceeded"
	ReasonAddressPoolExhausted  = "AddressPoolExhausted"
)

// Reasons of Events on either: the CCM cannot use the cloud.
const (
	ReasonCloudUnavailable  = "CloudUnavailable"
	ReasonCloudThrottled    = "CloudThrottled"
	ReasonCloudAccessDenied = "CloudAccessDenied"
	ReasonWrongProject      = "WrongProject"
)
