package kind

// The container engine: Docker or Podman, through its command, as kind itself
// does it.

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/ccmlab/ccmlab/lab/process"
)

// engine is a container engine. host is the address of its API; "" is the default of
// its command.
type engine struct{ name, host string }

// hostVariables are the environment variables that hold an engine's address.
var hostVariables = map[string]string{"docker": "DOCKER_HOST", "podman": "CONTAINER_HOST"}

// contextVariable would take precedence over DOCKER_HOST.
const contextVariable = "DOCKER_CONTEXT"

// detectBound is how long an engine may take to say that it is there.
const detectBound = 10 * time.Second

// detectEngine finds an engine that runs. KIND_EXPERIMENTAL_PROVIDER chooses one, as it
// does for kind.
func detectEngine(ctx context.Context) (engine, error) {
	names := []string{"docker", "podman"}
	if chosen := os.Getenv("KIND_EXPERIMENTAL_PROVIDER"); chosen != "" {
		if hostVariables[chosen] == "" {
			return engine{}, fmt.Errorf(
				"KIND_EXPERIMENTAL_PROVIDER=%s: want docker or podman; unset it, and what runs is found", chosen,
			)
		}
		names = []string{chosen}
	}
	var errs []error
	for _, name := range names {
		if _, err := exec.LookPath(name); err != nil {
			continue
		}
		e := engine{name: name, host: os.Getenv(hostVariables[name])}
		err := e.locateSocket(ctx)
		if err == nil {
			err = e.checkAnswers(ctx)
		}
		if err == nil {
			return e, nil
		}
		errs = append(errs, err)
	}
	switch {
	case len(errs) > 0:
		return engine{}, errors.Join(errs...)
	case len(names) == 1:
		return engine{}, fmt.Errorf(
			"KIND_EXPERIMENTAL_PROVIDER=%s, and %s is not installed; install it, or unset that", names[0], names[0],
		)
	}
	return engine{}, errors.New(
		"kind needs Docker or Podman, and neither is installed; install one (https://docs.docker.com/engine/install)",
	)
}

// locateSocket finds out where the engine is, so that whatever a later shell's
// environment or chosen context is, the lab is asked of where it lives. Only
// one on this machine will do: its networks must be reached.
func (e *engine) locateSocket(ctx context.Context) error {
	if e.host == "" && e.name == "docker" {
		if host, err := e.run(ctx, "context", "inspect", "--format", "{{.Endpoints.docker.Host}}"); err == nil {
			e.host = host // Else it is asked where it is by default, and speaks for itself.
		}
	}
	if e.host != "" && !strings.HasPrefix(e.host, "unix://") {
		return fmt.Errorf(
			"%s is on another machine (%s), and its networks cannot be reached from here; use one on this machine (unset %s, or docker context use default)",
			e.name, e.host, hostVariables[e.name],
		)
	}
	return nil
}

// checkAnswers is an error that says why the engine cannot be used, and what to do.
func (e engine) checkAnswers(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, detectBound)
	defer cancel()
	// podman's client answers by itself; info asks the engine.
	security, err := e.run(
		ctx, "info", "--format",
		map[string]string{"docker": "{{.SecurityOptions}}", "podman": "{{.Host.Security.Rootless}}"}[e.name],
	)
	switch {
	case err != nil && strings.Contains(strings.ToLower(err.Error()), "permission denied"):
		return fmt.Errorf(
			"%s runs, but you may not use it: %w; join its group (sudo usermod -aG docker $USER, then log in again)",
			e.name, err,
		)
	case err != nil:
		return fmt.Errorf(
			"%s is installed but does not answer: %w; start it (sudo systemctl start %s)", e.name, err, e.name,
		)
	case strings.Contains(security, "rootless") || security == "true":
		return fmt.Errorf(
			"%s runs rootless, and its networks cannot be reached from here: nothing could ask the load balancers; use one that runs as root",
			e.name,
		)
	}
	return nil
}

func (e engine) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, e.name, args...)
	cmd.Env = process.Unmarked()
	if e.host != "" {
		cmd.Env = slices.DeleteFunc(cmd.Env, func(kv string) bool { return strings.HasPrefix(kv, contextVariable+"=") })
		cmd.Env = append(cmd.Env, hostVariables[e.name]+"="+e.host)
	}
	cmd.WaitDelay = 2 * time.Second
	slog.Debug("running", "command", strings.Join(cmd.Args, " "))
	return cmd
}

// run returns the command's trimmed output. The error holds the last lines of its error
// output.
func (e engine) run(ctx context.Context, args ...string) (string, error) {
	return e.runWithInput(ctx, nil, args...)
}

// runWithInput is run with standard input.
func (e engine) runWithInput(ctx context.Context, stdin io.Reader, args ...string) (string, error) {
	var stdout, stderr bytes.Buffer
	cmd := e.command(ctx, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, &stdout, &stderr
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		// What a command in a container complains of may be on either.
		said := stderr.String()
		if args[0] == "exec" {
			said += stdout.String()
		}
		return "", &engineError{command: e.name + " " + args[0], err: err, said: process.LastLines(said, 10)}
	}
	return strings.TrimSpace(stdout.String()), nil
}

// execIn runs a command in a container.
func (e engine) execIn(ctx context.Context, container string, stdin io.Reader, command ...string) (string, error) {
	args := []string{"exec", container}
	if stdin != nil {
		args = []string{"exec", "-i", container}
	}
	out, err := e.runWithInput(ctx, stdin, append(args, command...)...)
	if err != nil {
		return "", fmt.Errorf("%s in %s: %w", command[0], container, err)
	}
	return out, nil
}

type engineError struct {
	command, said string
	err           error
}

func (e *engineError) Error() string { return fmt.Sprintf("%s: %v: %s", e.command, e.err, e.said) }
func (e *engineError) Unwrap() error { return e.err }

// isNotFound reports whether the error says that the engine does not know the named
// object.
func isNotFound(err error) bool {
	var e *engineError
	if !errors.As(err, &e) {
		return false
	}
	return absentRE.MatchString(e.said)
}

// absentRE is not content with "no such": without its socket, an engine's
// client speaks of "no such file".
var absentRE = regexp.MustCompile(
	`(?i)no such (container|image|network|object|volume)|(container|image|network|volume) \S+ not found|(network|image|volume) not (found|known)|no (container|network|volume) with name`,
)

// container holds the fields of `inspect` that the lab reads.
type container struct {
	Name   string
	State  struct{ Running bool }
	Config struct {
		Image  string
		Env    []string
		Labels map[string]string
	}
	HostConfig struct {
		Tmpfs       map[string]string
		SecurityOpt []string
		Privileged  bool
		UsernsMode  string
		Devices     []struct{ PathOnHost, PathInContainer string }
	}
	Mounts []struct {
		Type, Source, Destination string
		RW                        bool
	}
	NetworkSettings struct {
		Networks map[string]struct{ IPAddress string }
	}
}

// addressIn is the container's address on a network; "" while it does not run.
func (c container) addressIn(network string) string {
	return c.NetworkSettings.Networks[network].IPAddress
}

// inspectContainers inspects containers by name. It leaves out those that do not exist.
func (e engine) inspectContainers(ctx context.Context, names ...string) ([]container, error) {
	var all []container
	for _, name := range names {
		out, err := e.run(ctx, "container", "inspect", name)
		if isNotFound(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		var found []container
		if err := json.Unmarshal([]byte(out), &found); err != nil {
			return nil, fmt.Errorf("%s inspect %s: %w", e.name, name, err)
		}
		for _, c := range found {
			c.Name = strings.TrimPrefix(c.Name, "/")
			all = append(all, c)
		}
	}
	return all, nil
}

// listLabelled returns the names of the containers, running or not, that carry a label.
func (e engine) listLabelled(ctx context.Context, label string) ([]string, error) {
	out, err := e.run(ctx, "ps", "--all", "--filter", "label="+label, "--format", "{{.Names}}")
	return strings.Fields(out), err
}

// listResources returns the names of the networks or volumes that carry a label.
func (e engine) listResources(ctx context.Context, what, label string) ([]string, error) {
	out, err := e.run(ctx, what, "ls", "--filter", "label="+label, "--format", "{{.Name}}")
	return strings.Fields(out), err
}
