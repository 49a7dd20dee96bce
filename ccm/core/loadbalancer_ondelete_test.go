package core

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/ccmlab/ccmlab/ccm/annotations"
	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// What becomes of the balancer of a Service that goes, in a genuine cloud. The Service has an
// annotation while its balancer is made, and may have another, or be unknown, when it goes.
func TestOnDelete(t *testing.T) {
	cloud := startPropertyCloud(t)
	for name, tc := range map[string]struct {
		made, gone string // values of the annotation; "-" for none, "?" for a Service that is gone
		byDefault  string // the configuration's value
		protect    bool   // by a person, in the cloud
		reason     string // of an error
		event      string
		stays      bool
	}{
		"no word of it":                    {made: "-", gone: "-"},
		"delete":                           {made: "delete", gone: "delete"},
		"keep":                             {made: "keep", gone: "keep", event: "LoadBalancerKept", stays: true},
		"keep, and the Service is unknown": {made: "keep", gone: "?", event: "LoadBalancerKept", stays: true},
		"keep, and delete in the end":      {made: "keep", gone: "delete"},
		"refuse": {
			made: "refuse", gone: "refuse", reason: contract.ReasonLoadBalancerProtected,
			event: "LoadBalancerProtected", stays: true,
		},
		"refuse, and the Service is unknown": {
			made: "refuse", gone: "?", reason: contract.ReasonLoadBalancerProtected,
			event: "LoadBalancerProtected", stays: true,
		},
		"refuse, and delete in the end": {made: "refuse", gone: "delete"},
		"keep by default": {
			made: "-", gone: "-", byDefault: "keep", event: "LoadBalancerKept", stays: true,
		},
		"refuse by default": {
			made: "-", gone: "-", byDefault: "refuse", reason: contract.ReasonLoadBalancerProtected,
			event: "LoadBalancerProtected", stays: true,
		},
		"refuse by default, and delete in the end": {made: "-", gone: "delete", byDefault: "refuse"},
		"refuse, and no word of it in the end":     {made: "refuse", gone: "-"},
		"protected by a person": {
			made: "-", gone: "-", protect: true, reason: contract.ReasonLoadBalancerProtected,
			event: "LoadBalancerProtected", stays: true,
		},
		"no such word": {
			made: "-", gone: "kepe", reason: contract.ReasonInvalidService, event: "InvalidService", stays: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := &loadBalancers{
				api:     cloud,
				cluster: testCluster("k-1"), defaults: map[string]string{},
			}
			if tc.byDefault != "" {
				l.defaults[annotations.OnDelete] = tc.byDefault
			}
			with := func(value string) *corev1.Service {
				switch value {
				case "-":
					return service()
				case "?":
					return &corev1.Service{ObjectMeta: service().ObjectMeta} // as the orphan sweeper has it
				}
				return serviceWithAnnotations(annotations.OnDelete, value)
			}
			nodes := nodes(cloud.instances[0])
			_, err := l.EnsureLoadBalancer(t.Context(), clusterName, with(tc.made), nodes)
			if IsPending(err) {
				cloud.awaitBalancers()
				_, err = l.EnsureLoadBalancer(t.Context(), clusterName, with(tc.made), nodes)
			}
			require.NoError(t, err)
			lb := cloud.awaitBalancers()[0]
			assert.Equal(t, tc.made == "refuse" || tc.byDefault == "refuse", lb.DeletionProtection)
			if tc.protect {
				_, err = cloud.cloud.UpdateLoadBalancer(t.Context(), lb.ID, api.LoadBalancerUpdate{DeletionProtection: new(true)})
				require.NoError(t, err)
				cloud.awaitBalancers()
			}
			ctx, noticed := notices(t.Context())
			err = l.EnsureLoadBalancerDeleted(ctx, clusterName, with(tc.gone))
			if tc.reason != "" {
				require.Error(t, err)
				assert.Equal(t, tc.reason, CauseOf(err).Reason)
			} else {
				require.NoError(t, err)
				_, exists, err := l.GetLoadBalancer(t.Context(), clusterName, with(tc.gone))
				require.NoError(t, err)
				assert.False(t, exists, "upstream takes the finalizer away")
			}
			left := cloud.awaitBalancers()
			assert.Equal(t, tc.stays, len(left) == 1)
			assert.Equal(t, tc.event == "LoadBalancerKept", len(noticed()) == 1)
			for _, lb := range left {
				assert.Equal(t, tc.event == "LoadBalancerKept", !l.cluster.MayOwn(lb.Tags), "the sweeper leaves it alone")
			}
			cloud.removeBalancers(t)
		})
	}
}
