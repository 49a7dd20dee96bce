package core

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	cloudproviderapi "k8s.io/cloud-provider/api"

	"github.com/ccmlab/ccmlab/ccm/annotations"
	"github.com/ccmlab/ccmlab/ccm/contract"
)

// parseProviderID returns the instance's ID. It is an error for the ID of any other
// cloud: such a Node is not ours to judge.
func parseProviderID(id string) (string, error) {
	instanceID, ok := contract.InstanceIDFromProviderID(id)
	if !ok {
		return "", &foreignProviderIDError{id}
	}
	return instanceID, nil
}

// foreignProviderIDError is a provider ID of another cloud, or of none.
type foreignProviderIDError struct{ id string }

func (e *foreignProviderIDError) Error() string {
	return fmt.Sprintf("provider ID %s is not of the form %s<instance-id>",
		annotations.Quote(e.id), contract.ProviderIDPrefix)
}

func (e *foreignProviderIDError) Cause() Cause { return Cause{contract.ReasonForeignProviderID, e.id} }

// errNoProviderID means that a Node has no provider ID, and that no controller will set one.
var errNoProviderID = newReasonError(contract.ReasonProviderIDMissing,
	"it has no provider ID, and no taint %s, without which no controller sets one; "+
		"it gets no route and is not a load balancer target", cloudproviderapi.TaintExternalCloudProvider)

// CheckOwnNode fails for a Node that is not ours: it has another cloud's provider ID, or none and no
// taint with which it would get one.
func CheckOwnNode(node *corev1.Node) error {
	if node.Spec.ProviderID != "" {
		_, err := parseProviderID(node.Spec.ProviderID)
		return err
	}
	if !IsUninitialized(node) {
		return errNoProviderID
	}
	return nil
}

// IsUninitialized tells whether the Node waits to be initialized.
func IsUninitialized(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool {
		return t.Key == cloudproviderapi.TaintExternalCloudProvider
	})
}
