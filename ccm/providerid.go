package ccm

import (
	"fmt"
	"strings"
)

const providerIDPrefix = ProviderName + "://"

// providerID is what goes into Node.spec.providerID.
func providerID(instanceID string) string { return providerIDPrefix + instanceID }

// parseProviderID is an error for the ID of any other cloud: such a Node is
// not ours to judge.
func parseProviderID(id string) (string, error) {
	instanceID, ok := strings.CutPrefix(id, providerIDPrefix)
	if !ok || instanceID == "" || strings.ContainsAny(instanceID, "/ ") {
		return "", &foreignProviderIDError{id}
	}
	return instanceID, nil
}

// foreignProviderIDError is a provider ID of another cloud, or of none.
type foreignProviderIDError struct{ id string }

func (e *foreignProviderIDError) Error() string {
	return fmt.Sprintf("provider ID %q is not of the form %s<instance-id>", e.id, providerIDPrefix)
}

func (e *foreignProviderIDError) cause() cause { return cause{reasonForeignProviderID, e.id} }
