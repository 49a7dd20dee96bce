package conformance

// Pods that answer, and requests to them through balancers.

import (
	"context"
	"errors"
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
	"k8s.io/client-go/util/retry"
	cloudproviderapi "k8s.io/cloud-provider/api"

	"github.com/ccmlab/ccmlab/lab/kubediff"
	"github.com/ccmlab/ccmlab/lab/labels"
)

// podsLabel has the name of the Deployment that the pods are of.
const podsLabel = "app"

// NewPods runs the workload in so many pods of the test's namespace, on Nodes
// that have a kubelet, and returns when all are Ready. selector is for Services.
func (t *T) NewPods(
	replicas int32,
	with ...func(*appsv1.Deployment),
) (selector map[string]string, pods []corev1.Pod) {
	t.AwaitMachines()
	name := t.Name("web")
	selector = map[string]string{podsLabel: name}
	ready := corev1.Probe{
		ProbeHandler: corev1.ProbeHandler{
			HTTPGet: &corev1.HTTPGetAction{Path: t.Workload.Path, Port: intstr.FromInt32(t.Workload.Port)},
		},
		PeriodSeconds: 1,
	}
	deployment := &appsv1.Deployment{
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
	}
	for _, change := range with {
		change(deployment)
	}
	_, err := t.Kube.AppsV1().Deployments(t.Namespace()).Create(t.ctx, deployment, metav1.CreateOptions{})
	t.Must(err, "creating pods")
	t.trace.Step("asked for pods: %d", replicas)
	t.Await(fmt.Sprintf("%d Ready pods", replicas), func(ctx context.Context) (err error) {
		pods, err = t.ReadyPods(ctx, selector, int(replicas))
		return err
	})
	return selector, pods
}

// ReadyPods lists the pods of NewPods. It is an error unless there are as many as count, all of them Ready:
// one that is replaced counts until it has ended.
func (t *T) ReadyPods(ctx context.Context, selector map[string]string, count int) ([]corev1.Pod, error) {
	list, err := t.Kube.CoreV1().Pods(t.Namespace()).List(
		ctx,
		metav1.ListOptions{LabelSelector: metav1.FormatLabelSelector(&metav1.LabelSelector{MatchLabels: selector})},
	)
	if err != nil {
		return nil, err
	}
	ready := 0
	for i := range list.Items {
		if kubediff.IsPodReady(&list.Items[i]) {
			ready++
		}
	}
	if ready != count || len(list.Items) != count {
		return nil, fmt.Errorf("of %d pods %d are Ready", len(list.Items), ready)
	}
	return list.Items, nil
}

// ChangePods changes the Deployment of NewPods. It does not wait for its pods to be replaced.
func (t *T) ChangePods(selector map[string]string, change func(*appsv1.Deployment)) {
	deployments := t.Kube.AppsV1().Deployments(t.Namespace())
	t.Must(retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		now, err := deployments.Get(t.ctx, selector[podsLabel], metav1.GetOptions{})
		if err == nil {
			change(now)
			_, err = deployments.Update(t.ctx, now, metav1.UpdateOptions{})
		}
		return err
	}), "changing pods")
	t.trace.Step("changed what pods are to be")
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

const (
	// requestTimeout is how long a request may go unanswered.
	requestTimeout = 3 * time.Second
	// datagramTimeout is the same for a datagram.
	datagramTimeout = time.Second
)

// Connection is one of a client through a balancer, for one request after the other.
type Connection struct {
	url    string
	client http.Client
	local  net.Addr // nil before the first request
}

// NewConnection returns one that is made by the first request.
func (s *Suite) NewConnection(b Balancer, port int32) *Connection {
	c := &Connection{url: "http://" + net.JoinHostPort(b.Address, strconv.Itoa(int(port))) + s.Workload.Path}
	// No proxy knows the way to a balancer of a lab.
	c.client.Transport = &http.Transport{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		if c.local != nil {
			return nil, fmt.Errorf("the connection from %s has ended", c.local)
		}
		conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
		if err == nil {
			c.local = conn.LocalAddr()
		}
		return conn, err
	}}
	return c
}

// Close ends the connection.
func (c *Connection) Close() { c.client.CloseIdleConnections() }

// Get sends a request over the connection and returns the body of the answer, which has to be 200 OK.
func (c *Connection) Get(ctx context.Context) (body string, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.url, nil)
	if err != nil {
		return "", err
	}
	req.Header.Set("Accept", "application/json, */*")
	resp, err := c.client.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	read, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s answered %s: %.200q", c.url, resp.Status, read)
	}
	return string(read), err
}

// Get sends a request through a balancer, over a connection of its own, and returns the body of the answer and the
// address and port that the client had.
func (s *Suite) Get(ctx context.Context, b Balancer, port int32) (body string, client net.Addr, err error) {
	c := s.NewConnection(b, port)
	defer c.Close()
	body, err = c.Get(ctx)
	return body, c.local, err
}

// Request is Get, and returns the name of the pod that answered.
func (s *Suite) Request(ctx context.Context, b Balancer, port int32, pods []corev1.Pod) (pod string, err error) {
	body, _, err := s.Get(ctx, b, port)
	if err != nil {
		return "", err
	}
	return namedPod(fmt.Sprintf("%s port %d", b.Address, port), body, pods)
}

// namedPod returns which of the pods an answer names.
func namedPod(from, answer string, pods []corev1.Pod) (string, error) {
	for _, p := range pods {
		if strings.Contains(answer, p.Name) {
			return p.Name, nil
		}
	}
	return "", fmt.Errorf("%s answered, naming none of the pods: %.200q", from, answer)
}

// AwaitUDPFlow returns a socket whose datagrams all come from one port, once one of the pods has answered there. It is
// closed after the test. Each try has a socket of its own: a node that gets a datagram before its kube-proxy knows
// of the balancer's address remembers that for as long as others follow from the same port.
func (t *T) AwaitUDPFlow(b Balancer, port int32, pods []corev1.Pod) (flow net.Conn) {
	t.Await(fmt.Sprintf("an answer from %s port %d over UDP", b.Address, port), func(ctx context.Context) error {
		conn, err := (&net.Dialer{}).DialContext(ctx, "udp", net.JoinHostPort(b.Address, strconv.Itoa(int(port))))
		if err != nil {
			return err
		}
		if _, err := SendDatagram(ctx, conn, pods); err != nil {
			return errors.Join(err, conn.Close())
		}
		flow = conn
		return nil
	})
	t.Cleanup(func(context.Context) error { return flow.Close() })
	return flow
}

// SendDatagram sends a datagram and returns which of the pods answers. What an earlier one was answered late
// counts as the answer, too.
func SendDatagram(ctx context.Context, flow net.Conn, pods []corev1.Pod) (pod string, err error) {
	deadline, _ := ctx.Deadline()
	if soon := time.Now().Add(datagramTimeout); deadline.IsZero() || soon.Before(deadline) {
		deadline = soon
	}
	answer := make([]byte, 2<<10)
	_, err1 := flow.Write([]byte("hostname\n")) // What e2e's own agnhost wants to be asked.
	n, err2 := 0, flow.SetReadDeadline(deadline)
	if err := errors.Join(err1, err2); err != nil {
		return "", err
	}
	if n, err = flow.Read(answer); err != nil {
		return "", err
	}
	return namedPod(flow.RemoteAddr().String(), string(answer[:n]), pods)
}

// RequestCounted is Request, and requires that the balancer's own count of connections, if it has one, went up with
// the answer: one that came another way proves nothing.
func (s *Suite) RequestCounted(ctx context.Context, b Balancer, port int32, pods []corev1.Pod) (pod string, err error) {
	before, counted, err := s.ConnectionCount(ctx, b, port)
	if err != nil {
		return "", err
	}
	if !counted {
		return s.Request(ctx, b, port, pods)
	}
	if pod, err = s.Request(ctx, b, port, pods); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return pod, pollUntil(ctx, func(ctx context.Context) error {
		now, _, err := s.ConnectionCount(ctx, b, port)
		if err == nil && now <= before {
			err = fmt.Errorf(
				"pod %s answered, and balancer %s counts %d connections on port %d, as before", pod, b.ID, now, port,
			)
		}
		return err
	})
}

// ConnectionCount is how many connections the balancer says it has accepted on a port, if it counts any.
func (s *Suite) ConnectionCount(ctx context.Context, b Balancer, port int32) (n int64, counted bool, err error) {
	byPort, err := s.Cloud.CountConnections(ctx, b.ID)
	if errors.Is(err, ErrNotCounted) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, fmt.Errorf("reading the counters of balancer %s: %w", b.ID, err)
	}
	return byPort[port], true, nil
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
