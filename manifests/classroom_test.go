package manifests_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"

	"github.com/ccmlab/ccmlab/lab/testbed"
)

const classroom = "classroom"

// createObject creates an object at the API server, and returns its answer.
func createObject(t *testing.T, kube kubernetes.Interface, o runtime.Object) error {
	t.Helper()
	var err error
	switch o := o.(type) {
	case *corev1.Namespace:
		_, err = kube.CoreV1().Namespaces().Create(t.Context(), o, metav1.CreateOptions{})
	case *corev1.Service:
		_, err = kube.CoreV1().Services(classroom).Create(t.Context(), o, metav1.CreateOptions{})
	case *corev1.ServiceAccount:
		_, err = kube.CoreV1().ServiceAccounts(classroom).Create(t.Context(), o, metav1.CreateOptions{})
	case *appsv1.StatefulSet:
		_, err = kube.AppsV1().StatefulSets(classroom).Create(t.Context(), o, metav1.CreateOptions{})
	case *appsv1.Deployment:
		_, err = kube.AppsV1().Deployments(classroom).Create(t.Context(), o, metav1.CreateOptions{})
	case *networkingv1.NetworkPolicy:
		_, err = kube.NetworkingV1().NetworkPolicies(classroom).Create(t.Context(), o, metav1.CreateOptions{})
	case *rbacv1.Role:
		_, err = kube.RbacV1().Roles(classroom).Create(t.Context(), o, metav1.CreateOptions{})
	case *rbacv1.RoleBinding:
		_, err = kube.RbacV1().RoleBindings(classroom).Create(t.Context(), o, metav1.CreateOptions{})
	default:
		require.Failf(t, "of a type that is not expected", "%T", o)
	}
	return err
}

func TestClassroomIsAccepted(t *testing.T) {
	kube := testbed.ForTest(t, testbed.Options{}).Admin()
	objects := decodeObjects(t, kustomize(t, classroom, "base"))
	for _, o := range objects {
		require.NoError(t, createObject(t, kube, o))
	}
	// No controller makes this account here, and no pod is admitted without it.
	require.NoError(t, createObject(t, kube, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}))
	seat := onlyObject[*appsv1.StatefulSet](t, objects).Spec.Template.Spec
	t.Run("pods are restricted", func(t *testing.T) { assertRestricted(t, kube, seat) })
	require.NoError(t, admitPod(t, kube, onlyObject[*appsv1.Deployment](t, objects).Spec.Template.Spec))
	t.Run("a learner has one seat", func(t *testing.T) { assertOneSeat(t, kube) })
	t.Run("overlays", func(t *testing.T) {
		for _, dir := range []string{"overlays/example", "overlays/kept"} {
			for _, o := range decodeObjects(t, kustomize(t, classroom, dir)) {
				if o, ok := o.(*appsv1.StatefulSet); ok {
					o.Name = strings.ReplaceAll(dir, "/", "-")
					assert.NoError(t, createObject(t, kube, o))
					assert.NoError(t, checkMounts(o), dir)
				}
			}
		}
	})
}

// checkMounts is an error where a container mounts a volume that does not exist.
func checkMounts(o *appsv1.StatefulSet) error {
	volumes := map[string]bool{}
	for _, v := range o.Spec.Template.Spec.Volumes {
		volumes[v.Name] = true
	}
	for _, v := range o.Spec.VolumeClaimTemplates {
		volumes[v.Name] = true
	}
	for _, m := range o.Spec.Template.Spec.Containers[0].VolumeMounts {
		if !volumes[m.Name] {
			return os.ErrNotExist
		}
	}
	return nil
}

// admitPod is the answer of admission to a pod in the namespace.
func admitPod(t *testing.T, kube kubernetes.Interface, spec corev1.PodSpec) error {
	t.Helper()
	_, err := kube.CoreV1().Pods(classroom).Create(
		t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: "seat-"}, Spec: spec},
		metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}},
	)
	return err
}

// assertRestricted asserts that the API server's own admission accepts a seat, and none with a
// restriction less.
func assertRestricted(t *testing.T, kube kubernetes.Interface, seat corev1.PodSpec) {
	require.NoError(t, admitPod(t, kube, seat))
	for what, loosen := range map[string]func(*corev1.PodSpec){
		"runAsNonRoot":   func(p *corev1.PodSpec) { p.SecurityContext.RunAsNonRoot = nil },
		"seccompProfile": func(p *corev1.PodSpec) { p.SecurityContext.SeccompProfile = nil },
		"allowPrivilegeEscalation": func(p *corev1.PodSpec) {
			p.Containers[0].SecurityContext.AllowPrivilegeEscalation = nil
		},
		"capabilities": func(p *corev1.PodSpec) { p.Containers[0].SecurityContext.Capabilities = nil },
	} {
		spec := *seat.DeepCopy()
		loosen(&spec)
		err := admitPod(t, kube, spec)
		assert.True(t, apierrors.IsForbidden(err), "%s: %v", what, err)
		assert.ErrorContains(t, err, what)
	}
	c := seat.Containers[0]
	assert.True(t, *c.SecurityContext.ReadOnlyRootFilesystem, "which the profile does not ask for")
	assert.False(t, *seat.AutomountServiceAccountToken)
	assert.Contains(t, c.Resources.Limits, corev1.ResourceMemory)
	assert.NotEmpty(t, c.Resources.Requests)
	for _, m := range c.VolumeMounts {
		if m.Name == "passwords" {
			assert.Equal(t, "$(POD_NAME)", m.SubPathExpr, "a seat has no other's password")
		}
	}
}

// assertOneSeat asserts that learner.yaml gives access to the learner's own seat, and to nothing
// else.
func assertOneSeat(t *testing.T, kube kubernetes.Interface) {
	file, err := os.ReadFile("classroom/learner.yaml")
	require.NoError(t, err)
	for _, o := range decodeObjects(t, []byte(strings.ReplaceAll(string(file), "seat-0", "seat-3"))) {
		require.NoError(t, createObject(t, kube, o))
	}
	may := func(verb, resource, name string) bool {
		resource, sub, _ := strings.Cut(resource, "/")
		review, err := kube.AuthorizationV1().SubjectAccessReviews().
			Create(t.Context(), &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
				User: "system:serviceaccount:" + classroom + ":seat-3",
				ResourceAttributes: &authorizationv1.ResourceAttributes{
					Namespace: classroom, Verb: verb, Resource: resource, Subresource: sub, Name: name,
				},
			}}, metav1.CreateOptions{})
		require.NoError(t, err)
		return review.Status.Allowed
	}
	require.Eventually(
		t, func() bool { return may("create", "pods/exec", "seat-3") }, bound, 50*time.Millisecond,
		"the authorizer knows by now",
	)
	assert.True(t, may("create", "pods/portforward", "seat-3"))
	assert.True(t, may("get", "pods", "seat-3"))
	for _, not := range [][3]string{
		{"create", "pods/exec", "seat-4"}, {"create", "pods/portforward", "seat-4"}, {"get", "pods", "seat-4"},
		{"list", "pods", ""}, {"delete", "pods", "seat-3"}, {"create", "pods", ""},
		{"get", "secrets", "seat-passwords"}, {"list", "secrets", ""},
	} {
		assert.False(t, may(not[0], not[1], not[2]), not)
	}
}
