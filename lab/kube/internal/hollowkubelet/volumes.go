package hollowkubelet

import (
	"os"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
	"k8s.io/kubernetes/pkg/volume"
	"k8s.io/kubernetes/pkg/volume/util/hostutil"
	"k8s.io/kubernetes/pkg/volume/util/subpath"
)

// ownedByWhoeverRuns makes plugins leave ownership alone. For a pod with
// runAsUser or fsGroup the kubelet would give volumes (service account tokens
// above all) to that user, which takes root; and no process is going to read
// them here.
func ownedByWhoeverRuns(plugins []volume.VolumePlugin) []volume.VolumePlugin {
	wrapped := make([]volume.VolumePlugin, 0, len(plugins))
	for _, plugin := range plugins {
		switch plugin.(type) {
		case volume.AttachableVolumePlugin, volume.PersistentVolumePlugin, volume.BlockVolumePlugin:
			// More than a mounter: what the kubelet finds by further interfaces
			// must stay visible. None of these keeps tokens.
			wrapped = append(wrapped, plugin)
		default:
			wrapped = append(wrapped, unownedPlugin{plugin})
		}
	}
	return wrapped
}

type unownedPlugin struct{ volume.VolumePlugin }

func (p unownedPlugin) NewMounter(spec *volume.Spec, pod *v1.Pod) (volume.Mounter, error) {
	mounter, err := p.VolumePlugin.NewMounter(spec, pod)
	if err != nil {
		return nil, err
	}
	return unownedMounter{mounter}, nil
}

type unownedMounter struct{ volume.Mounter }

func (m unownedMounter) SetUp(args volume.MounterArgs) error {
	return m.Mounter.SetUp(unowned(args))
}

func (m unownedMounter) SetUpAt(dir string, args volume.MounterArgs) error {
	return m.Mounter.SetUpAt(dir, unowned(args))
}

func unowned(args volume.MounterArgs) volume.MounterArgs {
	args.FsUser, args.FsGroup, args.FSGroupChangePolicy = nil, nil, nil
	return args
}

// hostFiles is upstream's fake, which knows no file of the real machine, but
// gives a mode to directories: without one, subPath mounts fail.
type hostFiles struct{ *hostutil.FakeHostUtil }

func (hostFiles) GetMode(string) (os.FileMode, error) { return os.ModeDir | 0o755, nil }

// subPaths are upstream's fake, which mounts nothing, but makes the directories
// that a subPath names, as the kubelet promises. Outside the root directory, in a
// hostPath volume, it makes none.
type subPaths struct {
	*subpath.FakeSubpath
	confined confinedOS
}

func (s subPaths) SafeMakeDir(subdir, base string, perm os.FileMode) error {
	if !s.confined.inside(filepath.Clean(base)) {
		return nil
	}
	volume, err := os.OpenRoot(base) // which no link in the volume leaves
	if err != nil {
		return err
	}
	defer func() { _ = volume.Close() }()
	if _, err := volume.Stat(subdir); err == nil { // a ConfigMap's file, for one
		return nil
	}
	return volume.MkdirAll(subdir, perm.Perm())
}
