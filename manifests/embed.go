// Package manifests holds what is applied to a cluster. The manifests of the CCM are a
// kustomize base and overlays (ccm/README.md). Labs apply the files of the base,
// so that people and labs have the same objects.
//
// It only embeds the files: lab/apply applies them.
package manifests

import (
	"bytes"
	_ "embed"
)

//go:embed ccm/base/rbac/serviceaccount.yaml
var ccmServiceAccount []byte

//go:embed ccm/base/rbac/controllers.yaml
var ccmControllers []byte

//go:embed ccm/base/rbac/leaderelection.yaml
var ccmLeaderElection []byte

//go:embed ccm/base/rbac/metrics.yaml
var ccmMetrics []byte

//go:embed ccm/base/rbac/massdeletion.yaml
var ccmMassDeletion []byte

// CCM is the service account of the cloud controller manager, with its rights.
var CCM = joinDocuments(ccmServiceAccount, ccmControllers, ccmLeaderElection, ccmMetrics, ccmMassDeletion)

// CCMUser gives the same rights to a user of the same name, who has a client certificate. It is
// applied together with CCM.
//
//go:embed ccm/overlays/outside/user.yaml
var CCMUser []byte

// CCMDeployment is the cloud controller manager as a workload: an
// apps/v1.Deployment.
//
//go:embed ccm/base/deployment.yaml
var CCMDeployment []byte

// CCMDisruptionBudget is the PodDisruptionBudget for CCMDeployment.
//
//go:embed ccm/base/disruptionbudget.yaml
var CCMDisruptionBudget []byte

// Lab is the RBAC of the lab's own credentials.
//
//go:embed lab/rbac.yaml
var Lab []byte

// Embedded is the RBAC that only an embedded cluster needs, because other clusters have it.
//
//go:embed embedded/rbac.yaml
var Embedded []byte

// The names in Demo: of its Deployment and of its Service, which also are its pods' label.
const (
	DemoNamespace = "default"
	DemoName      = "web"
	DemoSelector  = "app=" + DemoName
)

// IsDemoService tells whether a Service is the demo's.
func IsDemoService(namespace, name string) bool {
	return namespace == DemoNamespace && name == DemoName
}

// Demo is a Deployment and a Service of type LoadBalancer, with all that they need.
//
//go:embed demo/demo.yaml
var Demo []byte

func joinDocuments(files ...[]byte) []byte { return bytes.Join(files, []byte("---\n")) }
