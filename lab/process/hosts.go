package process

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// command is the program with its arguments. With a hosts file it runs in a mount namespace of its own, which
// only root may make, or who is root in a user namespace. Both programs in between give way to the next (exec),
// so that the process ID, its environment and signals are the program's.
func (s Spec) command() []string {
	program := append([]string{s.Path}, s.Args...)
	if s.HostsFile == "" {
		return program
	}
	return slices.Concat(
		ownMounts(), []string{"sh", "-c", `mount --bind "$0" /etc/hosts && exec "$@"`, s.HostsFile}, program,
	)
}

func ownMounts() []string {
	if os.Geteuid() == 0 {
		return []string{"unshare", "--mount"}
	}
	return []string{"unshare", "--user", "--map-root-user", "--mount"}
}

// CheckHostsFile says why no process can have a hosts file of its own here, and what helps; nil if it can.
func CheckHostsFile() error {
	test := append(ownMounts(), "mount", "--bind", "/etc/hosts", "/etc/hosts")
	out, err := exec.Command(test[0], test[1:]...).CombinedOutput()
	switch {
	case err == nil:
		return nil
	case errors.Is(err, exec.ErrNotFound):
		return fmt.Errorf("the program is to have a hosts file of its own, for which there is no %s (util-linux) here", test[0])
	}
	return fmt.Errorf(
		"the program is to have a hosts file of its own, and this machine lets it have no mount namespace (%s: %s): "+
			"run as root, or allow user namespaces (sysctl kernel.unprivileged_userns_clone=1, user.max_user_namespaces, "+
			"kernel.apparmor_restrict_unprivileged_userns=0)", strings.Join(test, " "), strings.TrimSpace(string(out)),
	)
}
