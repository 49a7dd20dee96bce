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
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

// nextSteps say what a person can do about each reason, or that nobody need do anything. A
// reason whose messages say so themselves has none.
var nextSteps = map[string]string{
	contract.ReasonInstanceNotFound: "create an instance with the Node's name in the project of this CCM, " +
		"or delete the Node",
	contract.ReasonInstanceAmbiguous: "terminate all but the Node's own, or give the kubelet a --provider-id",
	contract.ReasonInstanceStopped:   "start it, or terminate it if it is not to come back",
	contract.ReasonInstanceInError:   "mend or replace the instance",
	contract.ReasonForeignProviderID: "a Node of another cloud is left alone; if this one is ours, delete it " +
		"and start its kubelet without --provider-id",
	contract.ReasonProviderIDMissing: "if it is ours, delete it and start its kubelet with --cloud-provider=external",
	contract.ReasonProvidedNodeIP:    "start the kubelet with one of these addresses as --node-ip, or without it",
	contract.ReasonNodeLabelSkipped:  "change the tag, or leave it out of the CCM's nodeLabels",
	contract.ReasonMassDeletionGuardFailed: "let the CCM get, create and update configmap " +
		contract.GuardNamespace + "/" + contract.GuardConfigMap + " (see manifests/ccm/base/rbac)",
	contract.ReasonRouteConflict: "the route comes by itself once the way is free",
	contract.ReasonRouteNotSupported: "give the cluster an IPv4 range for its pods, " +
		"or leave this one to the network plugin",
	contract.ReasonWrongProject:  "give the CCM a token of the project that it is configured for",
	contract.ReasonQuotaExceeded: "delete what is not needed, or have the project's quota raised",
	contract.ReasonAddressPoolExhausted: "delete balancers or release addresses that are not needed, " +
		"or have the pool enlarged",
	contract.ReasonCloudThrottled: "it is tried again by itself; if this lasts, look for who calls the cloud so often, " +
		"or have the limit raised",
	contract.ReasonCloudAccessDenied: "give the CCM a valid token with the role editor",
	contract.ReasonCloudUnavailable: "it is tried again by itself; if this lasts, " +
		"see to the cloud and the way there",

	// Of balancers: see loadbalancer_report.go.
	contract.ReasonInvalidService: "change the Service's spec or annotations",
	contract.ReasonLoadBalancerFailed: "the cloud tries again by itself; if this lasts, mend what it names, " +
		"or see to the cloud",
	contract.ReasonNoTargets: "see the Events of the Nodes, and the annotation " +
		annotations.Prefix + annotations.NodeSelector + " if the Service has it",
	contract.ReasonPortCannotBeBound:     "the cloud tries again by itself, and succeeds once the port can be bound",
	contract.ReasonLoadBalancerAmbiguous: "delete the balancers that are not this Service's, or remove their tags",
	contract.ReasonLoadBalancerProtected: "lift the protection in the cloud, or give the Service the annotation " +
		annotations.Prefix + annotations.OnDelete + " with the value delete or keep",
	// The messages of these say what to do.
	contract.ReasonMassDeletionHeld:      "",
	contract.ReasonMassDeletionStopped:   "",
	contract.ReasonLoadBalancerNameTaken: "",
	contract.ReasonAddressNotAvailable:   "",
	contract.ReasonLoadBalancerDegraded:  "",
	// There is nothing to do.
	contract.ReasonLoadBalancerReplaced: "",
	contract.ReasonIPv4Only:             "",
}

// nextStep is what to do about a reason.
func nextStep(reason string) string { return nextSteps[reason] }

// Topics are what may have to be explained of one object, several at a time. Each has one
// cause at a time; a cloud in trouble may give another cause at every retry.
const (
	topicInitialization = "initialization"
	topicInstance       = "instance"
	topicLabels         = "labels"
	topicProviderID     = "provider-id"
	topicExistence      = "existence"
	topicMassDeletion   = "mass-deletion"
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

// object is a Node or a Service, or what else has Events.
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
		klog.ErrorS(nil, "An informer told of the end of something that is no object", "type", fmt.Sprintf("%T", obj))
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

// explainInitialization explains why a Node stays uninitialised, or resolves that when err is
// nil. Of a Node that is initialised there is little to explain, since the controller asks
// again for its addresses every few minutes; but if the kubelet does not agree with them they
// never come. Another error neither explains nor resolves that.
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
		what = "Node's addresses stay as they were"
	}
	e.explainError(node, topicInitialization, what, err)
}

// errNoProviderID is that a Node has no provider ID, and that no controller will give it one.
var errNoProviderID = newReasonError(contract.ReasonProviderIDMissing,
	"it has no provider ID, and lacks the taint %s with which it would get one; "+
		"it is no target of load balancers, and gets no route", cloudproviderapi.TaintExternalCloudProvider)

// checkOwnNode returns why a Node is none of ours: it has another cloud's provider ID, or it has none and
// lacks the taint with which it would get one.
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

// explainLeftAlone explains why a Node is left alone that is none of ours. One that has the taint is
// explained by who tries to initialize it.
func (e *explainer) explainLeftAlone(node *corev1.Node) {
	err := checkOwnNode(node)
	if err == nil || isUninitialized(node) {
		e.markResolved(node, topicProviderID)
		return
	}
	e.explainError(node, topicProviderID, "Node is left alone", err)
}

// explainError writes one Event about an error, by its cause: what is not as it should be,
// why, and what to do about it.
func (e *explainer) explainError(obj object, topic, what string, err error) {
	c := causeOf(err)
	message := fmt.Sprintf("%s: %v", what, err)
	if step := nextStep(c.reason); step != "" {
		message += "; " + step
	}
	e.warnOnce(obj, topic, c, "%s", message)
}

// explainInstanceState writes an Event on a Node whose instance exists and does not run, one
// each time that it ceases to run.
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

// errWrongProject is in the chain of an error about an answer that is not our project's.
var errWrongProject = errors.New("wrong project")

// causeOf is the one place where an error becomes a reason. An error that knows its own cause
// comes before the cloud's refusal, and any other error means that the cloud cannot be used
// just now.
func causeOf(err error) cause {
	var known interface{ cause() cause }
	var refused *client.Error
	switch {
	case errors.As(err, &known):
		return known.cause()
	case errors.Is(err, errWrongProject): // Before "not found", which is that of another project.
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
