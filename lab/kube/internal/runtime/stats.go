package runtime

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ContainerStats reports what one container uses: nothing.
func (r *Runtime) ContainerStats(_ context.Context, id string) (*runtimeapi.ContainerStats, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.containers[id]
	if c == nil {
		return nil, notFound("container", id)
	}
	return r.containerStats(c), nil
}

// ListContainerStats reports what the running containers that match the filter use.
func (r *Runtime) ListContainerStats(
	_ context.Context,
	filter *runtimeapi.ContainerStatsFilter,
) ([]*runtimeapi.ContainerStats, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var list []*runtimeapi.ContainerStats
	for _, c := range r.containers {
		if c.state == runtimeapi.ContainerState_CONTAINER_RUNNING &&
			(filter.GetId() == "" || filter.GetId() == c.id) &&
			(filter.GetPodSandboxId() == "" || filter.GetPodSandboxId() == c.sandbox.id) &&
			matchesLabels(filter.GetLabelSelector(), c.config.GetLabels()) {
			list = append(list, r.containerStats(c))
		}
	}
	return list, nil
}

func (r *Runtime) containerStats(c *container) *runtimeapi.ContainerStats {
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

// PodSandboxStats is not called while the PodAndContainerStatsFromCRI feature gate is off.
func (r *Runtime) PodSandboxStats(context.Context, string) (*runtimeapi.PodSandboxStats, error) {
	return nil, unsupportedError("statistics per sandbox")
}

// ListPodSandboxStats is not called either.
func (r *Runtime) ListPodSandboxStats(
	context.Context,
	*runtimeapi.PodSandboxStatsFilter,
) ([]*runtimeapi.PodSandboxStats, error) {
	return nil, unsupportedError("statistics per sandbox")
}

// ListMetricDescriptors returns none.
func (r *Runtime) ListMetricDescriptors(context.Context) ([]*runtimeapi.MetricDescriptor, error) {
	return nil, nil
}

// ListPodSandboxMetrics returns none.
func (r *Runtime) ListPodSandboxMetrics(context.Context) ([]*runtimeapi.PodSandboxMetrics, error) {
	return nil, nil
}

func unsupportedError(what string) error {
	return status.Errorf(
		codes.Unimplemented, "%s is not supported by the simulated node: its containers have no processes", what,
	)
}

// CheckpointContainer is refused.
func (r *Runtime) CheckpointContainer(context.Context, *runtimeapi.CheckpointContainerRequest) error {
	return unsupportedError("checkpoint")
}

// GetContainerEvents is refused: the kubelet relists every second instead (the EventedPLEG feature
// gate is off).
func (r *Runtime) GetContainerEvents(
	context.Context,
	chan *runtimeapi.ContainerEventResponse,
	func(runtimeapi.RuntimeService_GetContainerEventsClient),
) error {
	return unsupportedError("the stream of container events")
}
