package suite

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/ccmlab/ccmlab/lab"
	"github.com/ccmlab/ccmlab/lab/apply"
	"github.com/ccmlab/ccmlab/lab/cluster/kubeaccess"
	"github.com/ccmlab/ccmlab/lab/cluster/local"
	"github.com/ccmlab/ccmlab/lab/conformance"
	"github.com/ccmlab/ccmlab/lab/conformance/program"
)

// accountUnderTest is the ServiceAccount in kube-system as which a CCM runs with Options.RBAC. It
// stands for the one that the manifest names, to which the lab may have bound its own CCM's roles.
// For the same reason it is a prefix of the names of the manifest's roles and bindings.
const accountUnderTest = "ccm-under-test"

// upstreamRoles are roles that every API server has, besides those that begin with "system:".
var upstreamRoles = []string{"cluster-admin", "admin", "edit", "view", "extension-apiserver-authentication-reader"}

// RBAC is what a manifest allows the one ServiceAccount that its bindings name: its roles and
// bindings, renamed, and for accountUnderTest.
type RBAC []rbacObject

// rbacObject is a Role, a ClusterRole, a RoleBinding or a ClusterRoleBinding.
type rbacObject struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Rules             []rbacv1.PolicyRule     `json:"rules,omitempty"`
	AggregationRule   *rbacv1.AggregationRule `json:"aggregationRule,omitempty"`
	RoleRef           *rbacv1.RoleRef         `json:"roleRef,omitempty"`
	Subjects          []rbacv1.Subject        `json:"subjects,omitempty"`
}

// ParseRBAC reads the roles of a manifest, and the bindings that name a ServiceAccount.
func ParseRBAC(manifest []byte) (RBAC, error) {
	var rbac RBAC
	var accounts []string
	for docs := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(manifest), 4096); ; {
		var o rbacObject
		if err := docs.Decode(&o); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
		named := o.accounts()
		switch isBinding := o.RoleRef != nil; {
		case o.GroupVersionKind().Group != rbacv1.GroupName || isBinding && len(named) == 0:
			continue
		case o.Namespace == "" && !strings.HasPrefix(o.Kind, "Cluster"):
			return nil, fmt.Errorf("%s %s has no namespace: add it", o.Kind, o.Name)
		}
		rbac, accounts = append(rbac, o), append(accounts, named...)
	}
	slices.Sort(accounts)
	if accounts = slices.Compact(accounts); len(accounts) == 0 {
		return nil, errors.New("no binding in it names a ServiceAccount: give the file that binds the CCM's to its roles")
	} else if len(accounts) > 1 {
		return nil, fmt.Errorf("its bindings name several ServiceAccounts, %s: "+
			"give a file with the bindings of the one that the CCM runs as", strings.Join(accounts, ", "))
	}
	return rbac, rbac.bindAccountUnderTest()
}

// accounts returns the ServiceAccounts that a binding names, as NAMESPACE/NAME.
func (o rbacObject) accounts() (names []string) {
	for _, s := range o.Subjects {
		if s.Kind == rbacv1.ServiceAccountKind {
			names = append(names, cmp.Or(s.Namespace, o.Namespace)+"/"+s.Name)
		}
	}
	return names
}

// bindAccountUnderTest renames roles and bindings, and makes accountUnderTest the subject of the
// bindings. A binding to a role that is neither in the manifest nor upstream's is an error.
func (r RBAC) bindAccountUnderTest() error {
	type role struct{ kind, namespace, name string }
	roles := map[role]bool{}
	for _, o := range r {
		roles[role{o.Kind, o.Namespace, o.Name}] = true
	}
	for i := range r {
		o := &r[i]
		if ref := o.RoleRef; ref != nil {
			o.Subjects = []rbacv1.Subject{
				{Kind: rbacv1.ServiceAccountKind, Namespace: metav1.NamespaceSystem, Name: accountUnderTest},
			}
			if roles[role{ref.Kind, o.Namespace, ref.Name}] || roles[role{ref.Kind, "", ref.Name}] {
				ref.Name = accountUnderTest + ":" + ref.Name
			} else if !strings.HasPrefix(ref.Name, "system:") && !slices.Contains(upstreamRoles, ref.Name) {
				return fmt.Errorf("%s %s names %s %s, which is not in it: add that", o.Kind, o.Name, ref.Kind, ref.Name)
			}
		}
		// Other metadata of an object that was read from a cluster cannot be applied.
		o.ObjectMeta = metav1.ObjectMeta{
			Name: accountUnderTest + ":" + o.Name, Namespace: o.Namespace, Labels: o.Labels,
		}
	}
	return nil
}

// restrictCCM has a CCM run as accountUnderTest, with the rights of o.RBAC.
func (o Options) restrictCCM(ctx context.Context, l *lab.Lab, under conformance.CCM) error {
	ccm, ok := under.(*program.CCM)
	if !ok {
		return errors.New("--rbac: the CCM is no program")
	}
	if o.Program == nil && o.Driver == nil { // The lab's own CCM names the kubeconfig of its user.
		ccm.Args = append(ccm.Args, local.KubeconfigFlags("{{.Kubeconfig}}")...)
	}
	if !ccm.IsTold(".Kubeconfig") {
		return errors.New("--rbac: no argument of the CCM has {{.Kubeconfig}}, which alone gives it these rights")
	}
	ccm.Values.Kubeconfig = l.State.Path(accountUnderTest + ".kubeconfig")
	if err := o.RBAC.apply(ctx, l.Cluster.Kubeconfig()); err != nil {
		return fmt.Errorf("--rbac: %w", err)
	}
	return kubeaccess.ServiceAccount(ctx, l.Cluster.Kubeconfig(), accountUnderTest, ccm.Values.Kubeconfig)
}

// apply applies the roles and bindings to a cluster of the suite's own, with what they need there.
func (r RBAC) apply(ctx context.Context, kubeconfig string) error {
	missing := [][]byte{fmt.Appendf(
		nil, `{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"namespace": %q, "name": %q}}`,
		metav1.NamespaceSystem, accountUnderTest,
	)}
	var objects [][]byte
	for _, o := range r {
		if o.Namespace != "" {
			missing = append(missing, fmt.Appendf(
				nil, `{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": %q}}`, o.Namespace,
			))
		}
		object, err := json.Marshal(o)
		if err != nil {
			return err
		}
		objects = append(objects, object)
	}
	if _, err := apply.Missing(ctx, kubeconfig, missing...); err != nil {
		return err
	}
	return apply.Manifests(ctx, kubeconfig, objects...)
}
