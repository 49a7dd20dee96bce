package runtime

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// simulatedImageSize is in bytes. The kubelet takes 0 for a broken image.
const simulatedImageSize = 1

// imageID returns an ID that says in the pod's status that the image is not real.
func imageID(name string) string { return "simulated://" + name }

// ListImages lists the images that were "pulled".
func (r *Runtime) ListImages(_ context.Context, filter *runtimeapi.ImageFilter) ([]*runtimeapi.Image, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	wanted := filter.GetImage().GetImage()
	var list []*runtimeapi.Image
	for name, image := range r.images {
		if wanted == "" || wanted == name || wanted == image.Id {
			list = append(list, image)
		}
	}
	return list, nil
}

// ImageStatus returns no image before it was pulled, so that pull policies have their effect.
func (r *Runtime) ImageStatus(
	_ context.Context,
	image *runtimeapi.ImageSpec,
	_ bool,
) (*runtimeapi.ImageStatusResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return &runtimeapi.ImageStatusResponse{Image: r.imageNamed(image.GetImage())}, nil
}

// PullImage simulates a pull. It contacts no registry; its log and the ID say so.
func (r *Runtime) PullImage(
	_ context.Context,
	image *runtimeapi.ImageSpec,
	_ *runtimeapi.AuthConfig,
	_ *runtimeapi.PodSandboxConfig,
) (string, error) {
	name := image.GetImage()
	if name == "" {
		return "", status.Error(codes.InvalidArgument, "an image without a name cannot be pulled")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if existing := r.imageNamed(name); existing != nil {
		return existing.Id, nil
	}
	r.images[name] = &runtimeapi.Image{
		Id:       imageID(name),
		RepoTags: []string{name},
		Size:     simulatedImageSize,
		Spec:     &runtimeapi.ImageSpec{Image: name},
	}
	r.options.Log.Info("image pull simulated: no registry was asked", "image", name)
	return imageID(name), nil
}

// RemoveImage removes an image.
func (r *Runtime) RemoveImage(_ context.Context, image *runtimeapi.ImageSpec) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if found := r.imageNamed(image.GetImage()); found != nil {
		delete(r.images, found.Spec.Image)
	}
	return nil
}

// ImageFsInfo reports an empty image store.
func (r *Runtime) ImageFsInfo(context.Context) (*runtimeapi.ImageFsInfoResponse, error) {
	empty := &runtimeapi.FilesystemUsage{
		Timestamp:  time.Now().UnixNano(),
		FsId:       &runtimeapi.FilesystemIdentifier{Mountpoint: r.options.StateDirectory},
		UsedBytes:  &runtimeapi.UInt64Value{},
		InodesUsed: &runtimeapi.UInt64Value{},
	}
	list := []*runtimeapi.FilesystemUsage{empty}
	return &runtimeapi.ImageFsInfoResponse{ImageFilesystems: list, ContainerFilesystems: list}, nil
}

// imageNamed returns an image by its name or ID, or nil. It needs r.mu.
func (r *Runtime) imageNamed(nameOrID string) *runtimeapi.Image {
	if image := r.images[nameOrID]; image != nil {
		return image
	}
	for _, image := range r.images {
		if image.Id == nameOrID {
			return image
		}
	}
	return nil
}
