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
	const kept, protected = contract.ReasonLoadBalancerKept, contract.ReasonLoadBalancerProtected
	cloud := startPropertyCloud(t)
	for name, tc := range map[string]struct {
		made, gone string // values of the annotation; "" for none, "?" for a Service that is gone
		byDefault  string // the configuration's value
		protect    bool   // by a person, in the cloud
		reason     string // "" if the balancer is deleted; else of the notice if it is kept, or of the error
	}{
		"no word of it":                            {},
		"delete":                                   {made: "delete", gone: "delete"},
		"keep":                                     {made: "keep", gone: "keep", reason: kept},
		"keep, and the Service is unknown":         {made: "keep", gone: "?", reason: kept},
		"keep, and delete in the end":              {made: "keep", gone: "delete"},
		"keep by default":                          {byDefault: "keep", reason: kept},
		"refuse":                                   {made: "refuse", gone: "refuse", reason: protected},
		"refuse, and the Service is unknown":       {made: "refuse", gone: "?", reason: protected},
		"refuse, and delete in the end":            {made: "refuse", gone: "delete"},
		"refuse, and no word of it in the end":     {made: "refuse"},
		"refuse by default":                        {byDefault: "refuse", reason: protected},
		"refuse by default, and delete in the end": {gone: "delete", byDefault: "refuse"},
		"protected by a person":                    {protect: true, reason: protected},
		"no such word":                             {gone: "kepe", reason: contract.ReasonInvalidService},
	} {
		t.Run(name, func(t *testing.T) {
			cloud.removeBalancers(t)
			l := &loadBalancers{api: cloud, cluster: testCluster("k-1")}
			if tc.byDefault != "" {
				l.defaults = map[string]string{annotations.OnDelete: tc.byDefault}
			}
			with := func(value string) *corev1.Service {
				switch value {
				case "":
					return service()
				case "?":
					return &corev1.Service{ObjectMeta: service().ObjectMeta} // as the orphan sweeper has it
				}
				return serviceWithAnnotations(annotations.OnDelete, value)
			}
			_, err := cloud.ensure(l, with(tc.made), nodes(cloud.instances[0]))
			require.NoError(t, err)
			lb := cloud.awaitBalancers()[0]
			assert.Equal(t, tc.made == "refuse" || tc.byDefault == "refuse", lb.DeletionProtection)
			if tc.protect {
				protect := api.LoadBalancerUpdate{DeletionProtection: new(true)}
				_, err = cloud.cloud.UpdateLoadBalancer(t.Context(), lb.ID, protect)
				require.NoError(t, err)
				cloud.awaitBalancers()
			}

			ctx, noticed := notices(t.Context())
			err = l.EnsureLoadBalancerDeleted(ctx, clusterName, with(tc.gone))
			left := cloud.awaitBalancers()
			assert.Equal(t, tc.reason != "", len(left) == 1)
			if tc.reason != "" && tc.reason != kept {
				require.Error(t, err)
				assert.Equal(t, tc.reason, CauseOf(err).Reason)
				assert.True(t, l.cluster.MayOwn(left[0].Tags))
				return
			}
			require.NoError(t, err)
			_, exists, err := l.GetLoadBalancer(t.Context(), clusterName, with(tc.gone))
			require.NoError(t, err)
			assert.False(t, exists, "upstream takes the finalizer away")
			if tc.reason == kept {
				assert.Equal(t, []string{kept}, noticed())
				assert.False(t, l.cluster.MayOwn(left[0].Tags), "the sweeper leaves it alone")
			}
		})
	}
}

// A balancer that its Service does not protect any more can be replaced; one that a person protects cannot.
func TestReplaceProtected(t *testing.T) {
	for name, tagged := range map[string]annotations.OnDeletion{"by its Service": annotations.Refuse, "by a person": ""} {
		t.Run(name, func(t *testing.T) {
			have := built(t, api.LoadBalancerActive)
			have.AddressID, have.DeletionProtection, have.Tags[contract.TagOnDelete] = "a-1", true, string(tagged)
			cloud := newFakeBalancers(*have)
			cloud.update = func(_ string, u api.LoadBalancerUpdate) (*api.LoadBalancer, error) {
				have.DeletionProtection = *u.DeletionProtection
				return have, nil
			}
			cloud.remove = func(string) (*api.LoadBalancer, error) {
				if have.DeletionProtection {
					return nil, problem(409, api.Protected)
				}
				return built(t, api.LoadBalancerDeleting), nil
			}
			svc := serviceWithAnnotations(annotations.Scheme, "internal") // Its reserved address cannot stay.
			_, err := cloud.loadBalancers().EnsureLoadBalancer(t.Context(), clusterName, svc, nil)
			assert.Equal(t, tagged == annotations.Refuse, IsPending(err), "%v", err)
			assert.Equal(t, tagged == "", CauseOf(err).Reason == contract.ReasonLoadBalancerProtected, "%v", err)
		})
	}
}
