package conformance

import (
	"context"
	"regexp"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"github.com/ccmlab/ccmlab/lab/fakekubelet"
)

const (
	// standstillPeriod is how often a standstill looks.
	standstillPeriod = time.Second
	// longStandstill is more than an API server takes on a machine on which a leader can renew its Lease: client-go
	// advises a renewal each 2 s (tools/leaderelection: RetryPeriod).
	longStandstill = 3 * time.Second
	// standstillMemory is how long a standstill explains that a Lease was lost: upstream's default Lease lasts 15 s.
	standstillMemory = 20 * time.Second
)

// standstill notices when the machine or the API server is so busy that a leader that does nothing wrong loses its
// Lease: when the suite, which renews a Lease of its own once a second, takes longer for it than longStandstill.
type standstill struct {
	mu     sync.Mutex
	looked time.Time // when a look last ended
	last   time.Time // when the last standstill ended
}

// watch looks until ctx ends.
func (s *standstill) watch(ctx context.Context, kube kubernetes.Interface, name string) {
	// A write, as the CCM's: reads are answered although the disk is too busy for etcd.
	lease := &fakekubelet.Kubelets{Kube: kube}
	s.note(time.Now())
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		_ = lease.RenewLease(ctx, name)
		s.note(time.Now())
	}, standstillPeriod)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), versionBound)
	defer cancel()
	_ = kube.CoordinationV1().Leases(corev1.NamespaceNodeLease).Delete(ctx, name, metav1.DeleteOptions{})
}

// note takes in that a look ended now.
func (s *standstill) note(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.standsStill(now) {
		s.last = now
	}
	s.looked = now
}

// standsStill tells whether the look after the last one that ended takes, or took, too long.
func (s *standstill) standsStill(now time.Time) bool {
	return !s.looked.IsZero() && now.Sub(s.looked) >= standstillPeriod+longStandstill
}

// leaseLost is how upstream's framework says why it ends (k8s.io/cloud-provider app/controllermanager.go).
var leaseLost = regexp.MustCompile(`leaderelection lost`)

// explains tells whether a standstill, which may last, is why the CCM with these last lines has ended.
func (s *standstill) explains(log string, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	recent := !s.last.IsZero() && now.Sub(s.last) < standstillMemory
	return (recent || s.standsStill(now)) && leaseLost.MatchString(log)
}
