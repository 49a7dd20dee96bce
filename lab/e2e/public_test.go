package e2e

// Public manifests on simulated nodes. testdata/public.yaml has what matters of them.

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// publicPods is how many pods the manifests make on two nodes.
const publicPods = 21

func TestPublicManifestsBecomeReady(t *testing.T) {
	f := newFixture(t)
	f.lab("up", "--nodes", "2", "--profile", "instant")
	out, err := f.kubectlWith("", "apply", "-f", "testdata/public.yaml")
	require.NoError(t, err, out)
	kube := f.kube("operator")
	f.await("all pods to be ready or done", func(ctx context.Context) error {
		pods, err := kube.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "metadata.namespace!=default"})
		if err == nil && len(pods.Items) != publicPods {
			err = fmt.Errorf("%d pods instead of %d", len(pods.Items), publicPods)
		}
		for i := range pods.Items {
			if p := &pods.Items[i]; err == nil && !isReadyOrDone(p) {
				err = fmt.Errorf("%s/%s: %s, conditions %v", p.Namespace, p.Name, p.Status.Phase, p.Status.Conditions)
			}
		}
		return err
	})

	t.Run("no container was restarted, and Jobs are done", func(t *testing.T) {
		pods, err := kube.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		for _, p := range pods.Items {
			for _, c := range p.Status.ContainerStatuses {
				assert.Zero(t, c.RestartCount, "%s/%s: %s", p.Namespace, p.Name, c.Name)
			}
		}
		out, err := f.in(t).kubectlWith("", "wait", "--for=condition=Complete", "jobs", "--all", "-A", "--timeout=60s")
		assert.NoError(t, err, out)
	})
	t.Run("what was missing is told", func(t *testing.T) {
		for namespace, volume := range map[string]string{
			"ingress-nginx": "webhook-cert", "bank": "keys", "projectcontour": "contourcert", "metallb-system": "memberlist",
		} {
			events, err := kube.CoreV1().Events(namespace).
				List(t.Context(), metav1.ListOptions{FieldSelector: "reason=MountedEmpty"})
			require.NoError(t, err)
			assert.True(t, slices.ContainsFunc(events.Items, func(e corev1.Event) bool {
				return strings.HasPrefix(e.Message, "Volume "+volume+" is mounted empty")
			}), "%s: %v", namespace, events.Items)
		}
	})
	t.Run("ports below 1024 answer", func(t *testing.T) {
		service, err := kube.CoreV1().Services("ingress-nginx").
			Get(t.Context(), "ingress-nginx-controller", metav1.GetOptions{})
		require.NoError(t, err)
		pods, err := kube.CoreV1().Pods("ingress-nginx").
			List(t.Context(), metav1.ListOptions{LabelSelector: "app=ingress-nginx"})
		require.NoError(t, err)
		controller := &pods.Items[0]
		node := fmt.Sprintf("http://%s:", controller.Status.HostIP)
		for url, pod := range map[string]string{
			realised(controller, 61080):                       controller.Name,
			node + fmt.Sprint(service.Spec.Ports[0].NodePort): controller.Name,
			node + "61080": "envoy",
		} {
			answer, err := fetch(url)
			assert.NoError(t, err, url)
			assert.Contains(t, answer, "Hello from pod "+pod, url)
		}
	})
}

func isReadyOrDone(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded ||
		slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		})
}
