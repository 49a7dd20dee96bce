// Package api is fakecloud's REST API as Go types, generated from openapi.yaml by `make generate` with the
// templates of ours in templates. Package server's interface and the methods of package client come from it, too.
package api

import _ "embed"

//go:generate go tool -modfile=../../scripts/tools/go.mod oapi-codegen -config models.cfg.yaml openapi.yaml
//go:generate go tool -modfile=../../scripts/tools/go.mod oapi-codegen -config server.cfg.yaml openapi.yaml
//go:generate go tool -modfile=../../scripts/tools/go.mod oapi-codegen -config client.cfg.yaml openapi.yaml

// Spec is openapi.yaml, as served at /openapi.yaml and used to validate
// requests.
//
//go:embed openapi.yaml
var Spec []byte
