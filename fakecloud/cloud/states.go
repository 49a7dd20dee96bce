package cloud

import "github.com/ccmlab/ccmlab/fakecloud/api"

// Before its creation and after its deletion, a resource has none of the API's states.
const (
	instanceNone     api.InstanceState     = ""
	loadBalancerNone api.LoadBalancerState = ""
	addressNone      api.AddressState      = ""
)

// Action is what moves a resource from state to state.
type Action string

// Actions are asked for by callers (Create to Detach), come with time (Elapsed), or say how
// building a balancer ended (Built, Failed).
const (
	Create    Action = "create"
	Start     Action = "start"
	Stop      Action = "stop"
	Reboot    Action = "reboot"
	Terminate Action = "terminate"
	Update    Action = "update"
	Delete    Action = "delete"
	Attach    Action = "attach"
	Detach    Action = "detach"
	Elapsed   Action = "elapsed"
	Built     Action = "built"
	Failed    Action = "failed"
	// Crash is brought about by faults, and Recover by the end of an outage.
	Crash   Action = "crash"
	Recover Action = "recover"
)

// Rule is one row of a state machine. All transitions are looked up in the tables below.
// What no rule allows is refused with code wrong-state.
type Rule[S ~string] struct {
	From S
	On   Action
	To   S
	// Wait is the delay after which To ends by itself; without it, To lasts. An update that
	// leaves a balancer in its state does not start the delay again.
	Wait Delay
	// Same means that the action is allowed and changes nothing.
	Same bool
	// Reason is an instance's state reason in To. A balancer's reasons come from the data
	// plane and from faults.
	Reason string
}

// InstanceRules is the life of an instance.
var InstanceRules = []Rule[api.InstanceState]{
	{From: instanceNone, On: Create, To: api.InstancePending, Wait: DelayPending},
	{From: api.InstancePending, On: Elapsed, To: api.InstanceRunning},
	{From: api.InstanceStopping, On: Elapsed, To: api.InstanceStopped},
	{From: api.InstanceTerminating, On: Elapsed, To: api.InstanceTerminated, Wait: DelayRetention},
	{From: api.InstanceTerminated, On: Elapsed, To: instanceNone},

	{From: api.InstanceStopped, On: Start, To: api.InstancePending, Wait: DelayPending},
	{From: api.InstancePending, On: Start, Same: true},
	{From: api.InstanceRunning, On: Start, Same: true},

	// An instance in error is started, or stopped, as one that does not run.
	{From: api.InstanceError, On: Start, To: api.InstancePending, Wait: DelayPending},
	{From: api.InstanceError, On: Stop, To: api.InstanceStopping, Wait: DelayStopping},
	{From: api.InstanceError, On: Recover, To: api.InstancePending, Wait: DelayPending, Reason: "recovering"},

	{From: api.InstanceRunning, On: Reboot, To: api.InstancePending, Wait: DelayPending, Reason: "rebooting"},
	{From: api.InstancePending, On: Reboot, Same: true},

	{From: api.InstancePending, On: Crash, To: api.InstanceError, Reason: "crashed"},
	{From: api.InstanceRunning, On: Crash, To: api.InstanceError, Reason: "crashed"},
	{From: api.InstancePending, On: Failed, To: api.InstanceError},

	{From: api.InstanceRunning, On: Stop, To: api.InstanceStopping, Wait: DelayStopping},
	{From: api.InstanceStopping, On: Stop, Same: true},
	{From: api.InstanceStopped, On: Stop, Same: true},

	{From: api.InstancePending, On: Terminate, To: api.InstanceTerminating, Wait: DelayTerminating},
	{From: api.InstanceRunning, On: Terminate, To: api.InstanceTerminating, Wait: DelayTerminating},
	{From: api.InstanceStopping, On: Terminate, To: api.InstanceTerminating, Wait: DelayTerminating},
	{From: api.InstanceStopped, On: Terminate, To: api.InstanceTerminating, Wait: DelayTerminating},
	{From: api.InstanceError, On: Terminate, To: api.InstanceTerminating, Wait: DelayTerminating},
	{From: api.InstanceTerminating, On: Terminate, Same: true},
	{From: api.InstanceTerminated, On: Terminate, Same: true},
}

// LoadBalancerRules is the life of a load balancer.
var LoadBalancerRules = []Rule[api.LoadBalancerState]{
	{From: loadBalancerNone, On: Create, To: api.LoadBalancerProvisioning, Wait: DelayProvisioning},
	{From: api.LoadBalancerProvisioning, On: Built, To: api.LoadBalancerActive},
	{From: api.LoadBalancerProvisioning, On: Failed, To: api.LoadBalancerError, Wait: DelayRetry},
	{From: api.LoadBalancerUpdating, On: Built, To: api.LoadBalancerActive},
	{From: api.LoadBalancerUpdating, On: Failed, To: api.LoadBalancerError, Wait: DelayRetry},
	{From: api.LoadBalancerError, On: Built, To: api.LoadBalancerActive},
	{From: api.LoadBalancerError, On: Failed, To: api.LoadBalancerError, Wait: DelayRetry},
	// An active balancer is built again when the process starts.
	{From: api.LoadBalancerActive, On: Built, Same: true},
	{From: api.LoadBalancerActive, On: Failed, To: api.LoadBalancerError, Wait: DelayRetry},

	{From: api.LoadBalancerProvisioning, On: Update, To: api.LoadBalancerProvisioning, Wait: DelayProvisioning},
	{From: api.LoadBalancerActive, On: Update, To: api.LoadBalancerUpdating, Wait: DelayUpdating},
	{From: api.LoadBalancerUpdating, On: Update, To: api.LoadBalancerUpdating, Wait: DelayUpdating},
	{From: api.LoadBalancerError, On: Update, To: api.LoadBalancerUpdating, Wait: DelayUpdating},

	{From: api.LoadBalancerProvisioning, On: Delete, To: api.LoadBalancerDeleting, Wait: DelayDeleting},
	{From: api.LoadBalancerActive, On: Delete, To: api.LoadBalancerDeleting, Wait: DelayDeleting},
	{From: api.LoadBalancerUpdating, On: Delete, To: api.LoadBalancerDeleting, Wait: DelayDeleting},
	{From: api.LoadBalancerError, On: Delete, To: api.LoadBalancerDeleting, Wait: DelayDeleting},
	{From: api.LoadBalancerDeleting, On: Delete, Same: true},
	{From: api.LoadBalancerDeleting, On: Elapsed, To: loadBalancerNone},
}

// OperationRule says what a change that takes time waits for. While its resource is in one
// of the states While, the operation runs. The states Done and Failed end it. Any other
// state supersedes it, as something else was asked for; so does a later operation of the
// same type.
type OperationRule struct {
	Type     string // the operation's name in the API
	Resource Resource
	On       Action
	While    []string
	Done     string
	Failed   string
}

// OperationRules are the changes that take time. An update of a balancer that is being
// created does not supersede the creation: both end when the balancer is active.
var OperationRules = []OperationRule{
	{
		Type: "createInstance", Resource: api.ResourceInstance, On: Create, While: stateNames(api.InstancePending),
		Done: string(api.InstanceRunning), Failed: string(api.InstanceError),
	},
	{
		Type: "startInstance", Resource: api.ResourceInstance, On: Start, While: stateNames(api.InstancePending),
		Done: string(api.InstanceRunning), Failed: string(api.InstanceError),
	},
	{
		Type: "rebootInstance", Resource: api.ResourceInstance, On: "reboot", While: stateNames(api.InstancePending),
		Done: string(api.InstanceRunning), Failed: string(api.InstanceError),
	},
	{
		Type: "stopInstance", Resource: api.ResourceInstance, On: Stop, While: stateNames(api.InstanceStopping),
		Done: string(api.InstanceStopped), Failed: string(api.InstanceError),
	},
	{
		Type: "terminateInstance", Resource: api.ResourceInstance, On: Terminate, While: stateNames(api.InstanceTerminating),
		Done: string(api.InstanceTerminated), Failed: string(api.InstanceError),
	},
	{
		Type: "createLoadBalancer", Resource: api.ResourceLoadBalancer, On: Create,
		While: stateNames(api.LoadBalancerProvisioning), Done: string(api.LoadBalancerActive),
		Failed: string(api.LoadBalancerError),
	},
	{
		Type: "updateLoadBalancer", Resource: api.ResourceLoadBalancer, On: Update,
		While: stateNames(api.LoadBalancerProvisioning, api.LoadBalancerUpdating), Done: string(api.LoadBalancerActive),
		Failed: string(api.LoadBalancerError),
	},
	{
		Type: "deleteLoadBalancer", Resource: api.ResourceLoadBalancer, On: Delete,
		While: stateNames(api.LoadBalancerDeleting), Done: string(loadBalancerNone), Failed: string(api.LoadBalancerError),
	},
}

func stateNames[S ~string](in ...S) []string {
	out := make([]string, len(in))
	for i, s := range in {
		out[i] = string(s)
	}
	return out
}

// AddressRules is the life of a reserved address. It is attached to and detached from an
// instance by calls. A load balancer attaches it when it is created, and detaches it when
// it is gone. What no rule allows is refused with code in-use.
var AddressRules = []Rule[api.AddressState]{
	{From: addressNone, On: Create, To: api.AddressAvailable},
	{From: api.AddressAvailable, On: Attach, To: api.AddressHeld},
	{From: api.AddressHeld, On: Detach, To: api.AddressAvailable},
	{From: api.AddressAvailable, On: Detach, Same: true},
	{From: api.AddressAvailable, On: Delete, To: addressNone},
}

func findRule[S ~string](rules []Rule[S], from S, on Action) (Rule[S], bool) {
	for _, r := range rules {
		if r.From == from && r.On == on {
			return r, true
		}
	}
	return Rule[S]{}, false
}
