package manifests_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	cloudproviderapi "k8s.io/cloud-provider/api"

	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/cluster/kubeaccess"
	"github.com/ccmlab/ccmlab/lab/testbed"
	"github.com/ccmlab/ccmlab/manifests"
)

const (
	kubeSystem = metav1.NamespaceSystem
	account    = "cloud-controller-manager"
	ccmUser    = "system:serviceaccount:" + kubeSystem + ":" + account
)

const auditEverything = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  users: ["` + ccmUser + `"]
- level: None
`

// By default client-go gets lists by watching, where the API server supports that (KEP-3157). This
// makes it list, as it does with an API server that does not.
const listWithoutWatch = "KUBE_FEATURE_WatchListClient=false"

// grant is one verb of one rule, and the binding through which the CCM has it.
type grant struct {
	binding, role binding
	verb, group   string
	resource      string // with its subresource
	name          string // "" for any name
}

// binding is an RBAC object by kind, namespace and name.
type binding struct{ kind, namespace, name string }

func (g grant) String() string {
	return strings.TrimSuffix(fmt.Sprintf("%s %s %s", g.verb, g.resource, g.name), " ")
}

func (g grant) covers(e request) bool {
	return g.verb == e.Verb && g.group == e.ObjectRef.APIGroup && g.resource == e.resourceName() && (g.name == "" ||
		g.name == e.ObjectRef.Name)
}

// request is a request, as the audit log has it.
type request struct {
	Verb       string `json:"verb"`
	RequestURI string `json:"requestURI"`
	ObjectRef  *struct {
		Resource, Subresource, Namespace, Name, APIGroup string
	} `json:"objectRef"`
	Annotations map[string]string `json:"annotations"`
}

func (e request) resourceName() string {
	return strings.TrimSuffix(e.ObjectRef.Resource+"/"+e.ObjectRef.Subresource, "/")
}

func (e request) isRefused() bool {
	return e.Annotations["authorization.k8s.io/decision"] == "forbid"
}

// allowedBy is the binding that the authorizer names as the reason (pkg/auth/authorizer/rbac).
func (e request) allowedBy() binding {
	m := allowedByRegexp.FindStringSubmatch(e.Annotations["authorization.k8s.io/reason"])
	if m == nil {
		return binding{}
	}
	b := binding{kind: m[1], name: m[2]}
	if b.kind == "RoleBinding" {
		b.name, b.namespace, _ = strings.Cut(b.name, "/")
	}
	return b
}

var allowedByRegexp = regexp.MustCompile(`^RBAC: allowed by (\w+) "([^"]+)" of `)

// The CCM's RBAC is enough, and no more than enough. A genuine CCM does all of its work with a
// genuine API server, as its service account. The audit log says what it requested and which
// binding allowed that: no request may be refused, and no right unused. Then one right after the
// other is taken away, and each time a request must be refused.
func TestCCMHasExactlyTheRightsItNeeds(t *testing.T) {
	x := newExercise(t)
	t.Run("what is granted is what is used", x.assertAllUsed)
	for _, g := range x.grants {
		t.Run("without "+g.String(), func(t *testing.T) { x.assertNeeded(t, g) })
	}
	for _, b := range x.bindings() {
		t.Run("without "+b.kind+" "+b.name, func(t *testing.T) { x.assertBindingNeeded(t, b) })
	}
}

// exercise gives a CCM all kinds of work, in rounds.
type exercise struct {
	bed        *testbed.Bed
	grants     []grant
	kubeconfig string
	flags      []string
	scraper    *http.Client // has a token, and may read metrics

	rounds, touches, lost int
}

func newExercise(t *testing.T) *exercise {
	t.Helper()
	bed := testbed.ForTest(t, testbed.Options{AuditPolicy: auditEverything})
	x := &exercise{bed: bed, kubeconfig: filepath.Join(t.TempDir(), "ccm.yaml")}
	require.NoError(t, kubeaccess.ServiceAccount(t.Context(), bed.Cluster().Kubeconfig(), account, x.kubeconfig))
	x.flags = append(deploymentFlags(t),
		"--configure-cloud-routes=true", "--allocate-node-cidrs=true", "--cluster-cidr="+bed.Cluster().PodCIDR(),
		"--route-reconciliation-period=1s")
	x.grants = x.listGrants(t)
	x.scraper = newScraper(t, bed)
	return x
}

// deploymentFlags are the flags of the Deployment, except those that depend on where it runs.
func deploymentFlags(t *testing.T) []string {
	t.Helper()
	d := onlyObject[*appsv1.Deployment](t, decodeObjects(t, manifests.CCMDeployment))
	flags := slices.DeleteFunc(slices.Clone(d.Spec.Template.Spec.Containers[0].Args), func(arg string) bool {
		return strings.HasPrefix(arg, "--cloud-config=") || strings.HasPrefix(arg, "--bind-address=")
	})
	require.Contains(t, flags, "--authentication-tolerate-lookup-failure=true")
	return flags
}

// listGrants lists the rights that the manifests give. The rules of each role are read from the
// API server, because some roles are not in the manifests.
func (x *exercise) listGrants(t *testing.T) (grants []grant) {
	t.Helper()
	for _, o := range decodeObjects(t, manifests.CCM) {
		var b binding
		var ref rbacv1.RoleRef
		switch o := o.(type) {
		case *rbacv1.ClusterRoleBinding:
			b, ref = binding{kind: "ClusterRoleBinding", name: o.Name}, o.RoleRef
		case *rbacv1.RoleBinding:
			b, ref = binding{kind: "RoleBinding", namespace: o.Namespace, name: o.Name}, o.RoleRef
		default:
			continue
		}
		role := binding{kind: ref.Kind, name: ref.Name}
		if ref.Kind == "Role" {
			role.namespace = b.namespace
		}
		for _, rule := range x.rulesOf(t, role) {
			require.Empty(t, rule.NonResourceURLs)
			grants = append(grants, expandRule(b, role, rule)...)
		}
	}
	require.NotEmpty(t, grants)
	return grants
}

// expandRule lists each right of a rule.
func expandRule(b, role binding, rule rbacv1.PolicyRule) (grants []grant) {
	names := rule.ResourceNames
	if len(names) == 0 {
		names = []string{""}
	}
	for _, group := range rule.APIGroups {
		for _, resource := range rule.Resources {
			for _, verb := range rule.Verbs {
				for _, name := range names {
					grants = append(grants, grant{b, role, verb, group, resource, name})
				}
			}
		}
	}
	return grants
}

func (x *exercise) bindings() (all []binding) {
	for _, g := range x.grants {
		if !slices.Contains(all, g.binding) {
			all = append(all, g.binding)
		}
	}
	return all
}

func (x *exercise) rulesOf(t *testing.T, role binding) []rbacv1.PolicyRule {
	t.Helper()
	rbac := x.bed.Admin().RbacV1()
	if role.kind == "Role" {
		r, err := rbac.Roles(role.namespace).Get(t.Context(), role.name, metav1.GetOptions{})
		require.NoError(t, err)
		return r.Rules
	}
	r, err := rbac.ClusterRoles().Get(t.Context(), role.name, metav1.GetOptions{})
	require.NoError(t, err)
	return r.Rules
}

func (x *exercise) setRules(t *testing.T, role binding, rules []rbacv1.PolicyRule) {
	t.Helper()
	patch, err := json.Marshal(map[string]any{"rules": rules})
	require.NoError(t, err)
	rbac := x.bed.Admin().RbacV1()
	if role.kind == "Role" {
		_, err = rbac.Roles(role.namespace).
			Patch(context.WithoutCancel(t.Context()), role.name, types.MergePatchType, patch, metav1.PatchOptions{})
	} else {
		_, err = rbac.ClusterRoles().
			Patch(context.WithoutCancel(t.Context()), role.name, types.MergePatchType, patch, metav1.PatchOptions{})
	}
	require.NoError(t, err)
}

// newScraper is a client that may read metrics, as Prometheus would be.
func newScraper(t *testing.T, bed *testbed.Bed) *http.Client {
	t.Helper()
	const name, namespace = "scraper", metav1.NamespaceDefault
	admin := bed.Admin()
	meta := metav1.ObjectMeta{Name: name}
	_, err := admin.CoreV1().ServiceAccounts(namespace).
		Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: meta}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = admin.RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{
		ObjectMeta: meta, Rules: []rbacv1.PolicyRule{{Verbs: []string{"get"}, NonResourceURLs: []string{"/metrics"}}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = admin.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: name, Namespace: namespace}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	token, err := admin.CoreV1().ServiceAccounts(namespace).
		CreateToken(t.Context(), name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	require.NoError(t, err)
	config := rest.AnonymousClientConfig(bed.AdminConfig())
	config.BearerToken = token.Status.Token
	scraper, err := rest.HTTPClientFor(config)
	require.NoError(t, err)
	return scraper
}

// scrape is the status of a request for metrics.
func (x *exercise) scrape(ctx context.Context, ccm *testbed.CCM) (status int, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, ccm.URL()+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	resp, err := x.scraper.Do(req)
	if err != nil {
		return 0, err
	}
	return resp.StatusCode, resp.Body.Close()
}

// startCCM starts a CCM that leads at once, and is killed when the test ends.
func (x *exercise) startCCM(t *testing.T, env ...string) *testbed.CCM {
	t.Helper()
	ccm, err := x.bed.StartCCM(t.Context(), testbed.CCMOptions{Kubeconfig: x.kubeconfig, Flags: x.flags, Env: env})
	require.NoError(t, err)
	t.Cleanup(func() {
		assert.NoError(t, ccm.Kill())
		// The next CCM must not wait until the lease expires.
		leases := x.bed.Admin().CoordinationV1().Leases(kubeSystem)
		assert.NoError(t, leases.DeleteCollection(
			context.WithoutCancel(t.Context()), metav1.DeleteOptions{},
			metav1.ListOptions{FieldSelector: "metadata.name=" + account},
		))
	})
	return ccm
}

// createWork makes new work of every kind: a Node to initialise and to route to,
// one to taint as shut down, two to delete, and a Service.
func (x *exercise) createWork(t *testing.T) {
	t.Helper()
	x.rounds++
	ctx, cloud := t.Context(), x.bed.Cloud()
	names := []string{x.nameOf("new"), x.nameOf("stopped"), x.nameOf("gone"), x.nameOf("gone-too")}
	made, err := x.bed.CreateInstances(ctx, names...)
	require.NoError(t, err)
	require.NoError(t, cluster.Poll(ctx, "an instance that can be stopped", func(ctx context.Context) error {
		_, err := cloud.StopInstance(ctx, made[1].ID)
		return err
	}))
	for _, gone := range made[2:] {
		_, err = cloud.TerminateInstance(ctx, gone.ID)
		require.NoError(t, err)
	}
	// The mass-deletion guard creates its ConfigMap for the first Node, and updates it for the second.
	err = x.bed.Admin().CoreV1().ConfigMaps(kubeSystem).Delete(ctx, contract.GuardConfigMap, metav1.DeleteOptions{})
	require.True(t, err == nil || apierrors.IsNotFound(err), "%v", err)
	prefix := strings.Split(x.bed.Cluster().PodCIDR(), ".")[1] // 10.X.128.0/17
	require.NoError(t, x.bed.RegisterNodes(ctx, func(i int, n *corev1.Node) {
		if i == 0 {
			n.Spec.PodCIDR = fmt.Sprintf("10.%s.%d.0/25", prefix, 128+x.rounds)
			n.Spec.PodCIDRs = []string{n.Spec.PodCIDR}
			return
		}
		n.Spec.ProviderID, n.Spec.Taints = "fakecloud://"+made[i].ID, nil
		n.Status.Conditions[0].Status = corev1.ConditionUnknown
	}, names...))
	// The CCM looks for the Service of an orphaned balancer every half minute, so that it requests
	// Services even if it has missed that a balancer was lost (see deleteBalancer).
	_, err = cloud.CreateLoadBalancer(ctx, api.LoadBalancerCreate{
		Name: x.nameOf("orphan"), Listeners: api.Listeners{{Port: 8080, Protocol: api.ProtocolTCP, TargetPort: 30000}},
		Tags: api.Tags{
			contract.TagCluster: x.bed.Name, contract.TagService: "default/" + x.nameOf("orphan"),
			contract.TagServiceUID: x.nameOf("orphan"),
		},
	})
	require.NoError(t, err)
	for _, name := range []string{x.nameOf("service"), x.nameOf("lost")} {
		_, err = x.bed.Admin().CoreV1().Services(metav1.NamespaceDefault).Create(ctx, &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{{Port: 8080}}},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
}

// deleteBalancer deletes a Service's balancer in the cloud, once the CCM has ensured it. Then the
// CCM gets the Service, and makes another balancer.
func (x *exercise) deleteBalancer(ctx context.Context) error {
	if x.lost == x.rounds {
		return nil
	}
	events, err := x.bed.Admin().CoreV1().Events(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{
		FieldSelector: "reason=EnsuredLoadBalancer,involvedObject.name=" + x.nameOf("lost"),
	})
	if err != nil || len(events.Items) == 0 {
		return err
	}
	found, err := x.bed.Cloud().ListLoadBalancers(
		ctx, client.LoadBalancerFilter{Tags: []string{contract.TagService + "=default/" + x.nameOf("lost")}},
	)
	if err != nil || len(found) == 0 {
		return err
	}
	x.lost = x.rounds
	_, err = x.bed.Cloud().DeleteLoadBalancer(ctx, found[0].ID)
	return err
}

// nameOf is the name of an object of this round.
func (x *exercise) nameOf(what string) string { return fmt.Sprintf("%s-%d", what, x.rounds) }

// touchService changes the Service, so that an event repeats, and requests metrics.
func (x *exercise) touchService(ctx context.Context, ccm *testbed.CCM) error {
	x.touches++
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{"example.com/touched":"%d"}}}`, x.touches)
	_, err := x.bed.Admin().CoreV1().Services(metav1.NamespaceDefault).
		Patch(ctx, x.nameOf("service"), types.MergePatchType, patch, metav1.PatchOptions{})
	_, err2 := x.scrape(ctx, ccm)
	return errors.Join(err, err2, x.deleteBalancer(ctx))
}

// requestsSince are the requests of the CCM since the audit log had this length.
func (x *exercise) requestsSince(since int64) (all []request, err error) {
	log, err := os.Open(x.bed.Cluster().AuditLog())
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	if _, err := log.Seek(since, io.SeekStart); err != nil {
		return nil, err
	}
	for r := bufio.NewReader(log); ; {
		line, err := r.ReadBytes('\n')
		if err != nil { // The last line may be half written.
			return all, nil
		}
		var e request
		if err := json.Unmarshal(bytes.TrimSpace(line), &e); err != nil {
			return nil, err
		}
		all = append(all, e)
	}
}

func (x *exercise) allRequests(t *testing.T, since int64) []request {
	t.Helper()
	all, err := x.requestsSince(since)
	require.NoError(t, err)
	return all
}

func (x *exercise) auditLogSize(t *testing.T) int64 {
	t.Helper()
	info, err := os.Stat(x.bed.Cluster().AuditLog())
	require.NoError(t, err)
	return info.Size()
}

// bound is long enough for a machine that builds beside the tests.
const bound = time.Minute

// assertAllUsed runs a CCM as it comes, and one that lists, until all work is done. It asserts
// that every right was used and no request was refused.
func (x *exercise) assertAllUsed(t *testing.T) {
	unused := slices.Clone(x.grants)
	use := func(since int64) error {
		requests, err := x.requestsSince(since)
		for _, e := range requests {
			unused = slices.DeleteFunc(unused, func(g grant) bool {
				return e.ObjectRef != nil && !e.isRefused() && g.binding == e.allowedBy() && g.covers(e)
			})
		}
		if err == nil && slices.ContainsFunc(unused, func(g grant) bool { return g.verb != "list" }) {
			err = fmt.Errorf("rights that nothing needs: %v", unused)
		}
		return err
	}
	run := func(t *testing.T, env ...string) {
		since := x.auditLogSize(t)
		x.createWork(t)
		ccm := x.startCCM(t, env...)
		ctx, cancel := context.WithTimeout(t.Context(), bound)
		defer cancel()
		err := cluster.Poll(ctx, "all work to be done", func(ctx context.Context) error {
			return errors.Join(x.touchService(ctx, ccm), x.checkDone(ctx), use(since))
		})
		if err == nil {
			err = x.deleteService(ctx)
		}
		var refused, allowedByOthers []string
		for _, e := range x.allRequests(t, since) {
			what := e.Verb + " " + e.RequestURI
			switch {
			case e.isRefused():
				refused = append(refused, what)
			case e.ObjectRef != nil && e.ObjectRef.Resource != "" && !slices.Contains(x.bindings(), e.allowedBy()):
				allowedByOthers = append(allowedByOthers, what)
			}
		}
		assert.Empty(t, sortedUnique(refused), "requests that lack a right")
		assert.Empty(t, sortedUnique(allowedByOthers), "requests that another binding allows")
		require.NoError(t, err)
		status, err := x.scrape(ctx, ccm)
		require.NoError(t, err)
		assert.Equal(t, http.StatusOK, status, "metrics are for those whom the API server lets read them")
	}
	if t.Run("as it comes", func(t *testing.T) { run(t) }) && t.Run("listing", func(t *testing.T) {
		run(t, listWithoutWatch)
	}) {
		assert.Empty(t, unused, "rights that nothing needs")
	}
}

func sortedUnique(all []string) []string { return slices.Compact(slices.Sorted(slices.Values(all))) }

// checkDone is an error until the CCM has done all the work of createWork and touchService.
func (x *exercise) checkDone(ctx context.Context) error {
	core := x.bed.Admin().CoreV1()
	created, err1 := core.Nodes().Get(ctx, x.nameOf("new"), metav1.GetOptions{})
	stopped, err2 := core.Nodes().Get(ctx, x.nameOf("stopped"), metav1.GetOptions{})
	service, err3 := core.Services(metav1.NamespaceDefault).Get(ctx, x.nameOf("service"), metav1.GetOptions{})
	events, err4 := core.Events(metav1.NamespaceDefault).
		List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + x.nameOf("service")})
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return err
	}
	_, getErr := core.Nodes().Get(ctx, x.nameOf("gone"), metav1.GetOptions{})
	_, getErr2 := core.Nodes().Get(ctx, x.nameOf("gone-too"), metav1.GetOptions{})
	var missing []error
	for what, is := range map[string]bool{
		"initialised": !hasTaint(created, cloudproviderapi.TaintExternalCloudProvider) &&
			created.Spec.ProviderID != "",
		"addressed": len(created.Status.Addresses) > 0,
		"routed": slices.ContainsFunc(created.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Reason == "RouteCreated"
		}),
		"shut down":       hasTaint(stopped, cloudproviderapi.TaintNodeShutdown),
		"gone":            apierrors.IsNotFound(getErr) && apierrors.IsNotFound(getErr2),
		"balanced":        len(service.Status.LoadBalancer.Ingress) > 0,
		"told repeatedly": slices.ContainsFunc(events.Items, func(e corev1.Event) bool { return e.Count > 1 }),
	} {
		if !is {
			missing = append(missing, errors.New("not "+what))
		}
	}
	return errors.Join(missing...)
}

func hasTaint(n *corev1.Node, key string) bool {
	return slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == key })
}

// deleteService deletes the Service, and returns when it is gone.
func (x *exercise) deleteService(ctx context.Context) error {
	services := x.bed.Admin().CoreV1().Services(metav1.NamespaceDefault)
	if err := services.Delete(ctx, x.nameOf("service"), metav1.DeleteOptions{}); err != nil {
		return err
	}
	return cluster.Poll(ctx, "the Service to be gone", func(ctx context.Context) error {
		_, err := services.Get(ctx, x.nameOf("service"), metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(err, errors.New("it is there"))
	})
}

// assertNeeded takes one right away, and asserts that a request is refused.
func (x *exercise) assertNeeded(t *testing.T, g grant) {
	before := x.rulesOf(t, g.role)
	var left []rbacv1.PolicyRule
	for _, other := range x.grants {
		if other.role != g.role || other == g {
			continue
		}
		rule := rbacv1.PolicyRule{
			APIGroups: []string{other.group}, Resources: []string{other.resource}, Verbs: []string{other.verb},
		}
		if other.name != "" {
			rule.ResourceNames = []string{other.name}
		}
		left = append(left, rule)
	}
	t.Cleanup(func() {
		x.setRules(t, g.role, before)
		x.awaitAuthorizer(t, g, true)
	})
	x.setRules(t, g.role, left)
	x.awaitAuthorizer(t, g, false)
	x.assertRefused(t, g)
}

// assertBindingNeeded deletes a binding, and asserts that a request is refused.
func (x *exercise) assertBindingNeeded(t *testing.T, b binding) {
	of := slices.DeleteFunc(slices.Clone(x.grants), func(g grant) bool { return g.binding != b })
	rbac := x.bed.Admin().RbacV1()
	t.Cleanup(func() { x.awaitAuthorizer(t, of[0], true) })
	if b.kind == "RoleBinding" {
		have, err := rbac.RoleBindings(b.namespace).Get(t.Context(), b.name, metav1.GetOptions{})
		require.NoError(t, err)
		require.NoError(t, rbac.RoleBindings(b.namespace).Delete(t.Context(), b.name, metav1.DeleteOptions{}))
		t.Cleanup(func() {
			have.ResourceVersion = ""
			_, err := rbac.RoleBindings(b.namespace).
				Create(context.WithoutCancel(t.Context()), have, metav1.CreateOptions{})
			assert.NoError(t, err)
		})
	} else {
		have, err := rbac.ClusterRoleBindings().Get(t.Context(), b.name, metav1.GetOptions{})
		require.NoError(t, err)
		require.NoError(t, rbac.ClusterRoleBindings().Delete(t.Context(), b.name, metav1.DeleteOptions{}))
		t.Cleanup(func() {
			have.ResourceVersion = ""
			_, err := rbac.ClusterRoleBindings().
				Create(context.WithoutCancel(t.Context()), have, metav1.CreateOptions{})
			assert.NoError(t, err)
		})
	}
	x.awaitAuthorizer(t, of[0], false)
	x.assertRefused(t, of...)
}

// assertRefused asserts that a request of a CCM is refused that needs one of the missing rights.
func (x *exercise) assertRefused(t *testing.T, lacks ...grant) {
	t.Helper()
	since := x.auditLogSize(t)
	x.createWork(t)
	ccm := x.startCCM(t, listWithoutWatch)
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	assert.NoError(t, cluster.Poll(ctx, "a request to be refused", func(ctx context.Context) error {
		if err := x.touchService(ctx, ccm); err != nil {
			return err
		}
		requests, err := x.requestsSince(since)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(requests, func(e request) bool {
			return e.ObjectRef != nil && e.isRefused() && slices.ContainsFunc(lacks, func(g grant) bool {
				return g.covers(e)
			})
		}) {
			return fmt.Errorf("%d requests, and not refused: %v", len(requests), lacks)
		}
		return nil
	}))
}

// awaitAuthorizer returns when the authorizer knows of the change.
func (x *exercise) awaitAuthorizer(t *testing.T, g grant, allowed bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), bound)
	defer cancel()
	resource, subresource, _ := strings.Cut(g.resource, "/")
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: ccmUser, Groups: []string{"system:serviceaccounts", "system:authenticated"},
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Namespace: g.binding.namespace, Verb: g.verb, Group: g.group, Resource: resource, Subresource: subresource,
			Name: g.name,
		},
	}}
	require.NoError(t, cluster.Poll(ctx, "the authorizer to know", func(ctx context.Context) error {
		got, err := x.bed.Admin().AuthorizationV1().SubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
		if err == nil && got.Status.Allowed != allowed {
			err = fmt.Errorf("allowed is %t: %s", got.Status.Allowed, got.Status.Reason)
		}
		return err
	}))
}
