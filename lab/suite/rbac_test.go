package suite

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/manifests"
)

const (
	role = `
---
{apiVersion: rbac.authorization.k8s.io/v1, kind: Role, metadata: {name: leases, namespace: nebula, uid: "1"}}
---
`
	binding = role + `
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: leases, namespace: nebula}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: leases}
subjects: [{kind: ServiceAccount, name: ccm}]
---
`
	adminBinding = `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: all}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin}
subjects: [{kind: User, name: eve}, {kind: ServiceAccount, name: ccm, namespace: nebula}]
`
)

func TestParseRBAC(t *testing.T) {
	manifest := string(manifests.CCMDeployment) + "---" + string(manifests.CCMUser) + binding + adminBinding
	rbac, err := ParseRBAC([]byte(manifest))
	require.NoError(t, err)
	require.Len(t, rbac, 3, "neither the Deployment nor what a User may do")
	names := map[string]string{}
	for _, o := range rbac {
		assert.Empty(t, o.UID, o.Kind)
		names[o.Kind] = o.Name
		if o.RoleRef != nil {
			names[o.Kind] += " to " + o.RoleRef.Name
			require.Len(t, o.Subjects, 1, o.Kind)
			assert.Equal(t, "kube-system/"+accountUnderTest, o.accounts()[0], o.Kind)
		}
	}
	assert.Equal(t, map[string]string{
		"Role":               "ccm-under-test:leases",
		"RoleBinding":        "ccm-under-test:leases to ccm-under-test:leases",
		"ClusterRoleBinding": "ccm-under-test:all to cluster-admin",
	}, names)
}

func TestRBACThatCannotBeUsed(t *testing.T) {
	for manifest, want := range map[string]string{
		"":                        "no binding in it names a ServiceAccount",
		role:                      "no binding in it names a ServiceAccount",
		string(manifests.CCMUser): "no binding in it names a ServiceAccount",
		binding + "}":             "error converting YAML to JSON",
		"just words":              "cannot unmarshal string",
		binding[len(role):]:       "RoleBinding leases names Role leases, which is not in it",
		strings.ReplaceAll(role, ", namespace: nebula", ""): "Role leases has no namespace",
		binding + string(manifests.CCM):                     "ServiceAccounts, kube-system/cloud-controller-manager, nebula/ccm: give",
	} {
		_, err := ParseRBAC([]byte(manifest))
		assert.ErrorContains(t, err, want, manifest)
	}
}
