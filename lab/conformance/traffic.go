package conformance

// Pods that answer, and requests to them through balancers.

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	cloudproviderapi "k8s.io/cloud-provider/api"

	"github.com/ccmlab/ccmlab/lab/kubediff"
	"github.com/ccmlab/ccmlab/lab/labels"
)

// NewPods runs the workload in so many pods of the test's namespace, on Nodes
// that have a kubelet, and returns when all are Ready. selector is for Services.
func (t *T) NewPods(replicas int32) (selector map[string]string, pods []corev1.Pod) {
	t.AwaitMachines()
	name := t.Name("web")
	selector = map[string]string{"app": name}
	ready := corev1.Probe{
		ProbeHandler: corev1.ProbeHandler{
			HTTPGet: &corev1.HTTPGetAction{Path: t.Workload.Path, Port: intstr.FromInt32(t.Workload.Port)},
		},
		PeriodSeconds: 1,
	}
	_, err := t.Kube.AppsV1().Deployments(t.Namespace()).Create(t.ctx, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas,
			Selector: &metav1.LabelSelector{MatchLabels: selector},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: selector},
				Spec: corev1.PodSpec{
					TopologySpreadConstraints: []corev1.TopologySpreadConstraint{{
						MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.ScheduleAnyway,
						LabelSelector: &metav1.LabelSelector{MatchLabels: selector},
					}},
					Containers: []corev1.Container{{
						Name: "web", Image: t.Workload.Image, ReadinessProbe: &ready,
						Ports: []corev1.ContainerPort{{ContainerPort: t.Workload.Port}},
						Env: []corev1.EnvVar{{Name: "POD_NAME", ValueFrom: &corev1.EnvVarSource{
							FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"},
						}}},
					}},
				},
			},
		},
	}, metav1.CreateOptions{})
	t.Must(err, "creating pods")
	t.trace.Step("asked for pods: %d", replicas)
	t.Await(fmt.Sprintf("%d Ready pods", replicas), func(ctx context.Context) error {
		list, err := t.Kube.CoreV1().Pods(t.Namespace()).List(
			ctx,
			metav1.ListOptions{LabelSelector: metav1.FormatLabelSelector(&metav1.LabelSelector{MatchLabels: selector})},
		)
		if err != nil {
			return err
		}
		pods = list.Items
		n := 0
		for i := range pods {
			if kubediff.IsPodReady(&pods[i]) {
				n++
			}
		}
		if n != int(replicas) {
			return fmt.Errorf("%d are Ready", n)
		}
		return nil
	})
	return selector, pods
}

// AwaitMachines waits for all Nodes with a kubelet to be initialised: only then
// do pods spread over them, and no balancer gets another target.
func (t *T) AwaitMachines() {
	t.Await("all Nodes to be initialised", func(ctx context.Context) error {
		nodes, err := t.Kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for i := range nodes.Items {
			if n := &nodes.Items[i]; !kubediff.HasTaint(n, labels.StandInTaint) &&
				kubediff.HasTaint(n, cloudproviderapi.TaintExternalCloudProvider) {
				return fmt.Errorf("node %s is not", n.Name)
			}
		}
		return nil
	})
}

// requestTimeout is how long a request may go unanswered.
const requestTimeout = 3 * time.Second

// Request sends a request through a balancer, over a connection of its own, and returns the name of the pod that
// answered.
func (s *Suite) Request(ctx context.Context, b Balancer, port int32, pods []corev1.Pod) (pod string, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	url := "http://" + net.JoinHostPort(b.Address, strconv.Itoa(int(port))) + s.Workload.Path
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	// No proxy knows the way to a balancer of a lab.
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if err != nil {
		return "", err
	}
	for _, p := range pods {
		if resp.StatusCode == http.StatusOK && strings.Contains(string(body), p.Name) {
			return p.Name, nil
		}
	}
	return "", fmt.Errorf("%s answered %s, naming none of the pods: %.200q", url, resp.Status, body)
}

// RequestCounted is Request, and requires that the balancer's own count of connections went up with the answer:
// one that came another way proves nothing.
func (s *Suite) RequestCounted(ctx context.Context, b Balancer, port int32, pods []corev1.Pod) (pod string, err error) {
	before, err := s.ConnectionCount(ctx, b, port)
	if err != nil {
		return "", err
	}
	if pod, err = s.Request(ctx, b, port, pods); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return pod, pollUntil(ctx, func(ctx context.Context) error {
		now, err := s.ConnectionCount(ctx, b, port)
		if err == nil && now <= before {
			err = fmt.Errorf(
				"pod %s answered, and balancer %s counts %d connections on port %d, as before", pod, b.ID, now, port,
			)
		}
		return err
	})
}

// ConnectionCount is how many connections the balancer says it has accepted on a port.
func (s *Suite) ConnectionCount(ctx context.Context, b Balancer, port int32) (int64, error) {
	counted, err := s.Cloud.CountConnections(ctx, b.ID)
	if err != nil {
		return 0, fmt.Errorf("reading the counters of balancer %s: %w", b.ID, err)
	}
	return counted[port], nil
}

// AwaitAnswer waits for a pod to answer through the balancer, which has counted
// that.
func (t *T) AwaitAnswer(b Balancer, port int32, pods []corev1.Pod) (pod string) {
	t.Await(fmt.Sprintf("an answer from %s port %d", b.Address, port), func(ctx context.Context) (err error) {
		pod, err = t.RequestCounted(ctx, b, port, pods)
		return err
	})
	return pod
}
