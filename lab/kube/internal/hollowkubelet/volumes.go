package hollowkubelet

import (
	"os"

	v1 "k8s.io/api/core/v1"
	"k8s.io/kubernetes/pkg/volume"
	"k8s.io/kubernetes/pkg/volume/util/hostutil"
)

// withoutOwnership wraps plugins so that they do not change a volume's owner. For a pod with
// runAsUser or fsGroup the kubelet would give volumes (service account tokens above all) to that
// user, which needs root, and no process reads them here.
func withoutOwnership(plugins []volume.VolumePlugin) []volume.VolumePlugin {
	wrapped := make([]volume.VolumePlugin, 0, len(plugins))
	for _, plugin := range plugins {
		switch plugin.(type) {
		case volume.AttachableVolumePlugin, volume.PersistentVolumePlugin, volume.BlockVolumePlugin:
			// These implement further interfaces, which a wrapper would hide from the kubelet. None
			// of them has tokens.
			wrapped = append(wrapped, plugin)
		default:
			wrapped = append(wrapped, unownedPlugin{plugin})
		}
	}
	return wrapped
}

type unownedPlugin struct{ volume.VolumePlugin }

func (u unownedPlugin) NewMounter(spec *volume.Spec, pod *v1.Pod) (volume.Mounter, error) {
	mounter, err := u.VolumePlugin.NewMounter(spec, pod)
	if err != nil {
		return nil, err
	}
	return unownedMounter{mounter}, nil
}

type unownedMounter struct{ volume.Mounter }

func (u unownedMounter) SetUp(args volume.MounterArgs) error {
	return u.Mounter.SetUp(withoutOwner(args))
}

func (u unownedMounter) SetUpAt(dir string, args volume.MounterArgs) error {
	return u.Mounter.SetUpAt(dir, withoutOwner(args))
}

func withoutOwner(args volume.MounterArgs) volume.MounterArgs {
	args.FsUser, args.FsGroup, args.FSGroupChangePolicy = nil, nil, nil
	return args
}

// fakeHostUtil is upstream's fake, which sees no file of the real machine, with a mode for
// directories: subPath mounts need one.
type fakeHostUtil struct{ *hostutil.FakeHostUtil }

func (fakeHostUtil) GetMode(string) (os.FileMode, error) { return os.ModeDir | 0o755, nil }
