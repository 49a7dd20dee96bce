package ccm

import (
	"fmt"

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

func (e *foreignProviderIDError) cause() cause { return cause{contract.ReasonForeignProviderID, e.id} }
