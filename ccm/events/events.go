// Package events says in Events what upstream's controllers only log, or say again at every retry: why a Node stays
// tainted, a Service has no balancer, a route is missing. There is one Event for each cause, not for each retry, also
// where causes take turns.
package events

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/record"
	cloudprovider "k8s.io/cloud-provider"
	cloudproviderapi "k8s.io/cloud-provider/api"

	"github.com/ccmlab/ccmlab/ccm/annotations"
	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/ccm/core"
	"github.com/ccmlab/ccmlab/ccm/ring"
)

// nextSteps say what a person can do about each reason, or that nothing need be done. A reason has none if its messages
// say so themselves, or if there is nothing to do.
var nextSteps = map[string]string{
	contract.ReasonInstanceNotFound: "create an instance with the Node's name in the project of this CCM, " +
		"or delete the Node",
	contract.ReasonInstanceAmbiguous: "terminate the instances that are not the Node's, " +
		"or start the kubelet with --provider-id",
	contract.ReasonInstanceStopped: "start it, or terminate it if it is no longer needed",
	contract.ReasonInstanceInError: "repair or replace the instance",
	contract.ReasonForeignProviderID: "the CCM ignores Nodes of other clouds; if this one is ours, delete it " +
		"and start its kubelet without --provider-id",
	contract.ReasonProviderIDMissing: "if the Node is ours, delete it and start its kubelet " +
		"with --cloud-provider=external",
	contract.ReasonProvidedNodeIP:    "start the kubelet with one of these addresses as --node-ip, or without it",
	contract.ReasonNoInternalAddress: "give the instance one, or change nodeAddresses",
	contract.ReasonNodeLabelSkipped:  "change the tag, or remove it from nodeLabels in the cloud config",
	contract.ReasonRouteConflict:     "the route is created once the conflicting one is gone",
	contract.ReasonRouteNotSupported: "give the cluster an IPv4 range for its pods, " +
		"or leave this one to the network plugin",
	contract.ReasonWrongProject:  "give the CCM a token of the project that it is configured for",
	contract.ReasonQuotaExceeded: "delete unused resources, or ask for a higher quota",
	contract.ReasonAddressPoolExhausted: "delete unused load balancers, release unused addresses, " +
		"or ask for a larger pool",
	contract.ReasonCloudThrottled: "the CCM retries; if this lasts, find out what calls the cloud so often, " +
		"or ask for a higher limit",
	contract.ReasonCloudAccessDenied: "give the CCM a valid token with the role editor",
	contract.ReasonCloudUnavailable:  "the CCM retries; if this lasts, check the cloud and the network to it",

	// Of balancers.
	contract.ReasonInvalidService:     "change the Service's spec or annotations",
	contract.ReasonLoadBalancerFailed: "the cloud retries; if this lasts, fix the stated cause, or check the cloud",
	contract.ReasonNoTargets: "check the Events of the Nodes, and the Service's annotation " +
		annotations.Prefix + annotations.NodeSelector + " if it is set",
	contract.ReasonPortCannotBeBound:     "the cloud retries, and succeeds once the port is free",
	contract.ReasonLoadBalancerAmbiguous: "delete the load balancers that are not this Service's, or remove their tags",
	contract.ReasonLoadBalancerProtected: "remove the protection in the cloud, or set the Service's annotation " +
		annotations.Prefix + annotations.OnDelete + " to delete or keep",
}

// Topics are what may be wrong with an object. Several may be wrong at once; each topic has one cause at a time, which
// may change at every retry.
const (
	topicInitialization = "initialization"
	topicInstance       = "instance"
	topicLabels         = "labels"
	topicLoadBalancer   = "load-balancer"
	topicServing        = "serving" // whether a balancer that matches its Service serves clients
	topicTargets        = "targets"
	topicRoute          = "route" // one for each destination: topicRoute + " " + CIDR
)

// noticeTopics are the topics of notices, by reason. Other notices tell of something that was done.
var noticeTopics = map[string]string{
	contract.ReasonInstanceStopped:         topicInstance,
	contract.ReasonInstanceInError:         topicInstance,
	contract.ReasonMassDeletionHeld:        topicInstance,
	contract.ReasonMassDeletionGuardFailed: topicInstance,
	contract.ReasonNodeLabelSkipped:        topicLabels,
	contract.ReasonLoadBalancerDegraded:    topicServing,
	contract.ReasonNoTargets:               topicTargets,
	contract.ReasonRouteNotSupported:       topicRoute,
}

// explained are the calls whose errors and notices have Events. A call resolves its topics if it does not fail, and no
// notice is about them. The error's topic is the first one, and summary begins its Event; without one it has none.
var explained = map[string]struct {
	summary string
	topics  []string
}{
	"FindInstance":              {"", []string{topicInstance}},
	"MayDelete":                 {"", []string{topicInstance}},
	"InstanceExists":            {"", []string{topicInstance}},
	"InstanceShutdown":          {"", []string{topicInstance}},
	"InstanceMetadata":          {"Node stays uninitialized", []string{topicInitialization, topicInstance, topicLabels}},
	"GetLoadBalancer":           {notDeleted, []string{topicLoadBalancer}},
	"EnsureLoadBalancer":        {doesNotMatch, []string{topicLoadBalancer, topicServing, topicTargets}},
	"UpdateLoadBalancer":        {doesNotMatch, []string{topicLoadBalancer, topicServing, topicTargets}},
	"EnsureLoadBalancerDeleted": {notDeleted, []string{topicLoadBalancer, topicServing}},
	"CreateRoute":               {"Route %s is missing", []string{topicRoute}},
}

const (
	doesNotMatch = "The load balancer does not match the Service"
	notDeleted   = "The load balancer is not deleted"
)

// maxProvisioningRetry is the longest delay of a retry while nothing is wrong, but the work is not done yet.
const maxProvisioningRetry = 5 * time.Second

// objectTopic is a topic of one object.
type objectTopic struct {
	uid   types.UID
	topic string
}

// Explainer writes one Event per object, topic and cause. It is safe for concurrent use.
type Explainer struct {
	nodes corelisters.NodeLister // set by Follow

	mu       sync.Mutex
	recorder record.EventRecorder // nil before SetRecorder
	// reported are the causes that were met since the topic was last resolved, each once, the latest at the end.
	reported map[objectTopic][]core.Cause
	// pendingSince is when the first of the uninterrupted calls for an object found the work not done yet.
	pendingSince map[types.UID]time.Time
}

// maxReportedCauses is how many causes of a topic are remembered.
const maxReportedCauses = 16

// New makes an explainer, which writes nothing before it has a recorder.
func New() *Explainer {
	return &Explainer{reported: map[objectTopic][]core.Cause{}, pendingSince: map[types.UID]time.Time{}}
}

// SetRecorder sets what writes Events.
func (e *Explainer) SetRecorder(r record.EventRecorder) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.recorder = r
}

// Follow has what was reported of a Node or a Service forgotten with it. Call it before the informers start.
func (e *Explainer) Follow(shared informers.SharedInformerFactory) {
	e.nodes = shared.Core().V1().Nodes().Lister()
	ring.OnDeletion(shared, e.forget)
}

// Explain has the provider's errors and notices explained.
func (e *Explainer) Explain(p core.Provider) core.Provider { return ring.Wrap(p, e.explainCall) }

// explainCall makes a call, and writes Events about what is wrong with its object.
func (e *Explainer) explainCall(ctx context.Context, call ring.Call, next func(context.Context) error) error {
	about, known := explained[call.Method]
	obj := e.objectOf(call)
	if !known || obj == nil {
		return next(ctx)
	}
	summary, ofRoute := about.summary, ""
	if call.Route != nil { // A Node of two families has two routes.
		ofRoute = " " + call.Route.DestinationCIDR
		summary = fmt.Sprintf(summary, call.Route.DestinationCIDR)
	}
	var noticed []string
	err := next(core.WithNotices(ctx, func(n core.Notice) {
		topic, isWrong := noticeTopics[n.Reason]
		if !isWrong {
			e.Note(obj, n.Reason, n.Message)
			return
		}
		noticed = append(noticed, topic)
		e.WarnOnce(obj, topic+ofRoute, n.Reason, n.Detail, n.Message)
	}))
	err = e.slowDownRetry(obj, err)
	switch {
	case core.IsPending(err), errors.Is(err, cloudprovider.ImplementedElsewhere): // Nothing is wrong.
	case err != nil:
		e.explainError(obj, about.topics[0]+ofRoute, summary, err)
	case call.Method != "GetLoadBalancer": // It deletes nothing yet.
		for _, topic := range about.topics {
			if !slices.Contains(noticed, topic) {
				e.Resolve(obj, topic+ofRoute)
			}
		}
	}
	return err
}

// objectOf is what the Events about a call are about; nil for nothing.
func (e *Explainer) objectOf(call ring.Call) ring.Object {
	if call.Object != nil || call.Route == nil || e.nodes == nil {
		return call.Object
	}
	node, err := e.nodes.Get(string(call.Route.TargetNode))
	if err != nil {
		return nil
	}
	return node
}

// slowDownRetry grows the delay of a retry while work is not done yet, to a quarter of the time waited so far, because
// upstream writes two Events at each. The time is measured by our own clock, not the cloud's.
func (e *Explainer) slowDownRetry(obj ring.Object, err error) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	var retry *cloudproviderapi.RetryError
	if !core.IsPending(err) || !errors.As(err, &retry) {
		delete(e.pendingSince, obj.GetUID())
		return err
	}
	since, waits := e.pendingSince[obj.GetUID()]
	if !waits {
		since = time.Now()
		e.pendingSince[obj.GetUID()] = since
	}
	delay := min(time.Since(since)/4, maxProvisioningRetry)
	return cloudproviderapi.NewRetryError(err.Error(), max(delay, retry.RetryAfter()))
}

// explainError writes one Event about an error, by its cause: what is wrong, why, and what to do. Of an initialised
// Node, whose addresses the controller reads every few minutes, only a --node-ip that contradicts them is worth one.
func (e *Explainer) explainError(obj ring.Object, topic, summary string, err error) {
	cause := core.CauseOf(err)
	if node, isNode := obj.(*corev1.Node); isNode && topic == topicInitialization && !core.IsUninitialized(node) {
		if cause.Reason != contract.ReasonProvidedNodeIP {
			return
		}
		summary = "Node's addresses are not updated"
	}
	if summary != "" {
		e.WarnOnce(obj, topic, cause.Reason, cause.Detail, fmt.Sprintf("%s: %v", summary, err))
	}
}

// WarnOnce writes a Warning about a cause, unless it did so since the topic was last resolved. Reason and detail tell
// causes apart. The message ends with what to do.
func (e *Explainer) WarnOnce(obj ring.Object, topic, reason, detail, message string) {
	cause := core.Cause{Reason: reason, Detail: detail}
	if step := nextSteps[cause.Reason]; step != "" {
		message += "; " + step
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.recorder == nil {
		return
	}
	key := objectTopic{obj.GetUID(), topic}
	others := slices.DeleteFunc(slices.Clone(e.reported[key]), func(other core.Cause) bool { return other == cause })
	news := len(others) == len(e.reported[key])
	e.reported[key] = append(others[max(0, len(others)+1-maxReportedCauses):], cause)
	if news {
		e.recorder.Event(obj, corev1.EventTypeWarning, cause.Reason, message)
	}
}

// Note writes a Normal Event about something that happened, one for each call.
func (e *Explainer) Note(obj ring.Object, reason, message string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.recorder != nil {
		e.recorder.Event(obj, corev1.EventTypeNormal, reason, message)
	}
}

// Resolve records that all is well: a cause that comes again has an Event again.
func (e *Explainer) Resolve(obj ring.Object, topic string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.reported, objectTopic{obj.GetUID(), topic})
}

// forget drops what is remembered of an object that was deleted.
func (e *Explainer) forget(uid types.UID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.pendingSince, uid)
	for key := range e.reported {
		if key.uid == uid {
			delete(e.reported, key)
		}
	}
}
