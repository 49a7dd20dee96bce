package profiles

// Services that a CCM may confuse, or get no balancer for, when it names balancers after them.

import (
	"slices"
	"strings"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/ccmlab/ccmlab/lab/conformance"
)

var balancerNameTests = []conformance.Test{
	{
		ID:       "lb-same-name-in-two-namespaces",
		Source:   fromService + "; kubernetes.io: Namespaces (\"Names of resources need to be unique within a namespace, but not across namespaces.\")",
		Requires: "Two Services of one name, in two namespaces, have a balancer each, and neither a change nor the end of one does anything to the other's.",
		Run: func(t *conformance.T) {
			svc := t.NewService()
			serveApart(t, svc, t.NewService(func(s *corev1.Service) { s.Name, s.Namespace = svc.Name, t.NewNamespace() }))
		},
	}, {
		ID:       "lb-any-name",
		Source:   fromService + "; kubernetes.io: Object Names and IDs, RFC 1035 label names; KEP-5311 (Service names that begin with a digit)",
		Requires: "Services get a balancer each whatever valid names they have: of 63 characters, alike but for the last one, with a dash wherever a shorter name is cut off, and, where the API server allows it, beginning with a digit.",
		Run:      lbAnyName,
	},
}

// serveApart waits for each of the Services to have a balancer of its own, changes the first, and deletes the
// second. It returns when that has reached their balancers, and no other.
func serveApart(t *conformance.T, services ...*corev1.Service) {
	var before []conformance.Balancer
	for _, svc := range services {
		b := t.AwaitBalancer(svc, listensFor(t, svc))
		assert.False(t, slices.ContainsFunc(before, func(other conformance.Balancer) bool { return other.ID == b.ID }),
			"balancer %s is another Service's, too", b.ID)
		before = append(before, b)
	}
	changePortAndAwait(t, services[0], sameBalancer(before[0]))
	deleteAndAwaitGone(t, services[1])
	t.AwaitBalancer(services[0], listensFor(t, services[0]), sameBalancer(before[0]))
	for i, svc := range services[2:] {
		assert.Equal(t, balancerIdentity(before[i+2]), balancerIdentity(t.AwaitBalancer(svc)))
	}
}

func lbAnyName(t *conformance.T) {
	// Wherever these are cut off behind the prefix, one of even and odd ends with a dash.
	prefix := t.Name("s")
	even, odd := longestName(prefix, "-a"), longestName(prefix, "a-")
	names := []string{even, strings.TrimSuffix(even, "a") + "z", odd}
	if digit := t.Name("4"); isNameAllowed(t, digit) {
		names = append(names, digit)
	} else {
		t.Logf("the API server allows no Service %s", digit)
	}
	var services []*corev1.Service
	for _, name := range names {
		services = append(services, t.NewService(func(s *corev1.Service) { s.Name = name }))
	}
	serveApart(t, services...)
}

// longestName repeats pattern behind prefix until the name is as long as a Service's can be, with an a at the end.
func longestName(prefix, pattern string) string {
	const longest = validation.DNS1123LabelMaxLength
	return (prefix + strings.Repeat(pattern, longest))[:longest-1] + "a"
}

// isNameAllowed asks the API server whether a Service can have the name. It creates none.
func isNameAllowed(t *conformance.T, name string) bool {
	_, err := t.Kube.CoreV1().Services(t.Namespace()).Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
	}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if apierrors.IsInvalid(err) {
		return false
	}
	t.Must(err, "asking whether a Service can be called %s", name)
	return true
}
