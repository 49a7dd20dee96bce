package hollowkubelet

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"k8s.io/kubernetes/pkg/kubelet/eviction"
)

// The reservation is that of upstream's default thresholds in the pinned version.
func TestAllocatableReservationIsUpstreamDefault(t *testing.T) {
	assert.Equal(t, "100Mi", eviction.DefaultEvictionHard["memory.available"])
	assert.Equal(t, "10%", eviction.DefaultEvictionHard["nodefs.available"])
	got := (&containerManager{}).GetNodeAllocatableReservation()
	assert.Equal(t, "100Mi", got.Memory().String())
	assert.Equal(t, "2Gi", got.StorageEphemeral().String())
}
