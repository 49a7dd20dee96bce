package manifests_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/ccmlab/ccmlab/lab/apply"
	"github.com/ccmlab/ccmlab/lab/testbed"
	"github.com/ccmlab/ccmlab/manifests"
)

// A pod that is bound before its Node has a zone never gets the zone's label. The pod's own
// service account may read the Node, which has the zone by then, and nothing else.
func TestDemoPodsReadTheZoneOfTheirNode(t *testing.T) {
	const node, namespace = "node-1", metav1.NamespaceDefault
	bed := testbed.ForTest(t, testbed.Options{})
	core := bed.Admin().CoreV1()
	require.NoError(t, apply.Manifests(t.Context(), bed.Cluster().Kubeconfig(), manifests.Demo))
	_, err := core.Nodes().
		Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, metav1.CreateOptions{})
	require.NoError(t, err)

	template := onlyObject[*appsv1.Deployment](t, decodeObjects(t, manifests.Demo)).Spec.Template
	web := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Labels: template.Labels}, Spec: *template.Spec.DeepCopy(),
	}
	web.Spec.NodeName = node
	_, err = core.Pods(namespace).Create(t.Context(), web, metav1.CreateOptions{})
	require.NoError(t, err)
	zone := []byte(`{"metadata":{"labels":{"` + corev1.LabelTopologyZone + `":"nebula-1a"}}}`)
	_, err = core.Nodes().Patch(t.Context(), node, types.MergePatchType, zone, metav1.PatchOptions{})
	require.NoError(t, err)
	web, err = core.Pods(namespace).Get(t.Context(), web.Name, metav1.GetOptions{})
	require.NoError(t, err)
	assert.NotContains(t, web.Labels, corev1.LabelTopologyZone)

	config := asServiceAccount(t, bed, namespace, web.Spec.ServiceAccountName)
	nodes := metadata.NewForConfigOrDie(config).Resource(corev1.SchemeGroupVersion.WithResource("nodes"))
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		got, err := nodes.Get(t.Context(), node, metav1.GetOptions{}) // As hello asks.
		if assert.NoError(c, err) {
			assert.Equal(c, "nebula-1a", got.Labels[corev1.LabelTopologyZone])
		}
	}, bound, 50*time.Millisecond, "the authorizer knows by now")
	assert.Equal(
		t,
		[]authorizationv1.ResourceRule{{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"nodes"}}},
		ownRules(t, config, namespace),
	)
}

// asServiceAccount is the configuration with which a pod of the account reaches the API server.
func asServiceAccount(t *testing.T, bed *testbed.Bed, namespace, account string) *rest.Config {
	t.Helper()
	token, err := bed.Admin().CoreV1().ServiceAccounts(namespace).
		CreateToken(t.Context(), account, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	require.NoError(t, err)
	config := rest.AnonymousClientConfig(bed.AdminConfig())
	config.BearerToken = token.Status.Token
	return config
}

// ownRules are the rights of a user to resources of a namespace and of the cluster. The rights
// that every user has, to ask who they are and what they may do, are left out.
func ownRules(t *testing.T, config *rest.Config, namespace string) []authorizationv1.ResourceRule {
	t.Helper()
	review, err := kubernetes.NewForConfigOrDie(config).AuthorizationV1().SelfSubjectRulesReviews().Create(t.Context(),
		&authorizationv1.SelfSubjectRulesReview{Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: namespace}},
		metav1.CreateOptions{})
	require.NoError(t, err)
	require.False(t, review.Status.Incomplete)
	return slices.DeleteFunc(review.Status.ResourceRules, func(r authorizationv1.ResourceRule) bool {
		return slices.Equal(r.Verbs, []string{"create"}) && (slices.Equal(
			r.APIGroups, []string{authorizationv1.GroupName},
		) || slices.Equal(r.APIGroups, []string{authenticationv1.GroupName}))
	})
}
