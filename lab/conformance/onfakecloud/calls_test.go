package onfakecloud

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/lab/conformance"
)

func TestCallsByWhatTheyAreAbout(t *testing.T) {
	var counted []api.AuditSum
	for operation, n := range map[string]int64{
		"listInstances": 2, "getInstance": 3, "listInstanceTypes": 1, "streamEvents": 1, "getProject": 1,
		"listLoadBalancers": 4, "createLoadBalancer": 2, "reserveAddress": 1, "createRoute": 5, "listRoutes": 1,
	} {
		counted = append(counted, api.AuditSum{Operation: operation, Calls: n})
	}
	assert.Equal(t, conformance.Calls{
		Count: conformance.Count{Reads: 13, Writes: 8},
		Of: map[conformance.Thing]conformance.Count{
			conformance.Instances: {Reads: 5}, conformance.Balancers: {Reads: 4, Writes: 3},
			conformance.Routes: {Reads: 1, Writes: 5},
		},
	}, sumOf(counted), "of types, events and the project there are three, and they are about none of these things")
}
