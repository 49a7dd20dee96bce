package conformance

import (
	"context"
	"regexp"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
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
// Lease: when the suite's own look at the API server, once a second, takes longer than longStandstill.
type standstill struct {
	mu   sync.Mutex
	last time.Time // when the last one ended
}

// watch looks until ctx ends.
func (s *standstill) watch(ctx context.Context, kube kubernetes.Interface) {
	looked := time.Now()
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		// A read that no cache answers: a renewal of the Lease has to reach etcd, too.
		_, _ = kube.CoreV1().Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
		s.note(looked, time.Now())
		looked = time.Now()
	}, standstillPeriod)
}

// note takes in that one look ended then and the next one now.
func (s *standstill) note(then, now time.Time) {
	if now.Sub(then) < standstillPeriod+longStandstill {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = now
}

// leaseLost is how upstream's framework says why it ends (k8s.io/cloud-provider app/controllermanager.go).
var leaseLost = regexp.MustCompile(`leaderelection lost`)

// explains tells whether a standstill is why the CCM with these last lines has ended.
func (s *standstill) explains(log string, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.last.IsZero() && now.Sub(s.last) < standstillMemory && leaseLost.MatchString(log)
}
