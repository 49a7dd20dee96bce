package watch

import (
	"errors"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	cloudprovider "k8s.io/cloud-provider"

	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/ccm/core"
)

// outcome is how the provider's last call for an object ended. The zero outcome is that all was well.
type outcome struct {
	reason     string // why it failed, or reasonPending
	isDegraded bool   // the Service's balancer is as it should be, and refuses clients
}

// reasonPending is the reason of a call that failed before: its causes are over, and the work is not done yet.
const reasonPending = "Pending"

// outcomes has an outcome for each object, by UID. It is safe for concurrent use.
type outcomes struct{ byUID sync.Map }

func (o *outcomes) get(uid types.UID) outcome {
	last, _ := o.byUID.Load(uid)
	known, _ := last.(outcome)
	return known
}

func (o *outcomes) forget(uid types.UID) { o.byUID.Delete(uid) }

// record remembers how a call ended, of which there were these notices.
func (o *outcomes) record(uid types.UID, err error, notices []core.Notice) {
	now := outcome{}
	switch {
	case core.IsPending(err):
		if o.get(uid).reason != "" {
			now.reason = reasonPending
		}
	case err != nil && !errors.Is(err, cloudprovider.ImplementedElsewhere):
		now.reason = core.CauseOf(err).Reason
	}
	for _, n := range notices {
		now.isDegraded = now.isDegraded || n.Reason == contract.ReasonLoadBalancerDegraded
	}
	if now == (outcome{}) {
		o.forget(uid)
		return
	}
	o.byUID.Store(uid, now)
}
