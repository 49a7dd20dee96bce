package watch

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	cloudprovider "k8s.io/cloud-provider"
	"k8s.io/cloud-provider/app"
	cloudcontrollerconfig "k8s.io/cloud-provider/app/config"
	"k8s.io/cloud-provider/names"
	controllersmetrics "k8s.io/component-base/metrics/prometheus/controllers"
	controllermanager "k8s.io/controller-manager/app"
	"k8s.io/controller-manager/controller"

	"github.com/ccmlab/ccmlab/ccm/cache"
	"github.com/ccmlab/ccmlab/ccm/calls"
	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// A balancer that goes after its Service has no other Service looked at.
func TestBalancerGoesAfterItsService(t *testing.T) {
	w := newWorld(t, serviceWithAddress())
	w.balancerJob.onChange(cache.Change{LoadBalancer: &api.LoadBalancer{
		Metadata: api.Metadata{Tags: api.Tags{contract.TagServiceUID: "gone"}}, State: api.LoadBalancerDeleting,
	}})
	assert.Equal(t, 1, w.balancerJob.queue.Len())
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
		remembers := func() []bool {
			_, drift := w.drifts.Load(svc.UID)
			return []bool{drift, w.reasonOf(ours.UID) != "", w.reasonOf(svc.UID) != ""}
		}
		assert.Equal(t, []bool{true, true, true}, remembers())
		require.NoError(t, w.api.CoreV1().Nodes().Delete(t.Context(), ours.Name, metav1.DeleteOptions{}))
		require.NoError(t, w.api.CoreV1().Services(svc.Namespace).Delete(t.Context(), svc.Name, metav1.DeleteOptions{}))
		synctest.Wait()
		assert.Equal(t, []bool{false, false, false}, remembers())
	})
}

// provider is a cloud provider that has a watch, or nil without a cache. It makes clients, too.
type provider struct {
	cloudprovider.Interface
	cloudprovider.ControllerClientBuilder
	watch *Watch
}

func (p provider) CloudWatch() *Watch                      { return p.watch }
func (p provider) ClientOrDie(string) kubernetes.Interface { return nil }

// Each job runs beside the controller that it helps, unless the cloud watch is off or there is no cache.
func TestJobsRunBesideTheirControllers(t *testing.T) {
	controllers := map[string]app.ControllerInitFuncConstructor{}
	for name := range app.DefaultInitFuncConstructors {
		controllers[name] = app.ControllerInitFuncConstructor{Constructor: func(
			app.ControllerInitContext, *cloudcontrollerconfig.CompletedConfig, cloudprovider.Interface,
		) app.InitFunc {
			return func(context.Context, controllermanager.ControllerContext) (controller.Interface, bool, error) {
				return nil, true, nil
			}
		}}
	}
	AddControllers(controllers)
	manager := controllermanager.ControllerContext{
		ControllerManagerMetrics: controllersmetrics.NewControllerManagerMetrics("test"),
	}
	jobsOf := map[string][]string{
		names.CloudNodeController:          {"the watch of waiting Nodes"},
		names.CloudNodeLifecycleController: {"the watch of ended instances"},
		names.ServiceLBController:          {"the orphan sweeper", "the service watch"},
	}
	for name, constructor := range controllers {
		for _, enabled := range []string{"*", "-" + calls.CloudWatch, "no cache"} {
			runInBubble(t, name+" with "+enabled, func(t *testing.T) {
				cfg, w := cloudcontrollerconfig.Config{ClientBuilder: provider{}}, newWorld(t).Watch
				cfg.ComponentConfig.Generic.Controllers = []string{enabled, "*"}
				cloud := provider{watch: w}
				if enabled == "no cache" {
					cloud.watch = nil
				}
				start := constructor.Constructor(app.ControllerInitContext{}, cfg.Complete(), cloud)
				_, started, err := start(t.Context(), manager)
				require.NoError(t, err)
				assert.Equal(t, name != calls.CloudWatch || cloud.watch != nil, started)
				synctest.Wait()
				var jobs []string
				for key := range w.health.rounds.Range {
					jobs = append(jobs, key.(*jobRound).job) // It waits for the informers.
				}
				slices.Sort(jobs)
				if enabled != "*" {
					assert.Empty(t, jobs)
					return
				}
				assert.Equal(t, jobsOf[name], jobs)
			})
		}
	}
}
