// Package testbed is a place to try a cloud controller manager in: a genuine
// control plane without nodes, a cloud, and as many CCM processes as are asked
// for. Integration tests and the benchmark share it.
//
// A Bed is etcd, kube-apiserver and fakecloud, each a process, in a slot of
// loopback and a folder of its own, so that several beds can be up at once.
// There is no kube-controller-manager, no scheduler and no kubelet: nobody but
// the CCM and the test changes anything. Nodes are objects that RegisterNodes
// makes as kubelets would, and their Ready condition is what SetReady says.
// RBAC is on, and manifests/ccm is applied: a CCM may do what it may in any
// cluster.
//
// A test says
//
//	bed := testbed.ForTest(t, testbed.Options{})
//	_, err := bed.CreateInstances(ctx, "node-1")
//	require.NoError(t, err)
//	require.NoError(t, bed.RegisterNodes(ctx, nil, "node-1"))
//	ccm, err := bed.StartCCM(ctx, testbed.CCMOptions{})
//	require.NoError(t, err)
//	… bed.Admin(), bed.Cloud(), ccm.Kill() …
//
// and need not clean up. Whoever is no test calls New, and Close in the end.
package testbed

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/cluster/embedded"
	"github.com/ccmlab/ccmlab/lab/process"
	"github.com/ccmlab/ccmlab/lab/state"
)

// startBound is for a machine that is busy; on an idle one a bed is up within
// five seconds.
const startBound = 3 * time.Minute

// Options of a bed; the zero value is good.
type Options struct {
	// Name is the cluster's (the CCM's --cluster-name), and the cloud project's;
	// "bed" when empty. 1 to 40 lower-case letters, digits or dashes. It need
	// not be unique on this machine.
	Name string
	// Profile is how long things take in the cloud: instant (when empty), fast
	// or realistic.
	Profile string
	// CloudFlags are added to `fakecloud serve`.
	CloudFlags []string
	// AuditPolicy is what the API server records in the cluster's AuditLog, an
	// audit.k8s.io/v1.Policy as YAML; there is no log when it is empty.
	AuditPolicy string
	// Bin is the folder of our own programs, with upstream's in its folder kube
	// or in LAB_KUBE_BIN; when empty, bin in the root of the clone that the
	// working directory is in.
	Bin string
}

// Bed is a cluster with a cloud. Its methods may be called concurrently.
type Bed struct {
	// Name is the cluster's, and the cloud project's.
	Name string
	// CCMToken is the file with the CCM's token: an editor by the name "ccm".
	CCMToken string

	dir     string
	site    *embedded.Cluster
	hold    cluster.Hold
	opts    Options
	config  *rest.Config
	admin   kubernetes.Interface
	cloud   *client.Client
	mu      sync.Mutex // guards started
	started int        // CCMs
	close   func() error
}

// programs that a bed runs.
var (
	ownPrograms  = []string{"fakecloud", "ccm"}
	kubePrograms = []string{"etcd", "kube-apiserver"}
)

// New brings a bed up: when it returns, the API server has all of its own roles
// and the CCM's, and the cloud is ready. Upon an error nothing of it is left.
// What it started is killed by the kernel should this process end without Close.
func New(ctx context.Context, o Options) (*Bed, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, startBound, fmt.Errorf("gave up after %s", startBound))
	defer cancel()
	b, err := newBed(ctx, o)
	if err != nil {
		return nil, err
	}
	if err := b.startComponents(ctx); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return b, nil
}

// newBed takes a folder and a slot.
func newBed(ctx context.Context, o Options) (*Bed, error) {
	o.Name, o.Profile = cmp.Or(o.Name, "bed"), cmp.Or(o.Profile, "instant")
	if _, err := state.Dir(o.Name); err != nil {
		return nil, err
	}
	bin, err := findBinaries(o.Bin)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "bed")
	if err != nil {
		return nil, err
	}
	lab := state.InDir(dir, o.Name)
	lab.Profile = o.Profile
	site := embedded.New(lab, bin)
	site.Host.KillWithStarter, site.AuditPolicy = true, o.AuditPolicy
	b := &Bed{Name: o.Name, dir: dir, site: site, opts: o}
	b.close = sync.OnceValue(b.removeLeftovers)
	if b.hold, err = site.Claim(ctx); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	b.CCMToken = site.Cloud().TokenFile(cluster.CallerCCM)
	return b, nil
}

// Check is an error when a program is missing that a bed needs, and says how to
// get it. New does it too.
func Check(o Options) error {
	_, err := findBinaries(o.Bin)
	return err
}

// findBinaries are the programs, or an error that says which are missing and how to
// get them.
func findBinaries(own string) (cluster.Binaries, error) {
	if own == "" {
		root, err := cloneRoot()
		if err != nil {
			return cluster.Binaries{}, err
		}
		own = filepath.Join(root, "bin")
	}
	own, err := filepath.Abs(own)
	if err != nil {
		return cluster.Binaries{}, err
	}
	bin, err := cluster.FindBinaries(own, "")
	return bin, errors.Join(err, bin.Need(ownPrograms, kubePrograms))
}

// cloneRoot is the nearest folder with a go.mod, from the working directory up.
func cloneRoot() (string, error) {
	start, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for dir := start; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("no go.mod above %s: run it in a clone, or say where the programs are", start)
		}
	}
}

func (b *Bed) startComponents(ctx context.Context) error {
	var errs [2]error
	var both sync.WaitGroup
	both.Go(func() { errs[0] = b.site.StartAPIServer(ctx) })
	both.Go(func() { errs[1] = b.startCloud(ctx) })
	both.Wait()
	if err := errors.Join(errs[:]...); err != nil {
		return err
	}
	var err error
	if b.cloud, err = b.site.Cloud().Client(cluster.CallerOperator); err != nil {
		return err
	}
	if b.config, err = clientcmd.BuildConfigFromFlags("", b.site.Kubeconfig()); err != nil {
		return err
	}
	b.config.QPS = -1 // A test is not to wait for itself.
	b.admin, err = kubernetes.NewForConfig(b.config)
	return err
}

// Admin is a client of the API server with all rights and no rate limit.
func (b *Bed) Admin() kubernetes.Interface { return b.admin }

// AdminConfig is the same as a configuration, a copy.
func (b *Bed) AdminConfig() *rest.Config { return rest.CopyConfig(b.config) }

// Cluster is the bed's cluster. Its Kubeconfig has all rights; PodCIDR is for the CCM's --cluster-cidr.
func (b *Bed) Cluster() *embedded.Cluster { return b.site }

// Cloud is a client of the cloud in the name of "operator", an admin: what it
// calls is told apart from the CCM's calls in the audit.
func (b *Bed) Cloud() *client.Client { return b.cloud }

// startCloud starts the cloud, and returns when it is ready.
func (b *Bed) startCloud(ctx context.Context) error {
	spec := b.site.Fakecloud(contract.TagCluster + "=" + b.Name)
	spec.Args = append(spec.Args, b.opts.CloudFlags...)
	cloud := b.site.Cloud()
	return b.site.Serve(ctx, "fakecloud to be ready on "+cloud.URL, cloud.Ready, spec)
}

// closeBound is how long all of them together may take.
const closeBound = 30 * time.Second

// Close ends every process of the bed and deletes its folder. Only the first
// call does something; the others return what that returned.
func (b *Bed) Close() error { return b.close() }

func (b *Bed) removeLeftovers() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeBound)
	defer cancel()
	_, err := b.site.Down(ctx)
	if b.hold != nil { // Until then nobody moves in beside it.
		err = errors.Join(err, b.hold.Close())
	}
	return errors.Join(err, os.RemoveAll(b.dir))
}

// Logs are the last lines of every process's log, each under its name.
func (b *Bed) Logs(lines int) string {
	files, err := filepath.Glob(filepath.Join(b.dir, "logs", "*.log"))
	if err != nil {
		return err.Error()
	}
	var all string
	for _, file := range files {
		last, err := process.Tail(file, lines)
		all += fmt.Sprintf("--- %s\n", filepath.Base(file))
		for _, line := range last {
			all += line + "\n"
		}
		if err != nil {
			all += err.Error() + "\n"
		}
	}
	return all
}

// logLines is how many lines of each log are printed when a test fails.
const logLines = 60

// ForTest is New for a test, which is skipped where the programs have not been built.
// The bed is closed at the end of the test and its subtests; if they have failed, its
// logs are printed first.
func ForTest(t testing.TB, o Options) *Bed {
	t.Helper()
	if err := Check(o); err != nil {
		t.Skipf("a control plane is needed: %v", err)
	}
	b, err := New(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the bed's logs:\n%s", b.Logs(logLines))
		}
		if err := b.Close(); err != nil {
			t.Errorf("closing the bed: %v", err)
		}
	})
	return b
}
