package watch

import (
	"errors"

	"k8s.io/apimachinery/pkg/types"
	cloudprovider "k8s.io/cloud-provider"

	"github.com/ccmlab/ccmlab/ccm/core"
)

// reasonPending is the reason of a call that failed before: its causes are over, and the work is not done yet.
const reasonPending = "Pending"

// reasonOf returns why the provider's last call for an object failed, reasonPending, or
// contract.ReasonLoadBalancerDegraded if its balancer is as it should be, and refuses clients; "" if all was well.
func (w *Watch) reasonOf(uid types.UID) string {
	last, _ := w.reasons.Load(uid)
	reason, _ := last.(string)
	return reason
}

// recordOutcome remembers how a call ended. If it did not fail, that is the notice, "" for none.
func (w *Watch) recordOutcome(uid types.UID, err error, notice string) {
	reason := notice
	switch {
	case core.IsPending(err):
		if reason = ""; w.reasonOf(uid) != "" {
			reason = reasonPending
		}
	case err != nil && !errors.Is(err, cloudprovider.ImplementedElsewhere):
		reason = core.CauseOf(err).Reason
	}
	if reason == "" {
		w.reasons.Delete(uid)
		return
	}
	w.reasons.Store(uid, reason)
}
