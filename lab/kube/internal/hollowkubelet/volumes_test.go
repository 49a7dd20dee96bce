package hollowkubelet

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/kubernetes/pkg/volume"
	"k8s.io/utils/ptr"
)

// failingPlugin's volumes fail unless they are optional, as those of a missing Secret or ConfigMap do.
type failingPlugin struct {
	volume.VolumePlugin
	path string
	err  error
}

func (f failingPlugin) NewMounter(spec *volume.Spec, _ *v1.Pod) (volume.Mounter, error) {
	return failingMounter{plugin: f, volume: spec.Volume}, nil
}

type failingMounter struct {
	volume.Mounter
	plugin failingPlugin
	volume *v1.Volume
}

func (f failingMounter) GetPath() string { return f.plugin.path }

func (f failingMounter) SetUp(args volume.MounterArgs) error {
	if args.FsGroup != nil {
		return errors.New("a group owns it")
	}
	if f.volume.Secret != nil && ptr.Deref(f.volume.Secret.Optional, false) ||
		f.volume.ConfigMap != nil && ptr.Deref(f.volume.ConfigMap.Optional, false) {
		return nil
	}
	return f.plugin.err
}

func TestMissingVolumesAreMountedEmpty(t *testing.T) {
	notFound := apierrors.NewNotFound(v1.Resource("secrets"), "cert")
	secret := v1.VolumeSource{Secret: &v1.SecretVolumeSource{}}
	there, missing := t.TempDir(), filepath.Join(t.TempDir(), "missing")
	for name, c := range map[string]struct {
		source  v1.VolumeSource
		age     time.Duration
		path    string
		err     error
		mounted bool
		events  int
	}{
		"a Secret":               {secret, emptyAfter, missing, notFound, true, 1},
		"a ConfigMap":            {v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{}}, emptyAfter, missing, notFound, true, 1},
		"one mounted before":     {secret, emptyAfter, there, notFound, true, 0},
		"a young pod":            {secret, 0, missing, notFound, false, 0},
		"another error":          {secret, emptyAfter, missing, errors.New("refused"), false, 0},
		"another kind of volume": {v1.VolumeSource{NFS: &v1.NFSVolumeSource{}}, emptyAfter, missing, notFound, false, 0},
	} {
		recorder := record.NewFakeRecorder(2)
		plugin := simulatedVolumes(
			[]volume.VolumePlugin{failingPlugin{path: c.path, err: c.err}}, &ProbeManager{recorder: recorder},
		)[0]
		pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(time.Now().Add(-c.age))}}
		given := &v1.Volume{Name: "cert", VolumeSource: c.source}
		mounter, err := plugin.NewMounter(volume.NewSpecFromVolume(given), pod)
		require.NoError(t, err)
		if err := mounter.SetUp(volume.MounterArgs{FsGroup: ptr.To[int64](7)}); (err == nil) != c.mounted ||
			!c.mounted && !errors.Is(err, c.err) {
			t.Errorf("%s: %v", name, err)
		}
		if got := len(recorder.Events); got != c.events {
			t.Errorf("%s: %d Events, want %d", name, got, c.events)
		} else if got > 0 {
			want := `Warning MountedEmpty Volume cert is mounted empty (secrets "cert" not found)`
			if text := <-recorder.Events; !strings.HasPrefix(text, want) {
				t.Errorf("%s: %s", name, text)
			}
		}
		if given.Secret != nil && given.Secret.Optional != nil {
			t.Errorf("%s: the pod's own volume has changed", name)
		}
	}
}
