package conformance

// The Lease of a CCM that has ended. Upstream's framework does not give it back, so
// the next one would wait for its end at each of the suite's many restarts.

import (
	"context"
	"os"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// leases gives back what a CCM held that runs no more. Which Lease that is shows
// when one has run: its holder is another than before its start, and is called as
// upstream calls it, after the machine. Somebody else's is as before, or is soon.
type leases struct {
	kube   kubernetes.Interface
	before map[string]string // holders at the last start
}

// giveBack is called when no CCM of the suite runs. What it cannot do costs time
// only.
func (l *leases) giveBack(ctx context.Context) {
	if l == nil {
		return
	}
	host, err := os.Hostname()
	if err != nil {
		return
	}
	list, err := l.kube.CoordinationV1().Leases(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return
	}
	first, now := l.before == nil, map[string]string{}
	for _, lease := range list.Items {
		if lease.Namespace == corev1.NamespaceNodeLease || lease.Spec.HolderIdentity == nil {
			continue
		}
		key, holder := lease.Namespace+"/"+lease.Name, *lease.Spec.HolderIdentity
		now[key] = holder
		if first || l.before[key] == holder || !strings.HasPrefix(holder, host+"_") {
			continue
		}
		// As client-go's own release does.
		nobody, shortly, at := "", int32(1), metav1.NowMicro()
		lease.Spec.HolderIdentity, lease.Spec.LeaseDurationSeconds, lease.Spec.RenewTime = &nobody, &shortly, &at
		if _, err := l.kube.CoordinationV1().Leases(lease.Namespace).Update(ctx, &lease, metav1.UpdateOptions{}); err == nil {
			now[key] = ""
		}
	}
	l.before = now
}
