package hollowkubelet

import (
	"os"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/kubernetes/pkg/volume"
	"k8s.io/kubernetes/pkg/volume/util/hostutil"
	"k8s.io/utils/ptr"
)

const (
	// emptyAfter is the age from which a pod no longer waits for a Secret or ConfigMap: in a real cluster
	// one of the pod's peers may make it, but no simulated container does.
	emptyAfter         = 5 * time.Second
	reasonMountedEmpty = "MountedEmpty"
	mountedEmptyText   = "Volume %s is mounted empty (%v), because no simulated container makes what is missing, or reads it"
)

// simulatedVolumes wraps plugins for pods whose containers read no files. A volume's owner is not
// changed: for a pod with runAsUser or fsGroup the kubelet would give volumes (service account tokens
// above all) to that user, which needs root. A missing Secret or ConfigMap is mounted empty after
// emptyAfter, with an Event.
func simulatedVolumes(plugins []volume.VolumePlugin, probes *ProbeManager) []volume.VolumePlugin {
	wrapped := make([]volume.VolumePlugin, 0, len(plugins))
	for _, plugin := range plugins {
		switch plugin.(type) {
		case volume.AttachableVolumePlugin, volume.PersistentVolumePlugin, volume.BlockVolumePlugin:
			// These implement further interfaces, which a wrapper would hide from the kubelet. None
			// of them has tokens.
			wrapped = append(wrapped, plugin)
		default:
			wrapped = append(wrapped, simulatedPlugin{plugin, probes})
		}
	}
	return wrapped
}

type simulatedPlugin struct {
	volume.VolumePlugin
	probes *ProbeManager
}

func (s simulatedPlugin) NewMounter(spec *volume.Spec, pod *v1.Pod) (volume.Mounter, error) {
	mounter, err := s.VolumePlugin.NewMounter(spec, pod)
	if err != nil {
		return nil, err
	}
	return simulatedMounter{mounter, s, spec, pod}, nil
}

type simulatedMounter struct {
	volume.Mounter
	plugin simulatedPlugin
	spec   *volume.Spec
	pod    *v1.Pod
}

func (s simulatedMounter) SetUp(args volume.MounterArgs) error {
	err := s.Mounter.SetUp(withoutOwner(args))
	if !apierrors.IsNotFound(err) || time.Since(s.pod.CreationTimestamp.Time) < emptyAfter {
		return err
	}
	optional, plugin := s.spec.Volume.DeepCopy(), s.plugin
	switch {
	case optional.Secret != nil:
		optional.Secret.Optional = ptr.To(true)
	case optional.ConfigMap != nil:
		optional.ConfigMap.Optional = ptr.To(true)
	default:
		return err
	}
	// The kubelet sets a volume up again and again, so that it gets its files should they come to be.
	if _, missing := os.Lstat(s.GetPath()); missing != nil {
		plugin.probes.recorder.Eventf(s.pod, v1.EventTypeWarning, reasonMountedEmpty, mountedEmptyText, optional.Name, err)
	}
	mounter, failed := plugin.VolumePlugin.NewMounter(volume.NewSpecFromVolume(optional), s.pod)
	if failed != nil {
		return failed
	}
	return mounter.SetUp(withoutOwner(args))
}

func (s simulatedMounter) SetUpAt(dir string, args volume.MounterArgs) error {
	return s.Mounter.SetUpAt(dir, withoutOwner(args))
}

func withoutOwner(args volume.MounterArgs) volume.MounterArgs {
	args.FsUser, args.FsGroup, args.FSGroupChangePolicy = nil, nil, nil
	return args
}

// fakeHostUtil is upstream's fake, which sees no file of the real machine, with a mode for
// directories: subPath mounts need one.
type fakeHostUtil struct{ *hostutil.FakeHostUtil }

func (fakeHostUtil) GetMode(string) (os.FileMode, error) { return os.ModeDir | 0o755, nil }
