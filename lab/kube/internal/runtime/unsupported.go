package runtime

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

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
