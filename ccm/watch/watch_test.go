package watch

import (
	"context"
	"maps"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	cloudprovider "k8s.io/cloud-provider"
	"k8s.io/cloud-provider/app"
	cloudcontrollerconfig "k8s.io/cloud-provider/app/config"
	"k8s.io/cloud-provider/names"
	"k8s.io/cloud-provider/options"
	controllersmetrics "k8s.io/component-base/metrics/prometheus/controllers"
	controllermanager "k8s.io/controller-manager/app"

	"github.com/ccmlab/ccmlab/ccm/cache"
	"github.com/ccmlab/ccmlab/ccm/calls"
	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// takeKeys empties a queue.
func takeKeys(q keyQueue) (keys []string) {
	for q.Len() > 0 {
		key, _ := q.Get()
		q.Done(key)
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

// What happens in the cloud becomes keys, and nothing else is done on the cache's time.
func TestChangesBecomeKeys(t *testing.T) {
	ended, named, another := node("fakecloud://i-1"), node(""), serviceWithAddress()
	ended.Name, named.Name, named.UID = "other-name", "node-1", "u2"
	another.Name, another.UID = "another", "another-uid"
	w := newWorld(t, ended, named, serviceWithAddress(), another)
	balancerOf := func(uid string, state api.LoadBalancerState) *api.LoadBalancer {
		return &api.LoadBalancer{Tags: api.Tags{contract.TagServiceUID: uid}, State: state}
	}
	for name, tc := range map[string]struct {
		change          cache.Change
		nodes, services []string
	}{
		"an instance, by provider ID and by name": {
			change: cache.Change{Instance: &api.Instance{ID: "i-1", Name: "node-1"}, Kind: cache.Deleted},
			nodes:  []string{"node-1", "other-name"},
		},
		"a balancer": {
			change:   cache.Change{LoadBalancer: balancerOf("another-uid", api.LoadBalancerActive)},
			services: []string{"another-uid"},
		},
		"on its way out after its Service": {
			change:   cache.Change{LoadBalancer: balancerOf("gone", api.LoadBalancerDeleting)},
			services: []string{"gone"},
		},
		"of an unknown Service: its tags may have been changed": {
			change:   cache.Change{LoadBalancer: balancerOf("unknown", api.LoadBalancerActive)},
			services: []string{uid, "another-uid", "unknown"},
		},
		"listed anew: all of them": {
			change: cache.Change{Kind: cache.Relisted},
			nodes:  []string{"node-1", "other-name"}, services: []string{uid, "another-uid"},
		},
	} {
		for _, job := range w.jobs() {
			job.onChange(tc.change)
		}
		assert.Equal(t, tc.nodes, takeKeys(w.prompter.queue), name)
		assert.Equal(t, tc.nodes, takeKeys(w.remover.queue), name)
		assert.Equal(t, tc.services, takeKeys(w.balancerJob.queue), name)
	}
}

// What is remembered of an object goes with it.
func TestDeletedObjectsAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, svc := node("fakecloud://i-1"), serviceWithAddress()
		w := newWorld(t, ours, svc)
		w.instances.mayDelete = mayDelete("", nil)
		w.memory.set(built(t))
		w.run()
		w.setOutcome(ours, contract.ReasonInstanceNotFound)
		w.setOutcome(svc, contract.ReasonQuotaExceeded)
		remembers := func() (all []bool) {
			_, drift := w.drifts.Load(svc.UID)
			return append(all, drift, w.reasonOf(ours.UID) != "", w.reasonOf(svc.UID) != "")
		}
		assert.Equal(t, []bool{true, true, true}, remembers())
		require.NoError(t, w.api.CoreV1().Nodes().Delete(t.Context(), ours.Name, metav1.DeleteOptions{}))
		require.NoError(t, w.api.CoreV1().Services(svc.Namespace).Delete(t.Context(), svc.Name, metav1.DeleteOptions{}))
		synctest.Wait()
		assert.Equal(t, []bool{false, false, false}, remembers())
	})
}

// provider is a cloud provider that has a watch.
type provider struct {
	cloudprovider.Interface
	watch *Watch
}

func (p provider) CloudWatch() *Watch   { return p.watch }
func (p provider) ProviderName() string { return contract.ProviderName }
func (p provider) InstancesV2() (cloudprovider.InstancesV2, bool) {
	return p.watch.provider.Instances, true
}
func (p provider) LoadBalancer() (cloudprovider.LoadBalancer, bool) {
	return p.watch.provider.LoadBalancers, true
}
func (p provider) Routes() (cloudprovider.Routes, bool)       { return nil, false }
func (p provider) Instances() (cloudprovider.Instances, bool) { return nil, false }
func (p provider) HasClusterID() bool                         { return true }

// startWith starts those controllers that the flag enables, as upstream's app does, and returns the
// names of the cloud watch's jobs.
func startWith(t *testing.T, flag string) (jobs []string) {
	opts, err := options.NewCloudControllerManagerOptions()
	require.NoError(t, err)
	opts.KubeCloudShared.CloudProvider.Name = contract.ProviderName
	opts.KubeCloudShared.ConfigureCloudRoutes = false
	opts.Master, opts.SecureServing.BindPort = "http://127.0.0.1:1", 0 // Nothing is asked and nothing served.
	constructors, aliases := maps.Clone(app.DefaultInitFuncConstructors), names.CCMControllerAliases()
	beside := maps.Clone(jobsBeside)
	defer maps.Copy(jobsBeside, beside)
	for name, newJobs := range beside {
		jobsBeside[name] = nil
		for _, newJob := range newJobs {
			jobsBeside[name] = append(jobsBeside[name], func(w *Watch, kube kubernetes.Interface) *watchJob {
				job := newJob(w, kube)
				jobs = append(jobs, job.name)
				return job
			})
		}
	}
	AddControllers(constructors)
	aliases["cloud-watch"] = calls.CloudWatch
	controllers := app.ControllerNames(constructors)
	flags := new(cobra.Command).Flags()
	for _, set := range opts.Flags(controllers, nil, aliases, nil, nil).FlagSets {
		flags.AddFlagSet(set)
	}
	require.NoError(t, flags.Parse([]string{flag}))
	cfg, err := opts.Config(controllers, nil, aliases, nil, nil)
	require.NoError(t, err)
	completed, w := cfg.Complete(), newWorld(t).Watch
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // The jobs end at once.
	for name, start := range app.ConstructControllerInitializers(constructors, completed, provider{watch: w}) {
		if isEnabled(name, completed) {
			_, _, err := start(ctx, controllermanager.ControllerContext{
				ControllerManagerMetrics: controllersmetrics.NewControllerManagerMetrics("test"),
			})
			require.NoError(t, err)
		}
	}
	return jobs
}

// A job runs only where the controller runs that it helps.
func TestJobsFollowTheFlagControllers(t *testing.T) {
	const waiting, ended = "the watch of waiting Nodes", "the watch of ended instances"
	const services, orphans = "the service watch", "the orphan sweeper"
	all := []string{waiting, ended, services, orphans}
	for flag, want := range map[string][]string{
		"--controllers=cloud-watch-controller,cloud-node-controller": {waiting},
		"--controllers=-cloud-watch-controller":                      nil,
		"--controllers=cloud-node-controller":                        nil,
		"--controllers=*":                                            all,
		"--controllers=*,-cloud-watch":                               nil,
		"--controllers=*,-service-lb-controller":                     {waiting, ended},
		"--controllers=-cloud-node-lifecycle,*":                      {waiting, services, orphans},
		"--controllers=*,-cloud-node-controller":                     {ended, services, orphans},
		"--controllers=*,-cloud-node,-cloud-node-lifecycle":          {services, orphans},
		"--controllers=cloud-watch,cloud-node":                       {waiting},
		"--controllers=cloud-watch,service-lb-controller":            {services, orphans},
		"--controllers=cloud-watch,route":                            nil,
	} {
		t.Run(flag, func(t *testing.T) { assert.ElementsMatch(t, want, startWith(t, flag)) })
	}
	assert.ElementsMatch(t, slices.Collect(maps.Keys(jobsBeside)), slices.DeleteFunc(
		slices.Collect(maps.Keys(app.DefaultInitFuncConstructors)),
		func(name string) bool { return name == names.NodeRouteController }), "routes have no duty")
}

// Without a cache there is nothing to follow.
func TestCloudWatchNeedsTheCache(t *testing.T) {
	start := startCloudWatch(app.ControllerInitContext{}, &cloudcontrollerconfig.CompletedConfig{}, provider{})
	ctrl, enabled, err := start(t.Context(), controllermanager.ControllerContext{})
	require.NoError(t, err)
	assert.False(t, enabled)
	assert.Nil(t, ctrl)
}
