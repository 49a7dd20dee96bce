package runtime

import (
	"context"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ContainerStats reports one container.
func (r *Runtime) ContainerStats(_ context.Context, id string) (*runtimeapi.ContainerStats, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.containers[id]
	if c == nil {
		return nil, notFound("container", id)
	}
	return r.usage(c), nil
}

// ListContainerStats reports all running containers that the filter lets through.
func (r *Runtime) ListContainerStats(_ context.Context, filter *runtimeapi.ContainerStatsFilter) ([]*runtimeapi.ContainerStats, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var list []*runtimeapi.ContainerStats
	for _, c := range r.containers {
		if c.state == runtimeapi.ContainerState_CONTAINER_RUNNING &&
			(filter.GetId() == "" || filter.GetId() == c.id) &&
			(filter.GetPodSandboxId() == "" || filter.GetPodSandboxId() == c.sandbox.id) &&
			selects(filter.GetLabelSelector(), c.config.GetLabels()) {
			list = append(list, r.usage(c))
		}
	}
	return list, nil
}

func (r *Runtime) usage(c *container) *runtimeapi.ContainerStats {
	now := time.Now().UnixNano()
	none := &runtimeapi.UInt64Value{}
	return &runtimeapi.ContainerStats{
		Attributes: &runtimeapi.ContainerAttributes{
			Id:          c.id,
			Metadata:    c.config.GetMetadata(),
			Labels:      c.config.GetLabels(),
			Annotations: c.config.GetAnnotations(),
		},
		Cpu:    &runtimeapi.CpuUsage{Timestamp: now, UsageCoreNanoSeconds: none, UsageNanoCores: none},
		Memory: &runtimeapi.MemoryUsage{Timestamp: now, WorkingSetBytes: none, UsageBytes: none, RssBytes: none},
		WritableLayer: &runtimeapi.FilesystemUsage{
			Timestamp:  now,
			FsId:       &runtimeapi.FilesystemIdentifier{Mountpoint: r.options.StateDirectory},
			UsedBytes:  none,
			InodesUsed: none,
		},
	}
}

// PodSandboxStats is not asked for while the PodAndContainerStatsFromCRI feature
// gate is off.
func (r *Runtime) PodSandboxStats(context.Context, string) (*runtimeapi.PodSandboxStats, error) {
	return nil, unsupported("statistics per sandbox")
}

// ListPodSandboxStats is not asked for either.
func (r *Runtime) ListPodSandboxStats(context.Context, *runtimeapi.PodSandboxStatsFilter) ([]*runtimeapi.PodSandboxStats, error) {
	return nil, unsupported("statistics per sandbox")
}

// ListMetricDescriptors describes no metrics.
func (r *Runtime) ListMetricDescriptors(context.Context) ([]*runtimeapi.MetricDescriptor, error) {
	return nil, nil
}

// ListPodSandboxMetrics has no metrics.
func (r *Runtime) ListPodSandboxMetrics(context.Context) ([]*runtimeapi.PodSandboxMetrics, error) {
	return nil, nil
}
