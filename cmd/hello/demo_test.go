package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/ccmlab/ccmlab/lab/demoserver"
	"github.com/ccmlab/ccmlab/manifests"
)

// A lab puts the demo on another port by replacing the number, and this server
// knows probes and files only where the demo has them.
func TestDemoManifestFitsServer(t *testing.T) {
	const port = 18081
	documents := bytes.Split(bytes.ReplaceAll(manifests.Demo, []byte("8080"), []byte("18081")), []byte("\n---\n"))
	var config corev1.ConfigMap
	var account corev1.ServiceAccount
	var deployment appsv1.Deployment
	var service corev1.Service
	require.Greater(t, len(documents), 4)
	for i, into := range []any{&config, &account, &deployment, &service} {
		require.NoError(t, yaml.UnmarshalStrict(documents[i], into))
	}
	pod := deployment.Spec.Template.Spec
	require.Len(t, pod.Containers, 1)
	c := pod.Containers[0]
	assert.Equal(t, int32(port), c.Ports[0].ContainerPort)
	assert.Equal(t, int32(port), service.Spec.Ports[0].Port)
	assert.Equal(t, port, service.Spec.Ports[0].TargetPort.IntValue())

	known := newAnswerer(options{}, nil, port, nil).Probes
	for kind, p := range map[string]*corev1.Probe{
		demoserver.Readiness: c.ReadinessProbe, demoserver.Liveness: c.LivenessProbe,
	} {
		assert.Equal(
			t, known[kind], demoserver.Probe{Port: uint16(p.HTTPGet.Port.IntValue()), URI: p.HTTPGet.Path}, kind,
		)
	}
	for _, m := range c.VolumeMounts {
		assert.Contains(t, m.MountPath, filesDir+"/")
	}
	for _, e := range c.Env {
		assert.Contains(t, shownVariables(map[string]string{e.Name: "x"}), e.Name)
		if from := e.ValueFrom.ConfigMapKeyRef; from != nil {
			assert.Equal(t, config.Name, from.Name)
			assert.Contains(t, config.Data, from.Key)
		}
	}
	assert.Equal(t, config.Name, pod.Volumes[0].ConfigMap.Name)
	assert.Equal(t, account.Name, pod.ServiceAccountName)
}
