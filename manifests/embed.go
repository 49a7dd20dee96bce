// Package manifests holds what is applied to a cluster.
package manifests

import _ "embed"

// CCM is the RBAC of the cloud controller manager.
//
//go:embed ccm/rbac.yaml
var CCM []byte

// CCMDeployment is the cloud controller manager as a workload; a template.
//
//go:embed ccm/deployment.yaml
var CCMDeployment string

// Lab is the RBAC of the lab's own credentials.
//
//go:embed lab/rbac.yaml
var Lab []byte

// Embedded is the RBAC that only an embedded cluster lacks.
//
//go:embed embedded/rbac.yaml
var Embedded []byte

// Demo is a Deployment and a Service of type LoadBalancer.
//
//go:embed demo/demo.yaml
var Demo []byte
