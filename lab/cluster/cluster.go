// Package cluster defines what the lab needs of a cluster. Package embedded runs one as
// plain processes, kind runs one in containers, and external uses one that already
// exists. Packages above this one do not know which kind they have. Begin with the
// interface Cluster.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"k8s.io/client-go/kubernetes"

	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/identity"
	"github.com/ccmlab/ccmlab/lab/state"
)

// Cluster is the cluster of one lab, with its cloud and its CCM. Every method looks at
// what exists and does what is missing, so that a second call, or one after a crash,
// completes the first.
type Cluster interface {
	// Claim reserves for a new lab what only one lab can have, such as addresses, and
	// records it.
	Claim(ctx context.Context) (Hold, error)
	// Reclaim reserves the same again for a lab that starts again.
	Reclaim(ctx context.Context) (Hold, error)
	// Check returns an error when the machine lacks something; the error says what to
	// do.
	Check(ctx context.Context) error

	// StartCloud returns when the cloud answers. Everything that is created in the
	// cloud gets the tag.
	StartCloud(ctx context.Context, tag string, note func(string)) error
	// StartControlPlane returns when the API server answers.
	StartControlPlane(ctx context.Context, note func(string)) error
	// StartCCM starts the CCM, to be kept running, and returns when it serves.
	StartCCM(ctx context.Context) error
	// StopCCM stops the CCM; the cluster stays as it is.
	StopCCM(ctx context.Context) error
	// UseCCM makes p, run as a process on this machine, the CCM from its next start on; nil
	// restores the lab's own.
	UseCCM(p *Program) error
	// CCMCommand is the lab's own CCM as a process on this machine, for somebody other than
	// the lab who runs it, or replaces it.
	CCMCommand() CCMCommand
	// Tend does the work that goes on as long as the lab lives. It returns when ctx
	// ends.
	Tend(ctx context.Context, log *slog.Logger) error

	Machines

	// Down ends and deletes all that runs, except the lab's own process. ended counts
	// what was ended.
	Down(ctx context.Context) (ended int, err error)

	Cloud() Cloud
	// Kubeconfig is the path of the person's own kubeconfig.
	Kubeconfig() string
	// Operator is a client with the person's rights; Observer is one that only reads.
	Operator() (*kubernetes.Clientset, error)
	Observer() (*kubernetes.Clientset, error)
	Components(ctx context.Context) ([]Component, error)
	Logs(ctx context.Context) ([]Log, error)
	Traits() Traits
}

// Preparer is a cluster that must fetch or load something before it starts, which can
// take minutes.
type Preparer interface {
	Prepare(ctx context.Context, note func(string)) (done string, err error)
}

// Hold is a reservation. It lasts until it is closed, both here and in the process that
// inherited its file.
type Hold interface {
	io.Closer
	File() (*os.File, error)
}

// Traits are the differences between kinds of clusters that no method covers.
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
	// InContainers tells that the components are containers, and the lab's own CCM among
	// them is a Deployment in the cluster, rather than processes of this machine.
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

// Machine is an instance that is to run a node. The ID identifies it: a new instance
// may have the name and address of an old one.
type Machine struct{ ID, Name, Address string }

// MachineOf is the machine of an instance. A Node's name is in lower case, as a kubelet takes it from the host's.
func MachineOf(i api.Instance) Machine {
	m := Machine{ID: i.ID, Name: strings.ToLower(i.Name)}
	if len(i.Addresses) > 0 {
		m.Address = i.Addresses[0].IP
	}
	return m
}

// IsProviderIDOf tells whether a provider ID is an instance's: what any CCM of the lab's cloud calls it
// (nebula://i-1, nebula:///zone/i-1), or the CCM of another cloud whose dialect the lab's cloud speaks.
func IsProviderIDOf(providerID string, i api.Instance) bool {
	scheme, path, _ := strings.Cut(providerID, "://")
	return scheme != "" && path[strings.LastIndex(path, "/")+1:] == i.ID && i.ID != "" ||
		slices.Contains(slices.Collect(maps.Values(i.Identities)), providerID)
}

// CutProviderID splits a provider ID into what names its cloud, "nebula://" say, and the instance's ID there. Those of
// Oracle have no scheme: ocid1.instance.REALM.REGION.UNIQUE.
func CutProviderID(providerID string) (prefix, id string) {
	at := strings.LastIndex(providerID, ".") + 1
	if scheme, _, found := strings.Cut(providerID, "://"); found {
		at = len(scheme) + len("://")
	}
	return providerID[:at], providerID[at:]
}

// IsOfThisCloud tells whether a provider ID is one that the lab's cloud gives, in any dialect.
func IsOfThisCloud(providerID string) bool {
	_, _, spoken := identity.Parse(providerID)
	return spoken || strings.HasPrefix(providerID, contract.ProviderIDPrefix)
}

// Size is the capacity that an instance's type gives a machine. The type of an instance
// never changes, so neither does the size of a machine.
type Size struct{ CPUs, MemoryMiB int }

// Running is a machine that runs.
type Running interface {
	// Wait returns when it has ended.
	Wait(ctx context.Context) error
}

// Machines boots and halts the machines of the cloud's instances.
type Machines interface {
	// Present returns machines that exist without the cloud having created them; they
	// have no ID yet. Adopt records which instance now represents such a machine.
	Present(ctx context.Context) ([]Machine, error)
	Adopt(m Machine) error

	// Machines returns the machines that run.
	Machines(ctx context.Context) (map[Machine]Running, error)
	// Booted reports whether the machine was booted before. If so, its disk and a Node
	// of its name are its own.
	Booted(ctx context.Context, m Machine) (bool, error)
	// Boot starts a machine, either a new one or one that was halted. The kubelet of a new one registers its Node
	// with the provider ID, unless that is "".
	Boot(ctx context.Context, m Machine, s Size, providerID string) (Running, error)
	// Halt shuts a machine down; its disk stays.
	Halt(ctx context.Context, m Machine, r Running) error
	// Sweep deletes the remains of machines that do not run and whose instance ID is
	// not in keep.
	Sweep(ctx context.Context, keep map[string]bool) error
	// Connect gives a running machine these routes and addresses, and takes others that it
	// gave before.
	Connect(ctx context.Context, m Machine, n Network) error
}

// Network is what the cloud's network has for a machine beside its own address.
type Network struct {
	Routes []Route
	// Addresses are attached to the instance: what is sent there is for the machine.
	Addresses []string
}

// Route leads packets for Destination, a CIDR, to the machine at Via.
type Route struct{ Destination, Via string }

// Component is a part of the lab that runs, or should run.
type Component struct {
	Name string `json:"name"`
	PID  int    `json:"pid,omitempty"`
	// State is "running" or "stopped".
	State string `json:"state"`
	// Wanted is false for what the person has stopped on purpose.
	Wanted bool `json:"-"`
}

// What Component.State can be.
const (
	StateRunning = "running"
	StateStopped = "stopped"
)

// Log is the log of one component.
type Log struct {
	Name string
	// Where is the file that holds the log, or a command that prints it.
	Where string
	// Copy writes the last lines (0: all). With follow it also writes new lines until
	// ctx ends.
	Copy func(ctx context.Context, w io.Writer, last int, follow bool) error
}

// Cloud says how to reach the lab's cloud.
type Cloud struct {
	URL    string
	CAFile string // It has the certificate that signed the cloud's.
	// Dialects are where it is spoken to as another cloud, by dialect.
	Dialects map[string]string
	// Dir holds a token for each caller.
	Dir string
	// Network is the address range of the cloud and its balancers, which are reached
	// without a proxy; "" for loopback, which never uses one.
	Network string
	// BalancerRange has the addresses of load balancers.
	BalancerRange netip.Prefix
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

// TokenFlag is fakecloud's flag for a caller's token. The operator is the cloud's
// admin.
func TokenFlag(caller, file string) string {
	role := "editor"
	if caller == CallerOperator {
		role = "admin"
	}
	return "--token=" + caller + ":" + role + "=" + file
}

// RegionFlags are fakecloud's flags for the region and the zones of a lab that has another cloud's.
func RegionFlags(st *state.Lab) []string {
	if st.CloudRegion == "" {
		return nil
	}
	return []string{"--region=" + st.CloudRegion, "--zones=" + strings.Join(st.CloudZones, ",")}
}

// QuotaFlags are fakecloud's flags for the quota of a lab. A lab with one is at a seat of a classroom.
func QuotaFlags(st *state.Lab) []string {
	if st.InstanceQuota == 0 {
		return nil
	}
	return []string{"--instance-quota=" + strconv.Itoa(st.InstanceQuota), fmt.Sprintf(
		"--quota-advice=ask the trainer for more, who types `lab classroom run --seat %s -- fakecloud quotas set --instances N`"+
			" (or, for lessons that begin later, `lab classroom up --seat-instances N`)", state.Seat(),
	)}
}

// DialectFlags are fakecloud's flags for the dialects: each is spoken where Dialects says.
func (c Cloud) DialectFlags() []string {
	var flags []string
	for _, dialect := range slices.Sorted(maps.Keys(c.Dialects)) {
		_, address, _ := strings.Cut(c.Dialects[dialect], "://")
		flags = append(flags, "--dialect="+dialect+"="+address)
	}
	return flags
}

// TokenFile is the path of a caller's token.
func (c Cloud) TokenFile(caller string) string { return c.Dir + "/" + caller + ".token" }

// Client is a client of the cloud with a caller's token. It uses no proxy.
func (c Cloud) Client(caller string) (*client.Client, error) {
	cloud, err := client.New(client.Config{
		URL: c.URL, CAFile: c.CAFile, TokenFile: c.TokenFile(caller), UserAgent: "lab/" + caller, Direct: true,
	})
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("the lab's cloud has never started; `lab up` starts it: %w", err)
	}
	return cloud, err
}

// Ready returns an error while the cloud does not answer, or has not made its certificate yet.
func (c Cloud) Ready(ctx context.Context) error {
	cloud, err := c.Client(CallerLab)
	if err != nil {
		return err
	}
	return cloud.Ready(ctx)
}

// CCMCommand is the CCM's command line, with the addresses and files in it.
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
	// NeedsRoutes tells that pods of different nodes reach each other by the cloud's routes
	// alone.
	NeedsRoutes bool
	// NetworkBalancers tells that Services get balancers of kind network by default.
	NetworkBalancers bool
}

// Program is one on this machine, with its command line.
type Program struct {
	Path string   `json:"path"` // absolute
	Args []string `json:"args"`
	// Env is added to its environment; nil leaves the environment of the lab's own CCM.
	Env []string `json:"env,omitempty"`
	// WithoutRoutes tells that, as a CCM, it makes no routes between the pods of different nodes.
	WithoutRoutes bool `json:"withoutRoutes,omitempty"`
	// WithoutBalancers tells that, as a CCM, it makes no load balancers.
	WithoutBalancers bool `json:"withoutBalancers,omitempty"`
	// ProviderIDs, unless "", is the template of Nodes' provider IDs that its preset has.
	ProviderIDs string `json:"providerIDs,omitempty"`
	// HostsFile, unless "", is what the program finds as /etc/hosts.
	HostsFile string `json:"hostsFile,omitempty"`
	// Templates, unless nil, is what Args and Env are filled in from again before each start that a person asks for.
	Templates *Templates `json:"templates,omitempty"`
}

// Templates are those of a program that is a lab's CCM, as program.CCM has them.
type Templates struct {
	Args []string `json:"args"`
	Env  []string `json:"env"`
	// Config, unless "", is the content of the configuration file that the program reads. It is of
	// Dialect, which is "" for fakecloud's own API.
	Config  string `json:"config,omitempty"`
	Dialect string `json:"dialect,omitempty"`
}

// Supervised is a cluster that can tell which of the processes that it started have
// ended.
type Supervised interface {
	// Ended returns an error if processes of the cloud or the control plane do not run. It names
	// them, with the end of their logs.
	Ended() error
}

// Flagged is a cluster whose components' command lines can be read.
type Flagged interface {
	// ProviderFlags are the values of --cloud-provider by component, for the kubelets
	// and kube-controller-manager that run.
	ProviderFlags() (map[string]string, error)
}

// Components whose flags matter.
const (
	ComponentKubelet = "kubelet"
	ComponentKCM     = "kube-controller-manager"
)

// Pausable is a cluster that can end all that runs, as Down does, but keep its state:
// StartCloud, StartControlPlane and Boot restore it.
type Pausable interface {
	Pause(ctx context.Context) (ended int, err error)
}
