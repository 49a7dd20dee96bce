// Package cluster says what the lab needs of a cluster. embedded runs one as
// plain processes, kind in containers, external is one that somebody has
// already; nothing above this package knows which it has.
package cluster

import (
	"context"
	"io"
	"log/slog"
	"os"

	"k8s.io/client-go/kubernetes"

	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/client"
)

// Cluster is the cluster of one lab, with its cloud and its CCM. Every method
// looks at what is there and does what is missing, so that a second call, or
// one after a crash, completes the first.
type Cluster interface {
	// Claim takes for a new lab what no other may have, and records it.
	Claim(ctx context.Context) (Hold, error)
	// Reclaim takes the same again for a lab that comes back.
	Reclaim(ctx context.Context) (Hold, error)
	// Check is an error when the machine lacks something, and says what to do.
	Check(ctx context.Context) error

	// StartCloud returns when the cloud answers. tag is set on all that is
	// made in it.
	StartCloud(ctx context.Context, tag string, note func(string)) error
	// StartControlPlane returns when the API server answers.
	StartControlPlane(ctx context.Context, note func(string)) error
	// StartCCM has the CCM run from now on, and returns when it serves.
	StartCCM(ctx context.Context) error
	// StopCCM ends it; the cluster stays as it is.
	StopCCM(ctx context.Context) error
	// Tend does what must be done as long as the lab lives, until ctx ends.
	Tend(ctx context.Context, log *slog.Logger) error

	Machines

	// Down ends and deletes all that runs, the lab's own process excepted. ended
	// counts what was ended.
	Down(ctx context.Context) (ended int, err error)

	Cloud() Cloud
	// Kubeconfig is the person's own.
	Kubeconfig() string
	// Operator is a client in the person's name, Observer one that only reads.
	Operator() (*kubernetes.Clientset, error)
	Observer() (*kubernetes.Clientset, error)
	Components(ctx context.Context) ([]Component, error)
	Logs(ctx context.Context) ([]Log, error)
	Traits() Traits
}

// Preparer is a cluster that has something to fetch or load before it starts,
// which can take minutes.
type Preparer interface {
	Prepare(ctx context.Context, note func(string)) (done string, err error)
}

// Hold is a claim that lasts until it is closed, here and in the process that
// its file was passed on to.
type Hold interface {
	io.Closer
	File() (*os.File, error)
}

// Traits are what differs from one kind of cluster to another and is no
// method's business.
type Traits struct {
	// Nodes is how many instances a new lab begins with.
	Nodes int
	// Demo tells whether the lab deploys its demo; DemoPort is the demo's.
	Demo     bool
	DemoPort int
	// Summary says in a few words what the control plane is.
	Summary string
	// HollowNodes tells that the nodes are processes of this machine that simulate
	// containers: a machine that runs has its Node, and a pod is Ready, within seconds.
	HollowNodes bool
	// InContainers tells that the components are containers, and the CCM among them is
	// a Deployment in the cluster, rather than processes of this machine.
	InContainers bool
	// NoCloudProvider is a cluster without an external cloud provider: its nodes
	// wait for no CCM, and it has none.
	NoCloudProvider bool
}

// What a lab's cluster has for a cloud provider.
const (
	ProviderExternal = "external"
	ProviderNone     = "none"
)

// Providers are all of them, the default first.
var Providers = []string{ProviderExternal, ProviderNone}

// Machine is an instance that is to run a node. Its ID is what makes it one
// machine: a new instance may have an old one's name and address.
type Machine struct{ ID, Name, Address string }

// ProviderID is what the CCM writes on the machine's Node.
func (m Machine) ProviderID() string { return contract.ProviderID(m.ID) }

// Size is what an instance's type gives a machine. The type of an instance never
// changes, so that a machine has one size for life.
type Size struct{ CPUs, MemoryMiB int }

// Running is a machine that runs.
type Running interface {
	// Wait returns when it has ended.
	Wait(ctx context.Context) error
}

// Machines boots and halts what the cloud's instances stand for.
type Machines interface {
	// Present are machines that are there without the cloud's doing; they have
	// no ID yet. Adopt is told which instance now stands for one.
	Present(ctx context.Context) ([]Machine, error)
	Adopt(m Machine) error

	// Machines are those that run.
	Machines(ctx context.Context) (map[Machine]Running, error)
	// Booted tells whether the machine was booted before: then what it has on
	// its disk, and a Node of its name, are its own.
	Booted(ctx context.Context, m Machine) (bool, error)
	// Boot starts a machine, a new one or one that was halted.
	Boot(ctx context.Context, m Machine, s Size) (Running, error)
	// Halt shuts a machine down; what is on its disk stays.
	Halt(ctx context.Context, m Machine, r Running) error
	// Sweep deletes what is left of machines that do not run and whose
	// instance's ID is not among those to keep.
	Sweep(ctx context.Context, keep map[string]bool) error
	// Connect gives a running machine these routes, and takes away others it
	// was given.
	Connect(ctx context.Context, m Machine, routes []Route) error
}

// Route leads packets for Destination, a CIDR, to the machine at Via.
type Route struct{ Destination, Via string }

// Component is one thing of the lab that runs, or should.
type Component struct {
	Name string `json:"name"`
	PID  int    `json:"pid,omitempty"`
	// State is "running" or "stopped".
	State string `json:"state"`
	// Wanted is false for what does not run because the person wants it so.
	Wanted bool `json:"-"`
}

// What Component.State can be.
const (
	StateRunning = "running"
	StateStopped = "stopped"
)

// Log is something's log.
type Log struct {
	Name string
	// Where says where it is kept: a file, or a command that prints it.
	Where string
	// Copy writes the last lines (0: all), and with follow what comes, until
	// ctx ends.
	Copy func(ctx context.Context, w io.Writer, last int, follow bool) error
}

// Cloud says how the lab's cloud is called.
type Cloud struct {
	URL    string
	CAFile string // "" when it speaks plain HTTP
	// Dir holds a token for each caller.
	Dir string
	// Network is the range that the cloud and its balancers are in, to be
	// reached without a proxy; "" for loopback, which never is.
	Network string
}

// Callers of the cloud; each has a token of its own, so that the cloud's log
// tells them apart.
const (
	CallerOperator = "operator"
	CallerLab      = "lab"
	CallerCCM      = "ccm"
)

// Callers are all of them.
var Callers = []string{CallerOperator, CallerLab, CallerCCM}

// TokenFlag gives a caller's token to a cloud that is started: whoever runs the
// lab is the cloud's admin.
func TokenFlag(caller, file string) string {
	role := "editor"
	if caller == CallerOperator {
		role = "admin"
	}
	return "--token=" + caller + ":" + role + "=" + file
}

// TokenFile holds a caller's token.
func (c Cloud) TokenFile(caller string) string { return c.Dir + "/" + caller + ".token" }

// Client calls the cloud in a caller's name. No proxy knows the way to a lab.
func (c Cloud) Client(caller string) (*client.Client, error) {
	return client.New(client.Config{URL: c.URL, CAFile: c.CAFile, TokenFile: c.TokenFile(caller), UserAgent: "lab/" + caller, Direct: true})
}

// LocalCCM is a cluster whose CCM is a process on this machine, so that it can
// be run, or another one, by somebody else than the lab.
type LocalCCM interface {
	CCMCommand() CCMCommand
}

// CCMCommand is how the CCM is run.
type CCMCommand struct {
	Path string
	Args []string
	// CloudConfig is the file that it reads on its start.
	CloudConfig string
	// Address and Port are where it serves health and metrics.
	Address string
	Port    int
	// ClusterCIDR is the range of the cluster's pods.
	ClusterCIDR string
}

// Program is one on this machine, with its command line.
type Program struct {
	Path string   `json:"path"` // absolute
	Args []string `json:"args"`
}

// Replaceable is a cluster whose CCM may be another program than the lab's own.
type Replaceable interface {
	// UseCCM has that program be the CCM from its next start on; nil is the lab's
	// own again.
	UseCCM(p *Program) error
}

// Supervised is a cluster that can tell which of the processes that it was started with
// have ended.
type Supervised interface {
	// Ended is an error that names those of the cloud's and the control plane's processes
	// that do not run, with the end of their logs.
	Ended() error
}

// Flagged is a cluster whose components' command lines can be read.
type Flagged interface {
	// ProviderFlags are the values of --cloud-provider, by component, of those
	// that run: of the kubelets and of kube-controller-manager.
	ProviderFlags() (map[string]string, error)
}

// Components whose flags matter.
const (
	ComponentKubelet = "kubelet"
	ComponentKCM     = "kube-controller-manager"
)
