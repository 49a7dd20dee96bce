package profiles

import (
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	cloudprovider "k8s.io/cloud-provider"
)

// A stranger's balancer has the name that the CCM will give, whichever part of the UID, in whichever form, it puts
// into it.
func TestGuessBalancerName(t *testing.T) {
	for what, name := range map[string]func(*corev1.Service) string{
		"upstream's default":    cloudprovider.DefaultLoadBalancerName,
		"the UID":               func(s *corev1.Service) string { return "k8s-" + string(s.UID) },
		"the UID, cut":          func(s *corev1.Service) string { return s.Name + "-" + string(s.UID)[:8] },
		"the UID behind a dash": func(s *corev1.Service) string { return string(s.UID)[:20] + "-lb" },
		"the Service's name":    func(s *corev1.Service) string { return s.Namespace + "-" + s.Name },
	} {
		service := func(uid types.UID) *corev1.Service {
			return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: uid}}
		}
		before := service("0f8fad5b-d9cb-469f-a165-70867728950e")
		svc := service("7c9e6679-7425-40de-944b-e07fc1f90ae7")
		assert.Equal(t, name(svc), guessBalancerName(svc, name(before), before), what)
	}
}
