package ccm

// Events say what upstream's controllers only log, or say again at every retry: why a Node
// stays tainted, a Service has no balancer, a route is missing. There is one Event for each
// cause, not for each retry, also where causes take turns.

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	cloudprovider "k8s.io/cloud-provider"
	cloudproviderapi "k8s.io/cloud-provider/api"
	"k8s.io/klog/v2"

	"github.com/ccmlab/ccmlab/ccm/annotations"
	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/ccm/doubt"
	"github.com/ccmlab/ccmlab/ccm/guard"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

// nextSteps say what a person can do about each reason, or that nothing need be done. A reason whose
// messages say so themselves has none.
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
	contract.ReasonProvidedNodeIP:   "start the kubelet with one of these addresses as --node-ip, or without it",
	contract.ReasonNodeLabelSkipped: "change the tag, or remove it from nodeLabels in the cloud config",
	contract.ReasonRouteConflict:    "the route is created once the conflicting one is gone",
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

	// Of balancers: see loadbalancer_report.go.
	contract.ReasonInvalidService:     "change the Service's spec or annotations",
	contract.ReasonLoadBalancerFailed: "the cloud retries; if this lasts, fix the stated cause, or check the cloud",
	contract.ReasonNoTargets: "check the Events of the Nodes, and the Service's annotation " +
		annotations.Prefix + annotations.NodeSelector + " if it is set",
	contract.ReasonPortCannotBeBound:     "the cloud retries, and succeeds once the port is free",
	contract.ReasonLoadBalancerAmbiguous: "delete the load balancers that are not this Service's, or remove their tags",
	contract.ReasonLoadBalancerProtected: "remove the protection in the cloud, or set the Service's annotation " +
		annotations.Prefix + annotations.OnDelete + " to delete or keep",
	// The messages of these say what to do.
	contract.ReasonMassDeletionHeld:        "",
	contract.ReasonMassDeletionGuardFailed: "",
	contract.ReasonMassDeletionStopped:     "",
	contract.ReasonLoadBalancerNameTaken:   "",
	contract.ReasonAddressNotAvailable:     "",
	contract.ReasonLoadBalancerDegraded:    "",
	// There is nothing to do.
	contract.ReasonLoadBalancerReplaced: "",
	contract.ReasonIPv4Only:             "",
}

// nextStep is what to do about a reason.
func nextStep(reason string) string { return nextSteps[reason] }

// Topics are what may be wrong with an object. Several may be wrong at once; each topic has one
// cause at a time, which may change at every retry.
const (
	topicInitialization = "initialization"
	topicInstance       = "instance"
	topicLabels         = "labels"
	topicProviderID     = "provider-id"
	topicLoadBalancer   = "load-balancer"
	topicTargets        = "targets"
	topicRoute          = "route" // one for each destination: topicRoute + " " + CIDR
)

// cause is why something is not as it should be.
type cause struct {
	reason string
	// detail tells causes of one reason apart. It is the same at every retry, unlike a
	// message with a request ID or a time in it.
	detail string
}

// objectTopic is a topic of one object.
type objectTopic struct {
	uid   types.UID
	topic string
}

// explainer writes one Event per object, topic and cause.
type explainer struct {
	mu       sync.Mutex
	recorder record.EventRecorder
	// reported are the causes that were met since the topic was last resolved, each once, the
	// latest at the end.
	reported map[objectTopic][]cause
}

// maxReportedCauses is how many causes of a topic are remembered.
const maxReportedCauses = 16

func newExplainer() *explainer { return &explainer{reported: map[objectTopic][]cause{}} }

func (e *explainer) setRecorder(r record.EventRecorder) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.recorder = r
}

// object is a Node, a Service or another object that has Events.
type object interface {
	runtime.Object
	GetUID() types.UID
}

// warnOnce writes an Event about a cause, unless it did so since the topic was last resolved.
func (e *explainer) warnOnce(obj object, topic string, c cause, format string, args ...any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.recorder == nil {
		return
	}
	key := objectTopic{obj.GetUID(), topic}
	others := slices.DeleteFunc(slices.Clone(e.reported[key]), func(other cause) bool { return other == c })
	news := len(others) == len(e.reported[key])
	e.reported[key] = append(others[max(0, len(others)+1-maxReportedCauses):], c)
	if news {
		e.recorder.Eventf(obj, corev1.EventTypeWarning, c.reason, format, args...)
	}
}

// WarnOnce, Note and Resolve are for package guard.

// WarnOnce writes an Event about a cause, unless it did so since the topic was last resolved.
func (e *explainer) WarnOnce(obj guard.Object, topic, reason, detail, message string) {
	e.warnOnce(obj, topic, cause{reason, detail}, "%s", message)
}

// Note writes an Event about something that happened.
func (e *explainer) Note(obj guard.Object, reason, message string) {
	e.recordNormalEvent(obj, reason, "%s", message)
}

// Resolve records that the topic's causes are over.
func (e *explainer) Resolve(obj guard.Object, topic string) { e.markResolved(obj, topic) }

// reasonPending is the last reason of a topic whose causes are over, while what was asked for is not done
// yet. It has no Event.
const reasonPending = "Pending"

// markPending records that the topic's causes are over, if it has any, and may come again without
// another Event until it is resolved.
func (e *explainer) markPending(obj object, topic string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	key, pending := objectTopic{obj.GetUID(), topic}, cause{reason: reasonPending}
	if causes := e.reported[key]; len(causes) > 0 && causes[len(causes)-1] != pending {
		others := slices.DeleteFunc(slices.Clone(causes), func(c cause) bool { return c == pending })
		e.reported[key] = append(others, pending)
	}
}

// recordNormalEvent writes an Event about something that happened, one for each call.
func (e *explainer) recordNormalEvent(obj object, reason, format string, args ...any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.recorder != nil {
		e.recorder.Eventf(obj, corev1.EventTypeNormal, reason, format, args...)
	}
}

// markResolved records that all is well: a cause that comes again has an Event again.
func (e *explainer) markResolved(obj object, topic string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.reported, objectTopic{obj.GetUID(), topic})
}

// hasUnresolved tells whether the topic has a cause that is not resolved.
func (e *explainer) hasUnresolved(obj object, topic string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	_, unresolved := e.reported[objectTopic{obj.GetUID(), topic}]
	return unresolved
}

// isLastReason tells whether the topic's last cause has that reason.
func (e *explainer) isLastReason(obj object, topic string, reasons ...string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	causes := e.reported[objectTopic{obj.GetUID(), topic}]
	return len(causes) > 0 && slices.Contains(reasons, causes[len(causes)-1].reason)
}

// forgetObject handles an informer's deletions: it drops what is remembered of an object that
// was deleted.
func (e *explainer) forgetObject(obj any) {
	if last, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = last.Obj
	}
	gone, ok := obj.(object)
	if !ok {
		klog.ErrorS(nil, "Informer reported the deletion of an unexpected type", "type", fmt.Sprintf("%T", obj))
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for key := range e.reported {
		if key.uid == gone.GetUID() {
			delete(e.reported, key)
		}
	}
}

// explainInitialization explains why a Node stays uninitialised, or resolves the topic when err is
// nil. For an initialised Node, whose addresses the controller reads every few minutes, it explains
// only a --node-ip that contradicts them; other errors are ignored.
func (e *explainer) explainInitialization(node *corev1.Node, err error) {
	if err == nil {
		e.markResolved(node, topicInitialization)
		return
	}
	what := "Node stays uninitialized"
	if !isUninitialized(node) {
		var mismatch *nodeIPError
		if !errors.As(err, &mismatch) {
			return
		}
		what = "Node's addresses are not updated"
	}
	e.explainError(node, topicInitialization, what, err)
}

// errNoProviderID means that a Node has no provider ID, and that no controller will set one.
var errNoProviderID = newReasonError(contract.ReasonProviderIDMissing,
	"it has no provider ID, and no taint %s, without which no controller sets one; "+
		"it gets no route and is not a load balancer target", cloudproviderapi.TaintExternalCloudProvider)

// checkOwnNode fails for a Node that is not ours: it has another cloud's provider ID, or none and no
// taint with which it would get one.
func checkOwnNode(node *corev1.Node) error {
	if node.Spec.ProviderID != "" {
		_, err := parseProviderID(node.Spec.ProviderID)
		return err
	}
	if !isUninitialized(node) {
		return errNoProviderID
	}
	return nil
}

// explainIgnoredNode explains why a Node is ignored. A Node with the taint is explained by the
// controller that initialises it.
func (e *explainer) explainIgnoredNode(node *corev1.Node) {
	err := checkOwnNode(node)
	if err == nil || isUninitialized(node) {
		e.markResolved(node, topicProviderID)
		return
	}
	e.explainError(node, topicProviderID, "Node is ignored", err)
}

// explainError writes one Event about an error, by its cause: what is wrong, why, and what to do.
func (e *explainer) explainError(obj object, topic, what string, err error) {
	c := causeOf(err)
	message := fmt.Sprintf("%s: %v", what, err)
	if step := nextStep(c.reason); step != "" {
		message += "; " + step
	}
	e.warnOnce(obj, topic, c, "%s", message)
}

// explainInstanceState writes an Event on a Node each time its instance stops or fails.
func (e *explainer) explainInstanceState(node *corev1.Node, instance *api.Instance) {
	switch instance.State {
	case api.InstanceStopped:
		e.warnOnce(node, topicInstance, cause{reason: contract.ReasonInstanceStopped},
			"Instance %s is stopped; %s", instance.ID, nextStep(contract.ReasonInstanceStopped))
	case api.InstanceError:
		why := "the cloud gives no reason"
		if r := instance.StateReason; r != nil && *r != "" {
			why = *r
		}
		e.warnOnce(node, topicInstance, cause{contract.ReasonInstanceInError, why},
			"Instance %s is in error: %s; %s", instance.ID, why, nextStep(contract.ReasonInstanceInError))
	default:
		e.markResolved(node, topicInstance)
	}
}

func isUninitialized(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool {
		return t.Key == cloudproviderapi.TaintExternalCloudProvider
	})
}

// causeOf maps an error to a reason. An error's own cause precedes the cloud's refusal. Any other
// error means that the cloud is unavailable.
func causeOf(err error) cause {
	var known interface{ cause() cause }
	var refused *client.Error
	switch {
	case errors.As(err, &known):
		return known.cause()
	case errors.Is(err, doubt.ErrWrongProject): // Before "not found", which another project answered.
		return cause{reason: contract.ReasonWrongProject}
	case errors.Is(err, cloudprovider.InstanceNotFound), errors.Is(err, errNoSuchName):
		return cause{reason: contract.ReasonInstanceNotFound}
	case errors.As(err, &refused):
		return causeOfRefusal(refused)
	default:
		return cause{reason: contract.ReasonCloudUnavailable}
	}
}

func causeOfRefusal(refused *client.Error) cause {
	switch refused.Problem.Code {
	case api.RouteConflict:
		return cause{reason: contract.ReasonRouteConflict}
	case api.QuotaExceeded:
		return cause{reason: contract.ReasonQuotaExceeded}
	case api.AddressPoolExhausted:
		return cause{reason: contract.ReasonAddressPoolExhausted}
	}
	switch refused.Status {
	case http.StatusTooManyRequests:
		return cause{reason: contract.ReasonCloudThrottled}
	case http.StatusUnauthorized, http.StatusForbidden:
		return cause{reason: contract.ReasonCloudAccessDenied}
	}
	return cause{reason: contract.ReasonCloudUnavailable}
}
