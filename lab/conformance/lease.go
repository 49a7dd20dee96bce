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

// leaseReleaser releases the Leases of a CCM that has ended. They are those whose holder has changed
// since the CCM was started, and is named as upstream names it, after the machine. The Leases of
// others have the holder that they had before.
type leaseReleaser struct {
	kube          kubernetes.Interface
	holdersBefore map[string]string // holders at the last start
}

// releaseStale releases them. It is to be called when no CCM of the suite runs. When it fails, the
// next CCM waits for the Lease to expire.
func (l *leaseReleaser) releaseStale(ctx context.Context) {
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
	first, now := l.holdersBefore == nil, map[string]string{}
	for _, lease := range list.Items {
		if lease.Namespace == corev1.NamespaceNodeLease || lease.Spec.HolderIdentity == nil {
			continue
		}
		key, holder := lease.Namespace+"/"+lease.Name, *lease.Spec.HolderIdentity
		now[key] = holder
		if first || l.holdersBefore[key] == holder || !strings.HasPrefix(holder, host+"_") {
			continue
		}
		// As client-go's own release does.
		nobody, shortly, at := "", int32(1), metav1.NowMicro()
		lease.Spec.HolderIdentity, lease.Spec.LeaseDurationSeconds, lease.Spec.RenewTime = &nobody, &shortly, &at
		if _, err := l.kube.CoordinationV1().Leases(lease.Namespace).
			Update(ctx, &lease, metav1.UpdateOptions{}); err == nil {
			now[key] = ""
		}
	}
	l.holdersBefore = now
}
