package conformance

import (
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// A driver says of a balancer what its cloud keeps of the Service.
func TestIsFor(t *testing.T) {
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{
		Namespace: "shop", Name: "web", UID: "7c9e6679-7425-40de-944b-e07fc1f90ae7",
	}}
	for said, want := range map[types.UID]bool{
		"7c9e6679-7425-40de-944b-e07fc1f90ae7": true,
		"7c9e6679742540de944be07fc1f90ae":      true, // Of upstream's DefaultLoadBalancerName.
		"7c9e6679":                             true,
		"7c9e6679-7425":                        true,
		"shop/web":                             true,
		"shop-web":                             true,
		"web.shop.lab":                         true,
		"":                                     false,
		"web.shop-2.lab":                       false,
		"7c9e667":                              false, // It may be another's.
		"7c9e6678":                             false,
		"shop/web-2":                           false,
		"web":                                  false,
	} {
		assert.Equal(t, want, isFor(Balancer{Service: said}, svc), said)
	}
}

// A test that makes a Service where there are no load balancers fails at once: it would have to need them.
func TestServiceWithoutLoadBalancers(t *testing.T) {
	report := runTests(t, Options{Tests: []Test{core("a", func(t *T) {
		t.unsupported = Unsupported{string(FeatureLoadBalancers): "it has none"}
		t.NewService()
	})}})
	assert.Equal(t, []string{"there are no load balancers (it has none): the test would have to need load-balancers"},
		reasons(report, "a"))
}
