package conformance

// Services of type LoadBalancer for tests, and the balancers they get.

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/util/retry"

	"github.com/ccmlab/ccmlab/lab/labels"
)

// Namespace is the test's own. It goes with all that is in it after the test.
func (t *T) Namespace() string {
	if t.ns == "" {
		t.ns = t.NewNamespace()
	}
	return t.ns
}

// NewNamespace creates another one, which goes likewise.
func (t *T) NewNamespace() string {
	name := t.Name(t.test.ID)
	_, err := t.Kube.CoreV1().Namespaces().Create(t.ctx, &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{labels.ConformanceSuite: t.runID}},
	}, metav1.CreateOptions{})
	t.Must(err, "creating namespace %s", name)
	t.Cleanup(func(ctx context.Context) error {
		err := t.Kube.CoreV1().Namespaces().Delete(ctx, name, metav1.DeleteOptions{})
		if apierrors.IsNotFound(err) { // The test has deleted it.
			err = nil
		}
		return err
	})
	return name
}

// Port is one that nobody on this machine listens on: a balancer on loopback
// could not have it otherwise.
func (t *T) Port() int32 {
	l, err := net.Listen("tcp", "0.0.0.0:0")
	t.Must(err, "looking for a free port")
	port := int32(l.Addr().(*net.TCPAddr).Port) //nolint:gosec // A port fits.
	t.Must(l.Close(), "looking for a free port")
	return port
}

// NewService creates a Service of type LoadBalancer in the test's namespace,
// with one TCP port unless with says otherwise. After the test it is deleted,
// and so are balancers that the CCM leaves behind.
func (t *T) NewService(with ...func(*corev1.Service)) *corev1.Service {
	if why, declared := t.unsupported[string(FeatureLoadBalancers)]; declared {
		t.Fatalf("there are no load balancers (%s): the test would have to need %s", why, FeatureLoadBalancers)
	}
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: t.Name("service"), Namespace: t.Namespace()},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer,
			Ports: []corev1.ServicePort{{
				Name: "http", Protocol: corev1.ProtocolTCP, Port: t.Port(),
				TargetPort: intstr.FromInt32(t.Workload.Port),
			}},
		},
	}
	for _, change := range with {
		change(svc)
	}
	svc, err := t.Kube.CoreV1().Services(svc.Namespace).Create(t.ctx, svc, metav1.CreateOptions{})
	t.Must(err, "creating a Service")
	t.trace.Learn(string(svc.UID), "Service "+svc.Name)
	t.trace.Step("created Service %s", svc.Name)
	t.Cleanup(func(ctx context.Context) error { return t.removeService(ctx, svc) })
	return svc
}

// removeService deletes the Service as a person would, and by force if the CCM does not do its part: that is for a
// test of it to find, and must not fail the next test.
func (t *T) removeService(ctx context.Context, svc *corev1.Service) error {
	services := t.Kube.CoreV1().Services(svc.Namespace)
	if err := services.Delete(ctx, svc.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	patient, cancel := context.WithTimeout(ctx, t.removals.patience(t.cleanupBound()/2))
	defer cancel()
	err := pollUntil(patient, func(ctx context.Context) error { return t.checkServiceGone(ctx, svc) })
	if t.removals.add(err == nil); err == nil {
		return nil
	}
	t.Logf("cleaning up by force after Service %s: the CCM has not", svc.Name)
	err = t.UpdateService(ctx, svc, func(s *corev1.Service) { s.Finalizers = nil })
	if apierrors.IsNotFound(err) {
		err = nil
	}
	left, err2 := t.BalancersOf(ctx, svc)
	err = errors.Join(err, err2)
	for _, b := range left {
		err = errors.Join(err, t.Cloud.DeleteBalancer(ctx, b.ID))
	}
	return err
}

// checkServiceGone returns an error while there is the Service, or a balancer for it.
func (t *T) checkServiceGone(ctx context.Context, svc *corev1.Service) error {
	if err := t.NoService(ctx, svc); err != nil {
		return err
	}
	return t.checkNoBalancer(ctx, svc)
}

// NoService returns an error while the Service object is there; one of its name that
// came later is another.
func (s *Suite) NoService(ctx context.Context, svc *corev1.Service) error {
	now, err := s.GetService(ctx, svc)
	switch {
	case apierrors.IsNotFound(err), err == nil && now.UID != svc.UID:
		return nil
	case err == nil:
		err = fmt.Errorf("service %s is still there, with finalizers %v", svc.Name, now.Finalizers)
	}
	return err
}

func (s *Suite) checkNoBalancer(ctx context.Context, svc *corev1.Service) error {
	left, err := s.BalancersOf(ctx, svc)
	if err == nil && len(left) > 0 {
		err = fmt.Errorf("service %s still has %s", svc.Name, balancerList(left))
	}
	return err
}

// GetService is the Service as it is now.
func (s *Suite) GetService(ctx context.Context, svc *corev1.Service) (*corev1.Service, error) {
	return s.Kube.CoreV1().Services(svc.Namespace).Get(ctx, svc.Name, metav1.GetOptions{})
}

// UpdateService changes the Service as it is now.
func (s *Suite) UpdateService(ctx context.Context, svc *corev1.Service, change func(*corev1.Service)) error {
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		now, err := s.GetService(ctx, svc)
		if err != nil {
			return err
		}
		change(now)
		_, err = s.Kube.CoreV1().Services(svc.Namespace).Update(ctx, now, metav1.UpdateOptions{})
		return err
	})
}

// Change is UpdateService. An error ends the test.
func (t *T) Change(svc *corev1.Service, change func(*corev1.Service)) {
	t.Must(t.UpdateService(t.ctx, svc, change), "changing Service %s", svc.Name)
	t.trace.Step("changed Service %s", svc.Name)
}

// DeleteService deletes it, and does not wait for what the CCM makes of it.
func (t *T) DeleteService(svc *corev1.Service) {
	t.Must(t.Kube.CoreV1().Services(svc.Namespace).
		Delete(t.ctx, svc.Name, metav1.DeleteOptions{}), "deleting Service %s", svc.Name)
	t.trace.Step("deleted Service %s", svc.Name)
}

// BalancersOf are the balancers that the cloud has for the Service.
func (s *Suite) BalancersOf(ctx context.Context, svc *corev1.Service) ([]Balancer, error) {
	all, err := s.Cloud.ListBalancers(ctx)
	return slices.DeleteFunc(all, func(b Balancer) bool { return !isFor(b, svc) }), err
}

// MinUIDPrefix is how many characters of a UID cannot match another one by chance.
const MinUIDPrefix = 8

// isFor tells whether a balancer says that it is for the Service: by its UID or, where the cloud keeps no more than
// the balancer's name, by as much of that as the name has, with dashes or without, or by the Service's name.
func isFor(b Balancer, svc *corev1.Service) bool {
	said, uid := strings.ReplaceAll(string(b.Service), "-", ""), strings.ReplaceAll(string(svc.UID), "-", "")
	return b.Service == svc.UID || len(said) >= MinUIDPrefix && strings.HasPrefix(uid, said) ||
		string(b.Service) == svc.Namespace+"/"+svc.Name || string(b.Service) == svc.Namespace+"-"+svc.Name ||
		strings.HasPrefix(string(b.Service), svc.Name+"."+svc.Namespace+".")
}

// TheBalancer returns the only balancer of the Service. It must be active, and its address in the Service's
// status.
func (s *Suite) TheBalancer(ctx context.Context, svc *corev1.Service) (Balancer, error) {
	found, err := s.BalancersOf(ctx, svc)
	if err != nil {
		return Balancer{}, err
	}
	if len(found) != 1 {
		return Balancer{}, fmt.Errorf(
			"service %s has %d balancers, want one: %s", svc.Name, len(found), balancerList(found),
		)
	}
	now, err := s.GetService(ctx, svc)
	if err != nil {
		return Balancer{}, err
	}
	b := found[0]
	if !b.Active {
		return b, fmt.Errorf("balancer %s is not active", b.ID)
	}
	for _, in := range now.Status.LoadBalancer.Ingress {
		if b.Address != "" && (in.IP == b.Address || in.Hostname == b.Address) || slices.Contains(b.HostNames, in.Hostname) {
			return b, nil
		}
	}
	return b, fmt.Errorf(
		"the status of Service %s has %v, its balancer has address %q", svc.Name, now.Status.LoadBalancer.Ingress,
		b.Address,
	)
}

// AwaitBalancer waits for TheBalancer, and for it to be as the checks want.
func (t *T) AwaitBalancer(svc *corev1.Service, checks ...func(Balancer) error) Balancer {
	var b Balancer
	t.Await("the balancer of Service "+svc.Name, func(ctx context.Context) (err error) {
		if b, err = t.TheBalancer(ctx, svc); err != nil {
			return err
		}
		for _, check := range checks {
			err = errors.Join(err, check(b))
		}
		return err
	})
	return b
}

// AwaitGone waits for the Service and all that the cloud has for it to be gone.
func (t *T) AwaitGone(svc *corev1.Service) {
	t.Await("Service "+svc.Name+" and its balancer to be gone", func(ctx context.Context) error {
		return t.checkServiceGone(ctx, svc)
	})
}

// AwaitNoBalancer waits for the cloud to have none for the Service, which may
// live on.
func (t *T) AwaitNoBalancer(svc *corev1.Service) {
	t.Await("Service "+svc.Name+" to have no balancer", func(ctx context.Context) error {
		return t.checkNoBalancer(ctx, svc)
	})
}

func balancerList(balancers []Balancer) string {
	if len(balancers) == 0 {
		return "none"
	}
	var s string
	for i, b := range balancers {
		if i > 0 {
			s += ", "
		}
		s += fmt.Sprintf("%s (%s)", b.ID, b.Name)
	}
	return s
}
