// Package manifests holds what is applied to a cluster. Those of the CCM are a
// kustomize base and overlays (ccm/README.md), and labs apply the base's files,
// so that people and labs have the same.
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

// CCM is the service account of the cloud controller manager and what it may
// do.
var CCM = documents(ccmServiceAccount, ccmControllers, ccmLeaderElection, ccmMetrics)

// CCMUser gives a user of the same name, by client certificate, the same
// rights; it goes with CCM.
//
//go:embed ccm/overlays/outside/user.yaml
var CCMUser []byte

// CCMDeployment is the cloud controller manager as a workload: an
// apps/v1.Deployment.
//
//go:embed ccm/base/deployment.yaml
var CCMDeployment []byte

// CCMDisruptionBudget is the Deployment's.
//
//go:embed ccm/base/disruptionbudget.yaml
var CCMDisruptionBudget []byte

// Lab is the RBAC of the lab's own credentials.
//
//go:embed lab/rbac.yaml
var Lab []byte

// Embedded is the RBAC that only an embedded cluster lacks.
//
//go:embed embedded/rbac.yaml
var Embedded []byte

// Demo is a Deployment and a Service of type LoadBalancer, with what they need.
//
//go:embed demo/demo.yaml
var Demo []byte

func documents(files ...[]byte) []byte { return bytes.Join(files, []byte("---\n")) }
