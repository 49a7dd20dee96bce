package doctor

// Checks of the labs that exist, of what earlier labs left, and of kubectl.

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
)

// checkLabs finds labs that are stopped: these have a folder and no process. `lab up` goes on
// with them.
func checkLabs(_ context.Context, m *Machine) Finding {
	all, err := m.Labs()
	if err != nil {
		return unknownFinding(err)
	}
	found, err := m.Processes()
	if err != nil {
		return unknownFinding(err)
	}
	running, hasFolder := map[string]bool{}, map[string]bool{}
	for _, p := range found {
		running[p.Lab] = true
	}
	var shown, stopped []string
	for _, l := range all {
		hasFolder[l.Dir] = true
		switch {
		case l.State != nil && l.State.Slot == 0:
			shown = append(shown, l.Name+" (in containers)")
		case running[l.Dir]:
			shown = append(shown, l.Name)
		default:
			stopped = append(stopped, l.Name)
		}
	}
	for _, dir := range slices.Sorted(maps.Keys(running)) {
		if !hasFolder[dir] && !m.Deleted(dir) {
			shown = append(shown, dir)
		}
	}
	text := "none runs"
	if len(shown) > 0 {
		text = strings.Join(shown, ", ")
	}
	if len(stopped) > 0 {
		return infoFinding(
			fmt.Sprintf("lab up --name %s goes on with it, lab down --name %[1]s removes it", stopped[0]),
			"%s; stopped: %s", text, strings.Join(stopped, ", "),
		)
	}
	return okFinding("%s", text)
}

// checkLeftovers finds processes whose lab's folder was deleted.
func checkLeftovers(_ context.Context, m *Machine) Finding {
	found, err := m.Processes()
	if err != nil {
		return unknownFinding(err)
	}
	var shown, dirs []string
	for _, p := range found {
		if !m.Deleted(p.Lab) {
			continue
		}
		shown = append(shown, fmt.Sprintf("%s (pid %d)", p.Component, p.PID))
		dirs = append(dirs, p.Lab)
	}
	if len(shown) == 0 {
		return okFinding("none: every process of a lab has its folder")
	}
	dir := slices.Min(dirs)
	return fixFinding(
		fmt.Sprintf("CCMLAB_HOME=%s lab down --name %s", filepath.Dir(dir), filepath.Base(dir)),
		"processes of a lab whose folder is gone, %s: %s", dir, strings.Join(shown, ", "),
	)
}

// checkKubectl checks the kubectl that is first in PATH. It is the lab's own in a shell that has
// evaluated `lab env`. Another may be one minor older or newer (Kubernetes' version skew policy).
func checkKubectl(ctx context.Context, m *Machine) Finding {
	labKubectl := filepath.Join(m.Kube, "kubectl")
	file, err := m.Find("kubectl")
	switch {
	case err != nil && m.Exists(labKubectl):
		return okFinding("the lab's own: eval \"$(lab env)\"")
	case err != nil:
		return infoFinding(
			"make build, or install kubectl (the lab itself runs without)", "neither in PATH nor in %s", m.Kube,
		)
	}
	if file == labKubectl || len(m.Missing) > 0 {
		return okFinding("%s", file)
	}
	var found, wanted int
	both, ctx := errgroup.WithContext(ctx)
	both.Go(func() (err error) { found, err = kubectlMinor(ctx, m, file); return err })
	both.Go(func() (err error) { wanted, err = kubectlMinor(ctx, m, labKubectl); return err })
	if both.Wait() != nil {
		return infoFinding("", "%s is first in PATH; which version it has cannot be told", file)
	}
	if found < wanted-1 || found > wanted+1 {
		return infoFinding(
			`eval "$(lab env)" puts the lab's own first`,
			"%s is first in PATH, and of 1.%d, where the lab is of 1.%d: more than one minor apart is not supported",
			file, found, wanted,
		)
	}
	return okFinding("%s, 1.%d", file, found)
}

// kubectlMinor is the minor version of the kubectl in this file.
func kubectlMinor(ctx context.Context, m *Machine, kubectl string) (int, error) {
	output, err := m.Run(ctx, "", kubectl, "version", "--client", "-o", "json")
	if err != nil {
		return 0, err
	}
	var v struct {
		ClientVersion struct{ GitVersion string }
	}
	if err := json.Unmarshal([]byte(output), &v); err != nil {
		return 0, err
	}
	var minor int
	if !scanPrefix(v.ClientVersion.GitVersion, "v1.%d", &minor) {
		return 0, fmt.Errorf("%q is no version", v.ClientVersion.GitVersion)
	}
	return minor, nil
}
