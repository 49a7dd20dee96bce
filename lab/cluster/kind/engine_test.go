package kind

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/state"
)

// fakeEngines makes shell scripts by these names the only programs there are.
// Where docker is, its client knows without asking the engine.
func fakeEngines(t *testing.T, scripts map[string]string) {
	t.Helper()
	dir := t.TempDir()
	for name, script := range scripts {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(
			"#!/bin/sh\nif [ \"$1\" = context ]; then echo \"${FAKE_CONTEXT:-unix:///var/run/docker.sock}\"; exit; fi\n"+
				script+"\n",
		), 0o755))
	}
	t.Setenv("PATH", dir)
	for _, name := range []string{
		"KIND_EXPERIMENTAL_PROVIDER", "KIND_EXPERIMENTAL_DOCKER_NETWORK", "KIND_EXPERIMENTAL_PODMAN_NETWORK",
		"DOCKER_HOST", "CONTAINER_HOST",
	} {
		t.Setenv(name, "")
	}
}

// newCluster is one on a fake docker.
func newCluster(t *testing.T, docker string) *Cluster {
	t.Helper()
	fakeEngines(t, map[string]string{"docker": docker})
	t.Setenv("CCMLAB_HOME", t.TempDir())
	lab, err := state.Create("lab")
	require.NoError(t, err)
	t.Cleanup(lab.Unlock)
	lab.Profile = "fast"
	lab.Kind = &state.Kind{
		Engine: "docker", Image: BuiltImage, PodNetwork: Routes, Subnet: "10.123.16.0/20", ControlPlane: "i-cp",
	}
	c, err := New(lab, cluster.Binaries{Dir: t.TempDir(), Kube: "/bin-dir/kube"})
	require.NoError(t, err)
	return c
}

const (
	runs   = `echo '[name=seccomp,profile=builtin]'`
	isDown = `echo 'Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?' >&2; exit 1`
)

// Every error says what to do, and that there is a cluster that needs no engine.
func TestEngineErrors(t *testing.T) {
	for name, tc := range map[string]struct {
		engines map[string]string
		chosen  string
		want    []string
	}{
		"none installed": {nil, "", []string{"neither is installed", "install one"}},
		"daemon not running": {map[string]string{"docker": isDown}, "", []string{
			"docker is installed but does not answer", "Is the docker daemon running?", "sudo systemctl start docker",
		}},
		"not permitted": {map[string]string{
			"docker": `echo 'permission denied while trying to connect to the Docker daemon socket' >&2; exit 1`,
		}, "", []string{"you may not use it", "usermod -aG docker"}},
		"rootless docker": {
			map[string]string{"docker": `echo '[name=seccomp,profile=builtin name=rootless name=cgroupns]'`}, "",
			[]string{"docker runs rootless", "use one that runs as root"},
		},
		"rootless podman": {map[string]string{"podman": `echo true`}, "", []string{"podman runs rootless"}},
		"both, and neither": {
			map[string]string{"docker": isDown, "podman": `echo true`}, "",
			[]string{"docker is installed", "podman runs rootless"},
		},
		"chosen, not installed": {
			map[string]string{"docker": runs}, "podman",
			[]string{"KIND_EXPERIMENTAL_PROVIDER=podman", "podman is not installed"},
		},
		"chosen, unknown": {
			map[string]string{"docker": runs}, "nerdctl",
			[]string{"KIND_EXPERIMENTAL_PROVIDER=nerdctl", "want docker or podman"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			fakeEngines(t, tc.engines)
			t.Setenv("KIND_EXPERIMENTAL_PROVIDER", tc.chosen)
			_, err := chooseSettings(t.Context(), cluster.Settings{}, "")
			for _, want := range append(tc.want, "the embedded cluster needs none") {
				assert.ErrorContains(t, err, want)
			}
			_, err = checkAvailable(t.Context())
			for _, want := range tc.want {
				assert.ErrorContains(t, err, want)
			}
		})
	}
}

func TestEngineIsChosen(t *testing.T) {
	both := map[string]string{"docker": runs, "podman": "echo false"}
	for name, tc := range map[string]struct {
		engines map[string]string
		chosen  string
		want    string
	}{
		"docker first":        {both, "", "docker"},
		"chosen":              {both, "podman", "podman"},
		"the one that runs":   {map[string]string{"docker": isDown, "podman": "echo false"}, "", "podman"},
		"the only one at all": {map[string]string{"podman": "echo false"}, "", "podman"},
	} {
		t.Run(name, func(t *testing.T) {
			fakeEngines(t, tc.engines)
			t.Setenv("KIND_EXPERIMENTAL_PROVIDER", tc.chosen)
			e, err := detectEngine(t.Context())
			require.NoError(t, err)
			assert.Equal(t, tc.want, e.name)
			why, err := checkAvailable(t.Context())
			require.NoError(t, err)
			assert.Equal(t, tc.want+" runs", why)
		})
	}
}

// The lab's own commands reach the engine where it was when the lab was made.
func TestEngineIsReachedWhereItWas(t *testing.T) {
	fakeEngines(t, map[string]string{"docker": `echo "$DOCKER_HOST"`})
	t.Setenv("DOCKER_HOST", "unix:///elsewhere")
	out, err := engine{name: "docker", host: "unix:///here"}.run(t.Context(), "info")
	require.NoError(t, err)
	assert.Equal(t, "unix:///here", out)
}

// An engine on another machine is refused, whatever names it.
func TestEngineElsewhere(t *testing.T) {
	fakeEngines(t, map[string]string{"docker": runs})
	t.Setenv("FAKE_CONTEXT", "ssh://someone@elsewhere")
	_, err := detectEngine(t.Context())
	assert.ErrorContains(t, err, "docker is on another machine (ssh://someone@elsewhere)")
	t.Setenv("DOCKER_HOST", "unix:///here")
	e, err := detectEngine(t.Context())
	require.NoError(t, err)
	assert.Equal(t, "unix:///here", e.host, "the variable wins over the context, as it does for docker")
}

func TestChoose(t *testing.T) {
	bin := t.TempDir()
	choose := func(image, network string) *state.Kind {
		k, err := chooseSettings(t.Context(), cluster.Settings{NodeImage: image, PodNetwork: network}, bin)
		require.NoError(t, err)
		return k
	}
	fakeEngines(t, map[string]string{"docker": `case "$1" in image) exit 1;; *) ` + runs + `;; esac`})
	t.Setenv("DOCKER_HOST", "unix:///there")
	assert.Equal(
		t, &state.Kind{Engine: "docker", Host: "unix:///there", Image: StockImage, PodNetwork: Routes}, choose("", ""),
		"nothing is built here",
	)
	require.NoError(t, os.WriteFile(filepath.Join(bin, nodeImageFile), nil, 0o600))
	assert.Equal(t, BuiltImage, choose("", "").Image)
	assert.Equal(t, StockImage, choose("", Kindnet).Image, "only the stock image has kindnet")
	assert.Equal(t, "mine:1", choose("mine:1", "").Image)
	require.NoError(t, os.Remove(filepath.Join(bin, nodeImageFile)))
	fakeEngines(t, map[string]string{"docker": runs})
	assert.Equal(t, BuiltImage, choose("", "").Image, "the engine has it")
}

func TestCheckNamesWhatIsMissing(t *testing.T) {
	c := newCluster(t, isDown)
	err := c.Check(t.Context())
	for _, want := range []string{
		"images/fakecloud.tar", "images/ccm.tar", "images/hello.tar", "`make build` builds it", "does not answer",
	} {
		assert.ErrorContains(t, err, want)
	}
	c.lab.Kind = nil
	_, err = New(c.lab, c.bin)
	assert.ErrorContains(t, err, "`lab down --name lab` removes it")
}

// What is not there is told from an engine that cannot be asked.
func TestAbsent(t *testing.T) {
	c := newCluster(t, `echo "Error response from daemon: No such container: $3" >&2; exit 1`)
	found, err := c.engine.inspectContainers(t.Context(), "a", "b")
	require.NoError(t, err)
	assert.Empty(t, found)
	require.NoError(t, c.removeContainer(t.Context(), "a"))

	fakeEngines(t, map[string]string{"docker": isDown})
	_, err = c.engine.inspectContainers(t.Context(), "a")
	assert.ErrorContains(t, err, "Is the docker daemon running?")
	fakeEngines(t, nil)
	_, err = c.engine.inspectContainers(t.Context(), "a")
	assert.ErrorContains(
		t, err, "executable file not found", "the engine is not there, which says nothing of the container",
	)
}

func TestStrangersAreRefused(t *testing.T) {
	const noNetwork = `echo 'Error response from daemon: network ccmlab-lab not found' >&2; exit 1`
	script := func(network, ps string) string {
		return fmt.Sprintf(
			"case \"$1\" in network) %s;; ps) %s;; *) echo \"unexpected: $*\" >&2; exit 1;; esac", network, ps,
		)
	}
	for name, tc := range map[string]struct{ network, ps, want string }{
		"another lab's network":   {"echo /other/lab", "", "belongs to the lab in /other/lab"},
		"an unmarked network":     {"echo '<no value>'", "", "belongs to nobody that left a mark"},
		"a kind cluster":          {noNetwork, "echo ccmlab-lab-control-plane", "is left alone"},
		"an engine without reply": {isDown, "", "Is the docker daemon running?"},
		"nobody":                  {noNetwork, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, script(tc.network, tc.ps))
			err := c.checkName(t.Context())
			if tc.want == "" {
				assert.NoError(t, err)
				return
			}
			assert.ErrorContains(t, err, tc.want)
			_, err = c.Claim(t.Context())
			assert.ErrorContains(t, err, tc.want, "no network is made: that would be an unexpected call")
		})
	}
}

// kind's errors come with what the machine may lack.
func TestExplain(t *testing.T) {
	for said, want := range map[string]string{
		"unable to apply caps: operation not permitted":        "scripts/docker-engine",
		"Failed to create inotify object: Too many open files": "sysctl fs.inotify.max_user_instances=1024",
		"nothing that is known":                                "nothing that is known",
	} {
		c := newCluster(t, "echo '"+said+"'")
		err := c.explainCreateError(t.Context(), assert.AnError, &logger{said: []string{"Preparing nodes"}})
		require.ErrorIs(t, err, assert.AnError)
		assert.ErrorContains(t, err, "Preparing nodes")
		assert.ErrorContains(t, err, want)
	}
}
