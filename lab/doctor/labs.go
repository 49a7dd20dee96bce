package doctor

// Which labs there are, and what earlier ones left.

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

// labs: one that has a folder and no process is stopped, and waits for `lab up`.
func labs(_ context.Context, m *Machine) Finding {
	all, err := m.Labs()
	if err != nil {
		return unknown(err)
	}
	found, err := m.Processes()
	if err != nil {
		return unknown(err)
	}
	running, here := map[string]bool{}, map[string]bool{}
	for _, p := range found {
		running[p.Lab] = true
	}
	var said, stopped []string
	for _, l := range all {
		here[l.Dir] = true
		switch {
		case l.State != nil && l.State.Slot == 0:
			said = append(said, l.Name+" (in containers)")
		case running[l.Dir]:
			said = append(said, l.Name)
		default:
			stopped = append(stopped, l.Name)
		}
	}
	for _, dir := range slices.Sorted(maps.Keys(running)) {
		if !here[dir] && !m.Deleted(dir) {
			said = append(said, dir)
		}
	}
	seen := "none runs"
	if len(said) > 0 {
		seen = strings.Join(said, ", ")
	}
	if len(stopped) > 0 {
		return info(fmt.Sprintf("lab up --name %s goes on with it, lab down --name %[1]s removes it", stopped[0]), "%s; stopped: %s", seen, strings.Join(stopped, ", "))
	}
	return ok("%s", seen)
}

// leftovers are processes whose lab's folder was deleted.
func leftovers(_ context.Context, m *Machine) Finding {
	found, err := m.Processes()
	if err != nil {
		return unknown(err)
	}
	var said, dirs []string
	for _, p := range found {
		if !m.Deleted(p.Lab) {
			continue
		}
		said = append(said, fmt.Sprintf("%s (pid %d)", p.Component, p.PID))
		dirs = append(dirs, p.Lab)
	}
	if len(said) == 0 {
		return ok("none: every process of a lab has its folder")
	}
	dir := slices.Min(dirs)
	return fix(fmt.Sprintf("CCMLAB_HOME=%s lab down --name %s", filepath.Dir(dir), filepath.Base(dir)), "processes of a lab whose folder is gone, %s: %s", dir, strings.Join(said, ", "))
}

// kubectl is another than the lab's where the shell has not been told; it may be
// one minor older or newer (Kubernetes' version skew policy).
func kubectl(ctx context.Context, m *Machine) Finding {
	ours := filepath.Join(m.Kube, "kubectl")
	file, err := m.Find("kubectl")
	switch {
	case err != nil && m.Exists(ours):
		return ok("the lab's own: eval \"$(lab env)\"")
	case err != nil:
		return info("make build, or install kubectl (the lab itself runs without)", "neither in PATH nor in %s", m.Kube)
	}
	if file == ours || len(m.Missing) > 0 {
		return ok("%s", file)
	}
	var theirs, wanted int
	both, ctx := errgroup.WithContext(ctx)
	both.Go(func() (err error) { theirs, err = minor(ctx, m, file); return err })
	both.Go(func() (err error) { wanted, err = minor(ctx, m, ours); return err })
	if both.Wait() != nil {
		return info("", "%s is first in PATH; which version it has cannot be told", file)
	}
	if theirs < wanted-1 || theirs > wanted+1 {
		return info(`eval "$(lab env)" puts the lab's own first`, "%s is first in PATH, and of 1.%d, where the lab is of 1.%d: more than one minor apart is not supported", file, theirs, wanted)
	}
	return ok("%s, 1.%d", file, theirs)
}

func minor(ctx context.Context, m *Machine, kubectl string) (int, error) {
	said, err := m.Run(ctx, "", kubectl, "version", "--client", "-o", "json")
	if err != nil {
		return 0, err
	}
	var v struct {
		ClientVersion struct{ GitVersion string }
	}
	if err := json.Unmarshal([]byte(said), &v); err != nil {
		return 0, err
	}
	var minor int
	if !scan(v.ClientVersion.GitVersion, "v1.%d", &minor) {
		return 0, fmt.Errorf("%q is no version", v.ClientVersion.GitVersion)
	}
	return minor, nil
}
