package ccm

import (
	"context"
	"errors"
	"math"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
)

const (
	// uidReadTimeout bounds one read of the cluster's UID. Initialize waits for the first.
	uidReadTimeout = 2 * time.Second
	// uidForbiddenPause is about how long to wait after a read that was forbidden: only a person can
	// change that.
	uidForbiddenPause = time.Minute
)

// clusterIdentity is which cluster this is. The name may change, and two clusters may share it. The
// UID, that of namespace kube-system, is unique and never changes. It may become known only after the
// controllers have started, so callers read it at each use. Safe for concurrent use.
type clusterIdentity struct {
	name     string // --cluster-name
	knownUID atomic.Pointer[string]
	// onUIDKnown, unless nil, is called when the UID has become known. It is set before start.
	onUIDKnown func()
}

func newClusterIdentity(name string) *clusterIdentity { return &clusterIdentity{name: name} }

// uid is the cluster's UID, "" as long as it is not known.
func (i *clusterIdentity) uid() string {
	if uid := i.knownUID.Load(); uid != nil {
		return *uid
	}
	return ""
}

func (i *clusterIdentity) setUID(uid string) { i.knownUID.Store(&uid) }

// start reads the cluster's UID. If that fails, it retries in the background until ctx ends.
func (i *clusterIdentity) start(ctx context.Context, kube kubernetes.Interface) {
	if err := i.readUID(ctx, kube); err != nil {
		go i.retryReadingUID(ctx, kube, err)
	}
}

func (i *clusterIdentity) readUID(ctx context.Context, kube kubernetes.Interface) error {
	ctx, cancel := context.WithTimeout(ctx, uidReadTimeout)
	defer cancel()
	namespace, err := kube.CoreV1().Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if namespace.UID == "" {
		return errors.New("namespace kube-system has no UID")
	}
	i.setUID(string(namespace.UID))
	if i.onUIDKnown != nil {
		i.onUIDKnown()
	}
	return nil
}

// retryReadingUID reads again until the UID is known. err is why the last read failed.
func (i *clusterIdentity) retryReadingUID(ctx context.Context, kube kubernetes.Interface, err error) {
	backoff := newUIDBackoff()
	klog.ErrorS(err, "Cannot read this cluster's UID yet, retrying. "+
		"Until it is known, load balancers without a Service are not deleted. "+
		"Allow the CCM to get namespace kube-system")
	for err != nil {
		pause := backoff.Step()
		if apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) {
			pause, backoff = wait.Jitter(uidForbiddenPause, 0.2), newUIDBackoff()
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		if err = i.readUID(ctx, kube); err != nil {
			klog.V(2).InfoS("This cluster's UID is still not known", "err", err)
		}
	}
	klog.InfoS("This cluster's UID is known now", "uid", i.uid())
}

// newUIDBackoff is the pause after other failures: an API server that is starting answers soon, and
// the jitter spreads the CCMs that wait for one that is down.
func newUIDBackoff() *wait.Backoff {
	return &wait.Backoff{
		Duration: 500 * time.Millisecond, Factor: 2, Jitter: 0.2, Steps: math.MaxInt, Cap: 30 * time.Second,
	}
}

// ownership is what the tags of a cloud resource say about whose it is.
type ownership int

const (
	// ownedByOther: another cluster's, or no cluster's.
	ownedByOther ownership = iota
	// ownedByThis: this very cluster's.
	ownedByThis
	// ownedByName: it has this cluster's name, and a UID that cannot be compared until the
	// cluster's own is known.
	ownedByName
	// ownershipUnknown: it has another name, and a UID that cannot be compared yet. It is
	// another cluster's, or this one's from when it had another name.
	ownershipUnknown
)

// ownershipOf tells from a cloud resource's tags which cluster owns it. The UID decides,
// whatever the name. A resource without a UID was made before the cluster's UID was known, so
// its name decides.
func (i *clusterIdentity) ownershipOf(tags api.Tags) ownership {
	uid, ours := tags[contract.TagClusterUID], i.uid()
	hasName := tags[contract.TagCluster] == i.name
	switch {
	case uid == "" && hasName, uid != "" && uid == ours:
		return ownedByThis
	case uid == "" || ours != "":
		return ownedByOther
	case hasName:
		return ownedByName
	default:
		return ownershipUnknown
	}
}

// mayOwn tells whether nothing in a resource's tags says that it is another cluster's.
func (i *clusterIdentity) mayOwn(tags api.Tags) bool {
	o := i.ownershipOf(tags)
	return o == ownedByThis || o == ownedByName
}

// tagFilters are filters of the cloud's lists. Each resource of the cluster matches one of
// them, but for those of another name as long as the UID is not known.
func (i *clusterIdentity) tagFilters() []string {
	filters := []string{contract.TagCluster + "=" + i.name}
	if uid := i.uid(); uid != "" {
		filters = append(filters, contract.TagClusterUID+"="+uid)
	}
	return filters
}
