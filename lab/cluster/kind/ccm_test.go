package kind

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/ccmlab/ccmlab/lab/atomicfile"
	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/cluster/local"
	"github.com/ccmlab/ccmlab/lab/image"
	"github.com/ccmlab/ccmlab/lab/state"
)

// The Deployment is that of manifests/ccm with the lab's image, times, name and
// pod network, and rolls when what it runs on changes.
func TestCCMDeployment(t *testing.T) {
	for network, routed := range map[string]struct{ routes, ranges, cidr string }{
		Routes:  {routes: "true", ranges: "true", cidr: podSubnet},
		Kindnet: {routes: "false"},
	} {
		t.Run(network, func(t *testing.T) {
			c := newCluster(t, runs)
			c.lab.Kind.PodNetwork = network
			made := func(config string) (d appsv1.Deployment) {
				file, err := c.ccmDeployment([]byte(config))
				require.NoError(t, err)
				require.NoError(t, yaml.UnmarshalStrict(file, &d))
				return d
			}
			d := made("url: here")
			assert.EqualValues(t, ccmReplicas, *d.Spec.Replicas)
			assert.Equal(t, ccmName, d.Name)
			program := d.Spec.Template.Spec.Containers[0]
			assert.Equal(t, ccmImage, program.Image)
			assert.Equal(t, corev1.PullNever, program.ImagePullPolicy)
			assert.Equal(t, d, made("url: here"))
			assert.NotEqual(t, d.Spec.Template.Annotations, made("url: there").Spec.Template.Annotations)

			given := map[string]string{} // of a flag that comes twice, the last
			for _, arg := range program.Args {
				name, value, _ := strings.Cut(strings.TrimPrefix(arg, "--"), "=")
				given[name] = value
			}
			for flag, want := range map[string]string{
				"cloud-provider": "fakecloud", "cluster-name": "lab", "leader-elect-lease-duration": "6s",
				"configure-cloud-routes": routed.routes, "allocate-node-cidrs": routed.ranges,
				"cluster-cidr": routed.cidr,
			} {
				assert.Equal(t, want, given[flag], flag)
			}
		})
	}
}

// What the Deployment mounts is what the lab makes.
func TestCCMManifestsHoldWhatIsMounted(t *testing.T) {
	c := newCluster(t, runs)
	for _, file := range []string{c.Cloud().CAFile, c.Cloud().TokenFile(cluster.CallerCCM)} {
		require.NoError(t, atomicfile.Write(file, []byte("x")))
	}
	program := filepath.Join(t.TempDir(), "ccm")
	require.NoError(t, os.WriteFile(program, nil, 0o755))
	spec, err := image.Program(ccmImage, program, false)
	require.NoError(t, err)
	require.NoError(t, image.WriteFile(c.imageFile(ccmImage), spec))
	files, err := c.ccmManifests()
	require.NoError(t, err)
	require.Len(t, files, 4)

	var config corev1.ConfigMap
	var secret corev1.Secret
	var d appsv1.Deployment
	require.NoError(t, errors.Join(
		yaml.UnmarshalStrict(files[0], &config), yaml.UnmarshalStrict(files[1], &secret),
		yaml.UnmarshalStrict(files[2], &d),
	))
	volumes := d.Spec.Template.Spec.Volumes
	assert.Equal(t, volumes[0].ConfigMap.Name, config.Name)
	assert.Equal(t, volumes[1].Secret.SecretName, secret.Name)
	assert.Contains(t, config.Data, "cloud-config.yaml")
	assert.Contains(t, config.Data, "ca.crt")
	assert.Contains(t, secret.Data, "token")
}

// Another program is a process of this machine. It is given the cloud in its container, and
// status and logs are its own and not the Deployment's.
func TestAnotherProgramIsTheCCM(t *testing.T) {
	c := newCluster(t, `case "$1" in container) echo "[]";; esac`)
	ctx, cancel := context.WithCancel(t.Context())
	var kept errgroup.Group
	kept.Go(func() error { return c.localSite().KeepCCM(ctx, c.ccmSpec(), slog.New(slog.DiscardHandler)) })
	defer func() {
		cancel()
		assert.NoError(t, kept.Wait())
	}()
	ccms := func() (state string, logs []string) {
		components, err := c.Components(t.Context())
		require.NoError(t, err)
		all, err := c.Logs(t.Context())
		require.NoError(t, err)
		for _, l := range all {
			if l.Name == local.ComponentCCM {
				logs = append(logs, l.Where)
			}
		}
		return components[len(components)-1].State, logs
	}
	require.NoError(t, c.UseCCM(&cluster.Program{Path: "/bin/sleep", Args: []string{"1000"}}))
	state, _ := ccms()
	assert.Equal(t, cluster.StateStopped, state)
	require.NoError(t, c.StartCCM(t.Context()))
	state, logs := ccms()
	assert.Equal(t, cluster.StateRunning, state)
	assert.Equal(t, []string{c.localSite().LogFile(local.ComponentCCM)}, logs)
	config, err := os.ReadFile(c.CCMCommand().CloudConfig)
	require.NoError(t, err)
	assert.Contains(t, string(config), "url: https://10.123.16.2:8470\n")
	assert.Contains(t, string(config), "caFile: "+c.Cloud().CAFile+"\n")

	require.NoError(t, c.localSite().StopCCM(t.Context()))
	require.NoError(t, c.UseCCM(nil))
	_, logs = ccms()
	require.Len(t, logs, 1)
	assert.Contains(t, logs[0], "kubectl")
}

func TestCCMCommand(t *testing.T) {
	st := state.InDir("/labs/x", "x")
	st.Kind = &state.Kind{Subnet: "10.123.16.0/20", PodNetwork: Routes}
	command := (&Cluster{lab: st, bin: cluster.Binaries{Dir: "/bin"}}).CCMCommand()
	assert.Equal(t, "127.123.16.1", command.Address, "no other lab's, and this machine's")
	assert.Contains(t, command.Args, "--bind-address=127.123.16.1")
	assert.Contains(t, command.Args, "--cluster-name=x")
	assert.Equal(
		t, "--configure-cloud-routes=true", lastValue(command.Args, "--configure-cloud-routes="),
		"pods need the cloud's routes",
	)
	assert.True(t, command.NeedsRoutes)
	st.Kind.PodNetwork = Kindnet
	command = (&Cluster{lab: st, bin: cluster.Binaries{Dir: "/bin"}}).CCMCommand()
	assert.Equal(t, "--configure-cloud-routes=false", lastValue(command.Args, "--configure-cloud-routes="))
	assert.False(t, command.NeedsRoutes)
	assert.NotEqual(
		t, loopbackOf(netip.MustParsePrefix("10.123.0.0/20")), loopbackOf(netip.MustParsePrefix("10.123.16.0/20")),
	)
}

// lastValue is the argument that counts.
func lastValue(args []string, flag string) (found string) {
	for _, a := range args {
		if len(a) > len(flag) && a[:len(flag)] == flag {
			found = a
		}
	}
	return found
}
