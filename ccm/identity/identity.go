// Package identity reads which cluster this is: the UID of namespace kube-system. Clusters of one cloud project may
// share a name, and a cluster may get another one; by its UID it is told apart all the same.
package identity

import (
	"context"
	"errors"
	"math"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/ccmlab/ccmlab/ccm/core"
)

const (
	// uidReadTimeout bounds one read of the cluster's UID. Initialize waits for the first.
	uidReadTimeout = 2 * time.Second
	// uidForbiddenPause is about how long to wait after a read that was forbidden: only a person can
	// change that.
	uidForbiddenPause = time.Minute
)

// Identity reads the UID of a cluster.
type Identity struct{ cluster *core.Cluster }

// Read makes an identity that reads the cluster's UID when it is started.
func Read(cluster *core.Cluster) *Identity {
	cluster.ExpectUID()
	return &Identity{cluster}
}

// Start reads the cluster's UID. If that fails, it retries in the background until ctx ends.
func (i *Identity) Start(ctx context.Context, kube kubernetes.Interface) {
	if err := i.readUID(ctx, kube); err != nil {
		go i.retryReadingUID(ctx, kube, err)
	}
}

func (i *Identity) readUID(ctx context.Context, kube kubernetes.Interface) error {
	ctx, cancel := context.WithTimeout(ctx, uidReadTimeout)
	defer cancel()
	namespace, err := kube.CoreV1().Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if namespace.UID == "" {
		return errors.New("namespace kube-system has no UID")
	}
	i.cluster.SetUID(string(namespace.UID))
	return nil
}

// retryReadingUID reads again until the UID is known. err is why the last read failed.
func (i *Identity) retryReadingUID(ctx context.Context, kube kubernetes.Interface, err error) {
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
	klog.InfoS("This cluster's UID is known now", "uid", i.cluster.UID())
}

// newUIDBackoff is the pause after other failures: an API server that is starting answers soon, and
// the jitter spreads the CCMs that wait for one that is down.
func newUIDBackoff() *wait.Backoff {
	return &wait.Backoff{
		Duration: 500 * time.Millisecond, Factor: 2, Jitter: 0.2, Steps: math.MaxInt, Cap: 30 * time.Second,
	}
}
