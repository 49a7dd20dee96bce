package runtime

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	// exitCodeKilled is that of a process that SIGKILL has ended: 128 + 9.
	exitCodeKilled = 137

	reasonCompleted = "Completed"
	reasonError     = "Error"
)

// container is a simulated container. Runtime.mu guards it.
type container struct {
	id      string
	sandbox *sandbox
	config  *runtimeapi.ContainerConfig
	// spec comes from the pod's spec, if the node knows the pod.
	spec    containerSpec
	logPath string

	state      runtimeapi.ContainerState
	createdAt  time.Time
	startedAt  time.Time
	finishedAt time.Time
	exitCode   int32
	reason     string
	message    string

	// log and server are set while the container runs.
	log    *logFile
	server *portServer
	// exited is closed when the container has ended.
	exited chan struct{}
	// nothingRun has the first exec probe or hook reported.
	nothingRun sync.Once
}

// CreateContainer creates a container.
func (r *Runtime) CreateContainer(
	_ context.Context,
	sandboxID string,
	config *runtimeapi.ContainerConfig,
	sandboxConfig *runtimeapi.PodSandboxConfig,
) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.sandboxes[sandboxID]
	if s == nil {
		return "", notFound("sandbox", sandboxID)
	}
	if s.state != runtimeapi.PodSandboxState_SANDBOX_READY || r.closed {
		return "", status.Errorf(codes.FailedPrecondition, "sandbox %q is not running", sandboxID)
	}
	c := &container{
		id:        newID(),
		sandbox:   s,
		config:    config,
		spec:      containerSpecOf(r.options.Pod(s.config.GetMetadata().GetUid()), config.GetMetadata().GetName()),
		state:     runtimeapi.ContainerState_CONTAINER_CREATED,
		createdAt: time.Now(),
		exited:    make(chan struct{}),
	}
	if sandboxConfig.GetLogDirectory() != "" && config.GetLogPath() != "" {
		c.logPath = filepath.Join(sandboxConfig.GetLogDirectory(), config.GetLogPath())
	}
	r.containers[c.id] = c
	return c.id, nil
}

// StartContainer opens the container's log and ports. If a port cannot be bound, the container
// fails and not the call: it exits with the reason, as a process in a real container would.
func (r *Runtime) StartContainer(_ context.Context, id string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.containers[id]
	if c == nil {
		return notFound("container", id)
	}
	if c.state != runtimeapi.ContainerState_CONTAINER_CREATED || r.closed {
		return status.Errorf(codes.FailedPrecondition, "container %q cannot start: it is %s", id, c.state)
	}
	log, err := openLogFile(c.logPath)
	if err != nil {
		return status.Errorf(codes.Internal, "container log: %v", err)
	}
	c.log, c.state, c.startedAt = log, runtimeapi.ContainerState_CONTAINER_RUNNING, time.Now()

	if c.spec.endsAtOnce {
		log.writeLine(stdout, fmt.Sprintf("simulated container %s: nothing to do", c.containerName()))
		r.endContainerLocked(c, 0, "")
		return nil
	}
	server, err := r.startPorts(c)
	if err != nil {
		log.writeLine(stderr, err.Error())
		r.endContainerLocked(c, 1, err.Error())
		return nil
	}
	c.server = server
	return nil
}

// StopContainer ends a container as SIGTERM and, after the grace period, SIGKILL would: new
// connections are refused at once, requests in progress may finish.
func (r *Runtime) StopContainer(_ context.Context, id string, graceSeconds int64) error {
	r.mu.Lock()
	c := r.containers[id]
	if c == nil {
		r.mu.Unlock()
		return nil
	}
	server := c.server
	r.mu.Unlock()

	if graceSeconds <= 0 {
		r.endContainer(c, exitCodeKilled, "")
		return nil
	}
	code := int32(0)
	if server != nil && !server.drainRequests(time.Duration(graceSeconds)*time.Second) {
		code = exitCodeKilled
	}
	r.endContainer(c, code, "")
	return nil
}

func (r *Runtime) endContainer(c *container, code int32, message string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.endContainerLocked(c, code, message)
}

// endContainerLocked makes a container exited, whether it was started or not, and closes its ports and
// log. A container that has exited stays as it is. It needs r.mu.
func (r *Runtime) endContainerLocked(c *container, code int32, message string) {
	if c.state == runtimeapi.ContainerState_CONTAINER_EXITED {
		return
	}
	c.state, c.finishedAt, c.exitCode, c.message = runtimeapi.ContainerState_CONTAINER_EXITED, time.Now(), code, message
	c.reason = reasonCompleted
	if code != 0 {
		c.reason = reasonError
	}
	if c.server != nil {
		c.server.close()
		c.server = nil
	}
	if c.log != nil {
		c.log.close()
	}
	close(c.exited)
	r.options.Log.Info(
		"container exited", "pod", c.podName(), "container", c.containerName(), "exitCode", code, "message", message,
	)
}

// RemoveContainer removes a container, and kills it first if it runs.
func (r *Runtime) RemoveContainer(_ context.Context, id string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c := r.containers[id]; c != nil {
		r.endContainerLocked(c, exitCodeKilled, "")
		delete(r.containers, id)
	}
	return nil
}

// ListContainers lists the containers that match the filter.
func (r *Runtime) ListContainers(
	_ context.Context,
	filter *runtimeapi.ContainerFilter,
) ([]*runtimeapi.Container, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var list []*runtimeapi.Container
	for _, c := range r.containers {
		if filter.GetId() != "" && filter.GetId() != c.id ||
			filter.GetPodSandboxId() != "" && filter.GetPodSandboxId() != c.sandbox.id ||
			filter.GetState() != nil && filter.GetState().GetState() != c.state ||
			!matchesLabels(filter.GetLabelSelector(), c.config.GetLabels()) {
			continue
		}
		list = append(list, &runtimeapi.Container{
			Id:           c.id,
			PodSandboxId: c.sandbox.id,
			Metadata:     c.config.GetMetadata(),
			Image:        &runtimeapi.ImageSpec{Image: c.imageName()},
			ImageRef:     imageID(c.imageName()),
			ImageId:      imageID(c.imageName()),
			State:        c.state,
			CreatedAt:    unixNano(c.createdAt),
			Labels:       c.config.GetLabels(),
			Annotations:  c.config.GetAnnotations(),
		})
	}
	return list, nil
}

// ContainerStatus returns a container's state, or how it has ended.
func (r *Runtime) ContainerStatus(_ context.Context, id string, _ bool) (*runtimeapi.ContainerStatusResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.containers[id]
	if c == nil {
		return nil, notFound("container", id)
	}
	return &runtimeapi.ContainerStatusResponse{Status: &runtimeapi.ContainerStatus{
		Id:          c.id,
		Metadata:    c.config.GetMetadata(),
		State:       c.state,
		CreatedAt:   unixNano(c.createdAt),
		StartedAt:   unixNano(c.startedAt),
		FinishedAt:  unixNano(c.finishedAt),
		ExitCode:    c.exitCode,
		Image:       &runtimeapi.ImageSpec{Image: c.imageName()},
		ImageRef:    imageID(c.imageName()),
		ImageId:     imageID(c.imageName()),
		Reason:      c.reason,
		Message:     c.message,
		Labels:      c.config.GetLabels(),
		Annotations: c.config.GetAnnotations(),
		Mounts:      c.config.GetMounts(),
		LogPath:     c.logPath,
	}}, nil
}

// UpdateContainerResources accepts any resources: none are enforced.
func (*Runtime) UpdateContainerResources(context.Context, string, *runtimeapi.ContainerResources) error {
	return nil
}

// ReopenContainerLog starts a new log file after the kubelet has renamed the old one.
func (r *Runtime) ReopenContainerLog(_ context.Context, id string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.containers[id]
	if c == nil {
		return notFound("container", id)
	}
	if c.state != runtimeapi.ContainerState_CONTAINER_RUNNING {
		return status.Errorf(codes.FailedPrecondition, "container %q is not running", id)
	}
	return c.log.reopen()
}

func (c *container) containerName() string { return c.config.GetMetadata().GetName() }

func (c *container) podName() string {
	pod := c.sandbox.config.GetMetadata()
	return pod.GetNamespace() + "/" + pod.GetName()
}

// imageName returns the image as the pod's spec names it, or else as it was resolved.
func (c *container) imageName() string {
	if written := c.config.GetImage().GetUserSpecifiedImage(); written != "" {
		return written
	}
	return c.config.GetImage().GetImage()
}
