// Package protocol is what the conformance suite and a driver say to each other: types, a client and a server
// interface, generated from openapi.yaml by `make generate`. Begin with openapi.yaml.
package protocol

import _ "embed"

//go:generate go tool -modfile=../../../../scripts/tools/go.mod oapi-codegen -config protocol.cfg.yaml openapi.yaml

// Version is the version of the protocol that openapi.yaml describes.
const Version = "v1"

// The environment of a driver that the suite starts, and of a suite whose driver listens on TCP.
const (
	// EnvSocket is the path of the Unix socket to listen on.
	EnvSocket = "CCMLAB_DRIVER_SOCKET"
	// EnvToken is the bearer token of a driver that runs already and listens on TCP.
	EnvToken = "CCMLAB_DRIVER_TOKEN" //nolint:gosec // A name.
)

// Spec is openapi.yaml.
//
//go:embed openapi.yaml
var Spec []byte

// FaultKind is what a call gets instead of its answer; package conformance lists them.
type FaultKind string
