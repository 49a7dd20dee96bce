package cloud

import "github.com/ccmlab/ccmlab/fakecloud/api"

// InstanceState is where an instance is in its life.
type InstanceState = api.InstanceState

// The states of an instance. An instance in error does not run and keeps its address.
const (
	InstancePending     = api.InstancePending
	InstanceRunning     = api.InstanceRunning
	InstanceStopping    = api.InstanceStopping
	InstanceStopped     = api.InstanceStopped
	InstanceTerminating = api.InstanceTerminating
	InstanceTerminated  = api.InstanceTerminated
	InstanceError       = api.InstanceError

	instanceNone InstanceState = "" // before creation and after deletion
)

// LoadBalancerState is where a balancer is in its life.
type LoadBalancerState = api.LoadBalancerState

// The states of a load balancer.
const (
	LoadBalancerProvisioning = api.LoadBalancerProvisioning
	LoadBalancerActive       = api.LoadBalancerActive
	LoadBalancerUpdating     = api.LoadBalancerUpdating
	LoadBalancerDeleting     = api.LoadBalancerDeleting
	LoadBalancerError        = api.LoadBalancerError

	loadBalancerNone LoadBalancerState = ""
)

const addressNone api.AddressState = ""

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
var InstanceRules = []Rule[InstanceState]{
	{From: instanceNone, On: Create, To: InstancePending, Wait: DelayPending},
	{From: InstancePending, On: Elapsed, To: InstanceRunning},
	{From: InstanceStopping, On: Elapsed, To: InstanceStopped},
	{From: InstanceTerminating, On: Elapsed, To: InstanceTerminated, Wait: DelayRetention},
	{From: InstanceTerminated, On: Elapsed, To: instanceNone},

	{From: InstanceStopped, On: Start, To: InstancePending, Wait: DelayPending},
	{From: InstancePending, On: Start, Same: true},
	{From: InstanceRunning, On: Start, Same: true},

	// An instance in error is started, or stopped, as one that does not run.
	{From: InstanceError, On: Start, To: InstancePending, Wait: DelayPending},
	{From: InstanceError, On: Stop, To: InstanceStopping, Wait: DelayStopping},
	{From: InstanceError, On: Recover, To: InstancePending, Wait: DelayPending, Reason: "recovering"},

	{From: InstanceRunning, On: Reboot, To: InstancePending, Wait: DelayPending, Reason: "rebooting"},
	{From: InstancePending, On: Reboot, Same: true},

	{From: InstancePending, On: Crash, To: InstanceError, Reason: "crashed"},
	{From: InstanceRunning, On: Crash, To: InstanceError, Reason: "crashed"},
	{From: InstancePending, On: Failed, To: InstanceError},

	{From: InstanceRunning, On: Stop, To: InstanceStopping, Wait: DelayStopping},
	{From: InstanceStopping, On: Stop, Same: true},
	{From: InstanceStopped, On: Stop, Same: true},

	{From: InstancePending, On: Terminate, To: InstanceTerminating, Wait: DelayTerminating},
	{From: InstanceRunning, On: Terminate, To: InstanceTerminating, Wait: DelayTerminating},
	{From: InstanceStopping, On: Terminate, To: InstanceTerminating, Wait: DelayTerminating},
	{From: InstanceStopped, On: Terminate, To: InstanceTerminating, Wait: DelayTerminating},
	{From: InstanceError, On: Terminate, To: InstanceTerminating, Wait: DelayTerminating},
	{From: InstanceTerminating, On: Terminate, Same: true},
	{From: InstanceTerminated, On: Terminate, Same: true},
}

// LoadBalancerRules is the life of a load balancer.
var LoadBalancerRules = []Rule[LoadBalancerState]{
	{From: loadBalancerNone, On: Create, To: LoadBalancerProvisioning, Wait: DelayProvisioning},
	{From: LoadBalancerProvisioning, On: Built, To: LoadBalancerActive},
	{From: LoadBalancerProvisioning, On: Failed, To: LoadBalancerError, Wait: DelayRetry},
	{From: LoadBalancerUpdating, On: Built, To: LoadBalancerActive},
	{From: LoadBalancerUpdating, On: Failed, To: LoadBalancerError, Wait: DelayRetry},
	{From: LoadBalancerError, On: Built, To: LoadBalancerActive},
	{From: LoadBalancerError, On: Failed, To: LoadBalancerError, Wait: DelayRetry},
	// An active balancer is built again when the process starts.
	{From: LoadBalancerActive, On: Built, Same: true},
	{From: LoadBalancerActive, On: Failed, To: LoadBalancerError, Wait: DelayRetry},

	{From: LoadBalancerProvisioning, On: Update, To: LoadBalancerProvisioning, Wait: DelayProvisioning},
	{From: LoadBalancerActive, On: Update, To: LoadBalancerUpdating, Wait: DelayUpdating},
	{From: LoadBalancerUpdating, On: Update, To: LoadBalancerUpdating, Wait: DelayUpdating},
	{From: LoadBalancerError, On: Update, To: LoadBalancerUpdating, Wait: DelayUpdating},

	{From: LoadBalancerProvisioning, On: Delete, To: LoadBalancerDeleting, Wait: DelayDeleting},
	{From: LoadBalancerActive, On: Delete, To: LoadBalancerDeleting, Wait: DelayDeleting},
	{From: LoadBalancerUpdating, On: Delete, To: LoadBalancerDeleting, Wait: DelayDeleting},
	{From: LoadBalancerError, On: Delete, To: LoadBalancerDeleting, Wait: DelayDeleting},
	{From: LoadBalancerDeleting, On: Delete, Same: true},
	{From: LoadBalancerDeleting, On: Elapsed, To: loadBalancerNone},
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
		Type: "createInstance", Resource: api.ResourceInstance, On: Create, While: stateNames(InstancePending),
		Done: string(InstanceRunning), Failed: string(InstanceError),
	},
	{
		Type: "startInstance", Resource: api.ResourceInstance, On: Start, While: stateNames(InstancePending),
		Done: string(InstanceRunning), Failed: string(InstanceError),
	},
	{
		Type: "rebootInstance", Resource: api.ResourceInstance, On: "reboot", While: stateNames(InstancePending),
		Done: string(InstanceRunning), Failed: string(InstanceError),
	},
	{
		Type: "stopInstance", Resource: api.ResourceInstance, On: Stop, While: stateNames(InstanceStopping),
		Done: string(InstanceStopped), Failed: string(InstanceError),
	},
	{
		Type: "terminateInstance", Resource: api.ResourceInstance, On: Terminate, While: stateNames(InstanceTerminating),
		Done: string(InstanceTerminated), Failed: string(InstanceError),
	},
	{
		Type: "createLoadBalancer", Resource: api.ResourceLoadBalancer, On: Create,
		While: stateNames(LoadBalancerProvisioning), Done: string(LoadBalancerActive),
		Failed: string(LoadBalancerError),
	},
	{
		Type: "updateLoadBalancer", Resource: api.ResourceLoadBalancer, On: Update,
		While: stateNames(LoadBalancerProvisioning, LoadBalancerUpdating), Done: string(LoadBalancerActive),
		Failed: string(LoadBalancerError),
	},
	{
		Type: "deleteLoadBalancer", Resource: api.ResourceLoadBalancer, On: Delete, While: stateNames(LoadBalancerDeleting),
		Done: string(loadBalancerNone), Failed: string(LoadBalancerError),
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
