package build

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Minors are the control planes of the other Kubernetes minors that the CCM
// supports, by name, e.g. "v1.35". A folder of lab/kube/minor pins each. The
// hollow node is not among their programs, because its kubelet has the minor of lab/kube. A
// kubelet must not be newer than its API server (kubernetes.io, version skew
// policy), nor may a controller manager or a scheduler.
func Minors(root string) (map[string]Module, error) {
	dir := filepath.Join(root, "lab", "kube", "minor")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	minors := map[string]Module{}
	for _, e := range entries {
		m, err := pinnedPrograms(
			filepath.Join(dir, e.Name()), "kube-apiserver", "kube-controller-manager", "kube-scheduler",
		)
		if err != nil {
			return nil, err
		}
		version, err := m.Version()
		if err == nil && !strings.HasPrefix(version, e.Name()+".") {
			err = fmt.Errorf("%s pins Kubernetes %s, and its name says %s", m.Dir, version, e.Name())
		}
		if err != nil {
			return nil, err
		}
		minors[e.Name()] = m
	}
	return minors, nil
}

// Version is the version of Kubernetes that the module pins.
func (m Module) Version() (string, error) { return Required(m.Dir, "k8s.io/kubernetes") }
