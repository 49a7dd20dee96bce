package cluster

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"text/template"

	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/identity"
)

// KubeletProviderID renders the template of what kubelets get as --provider-id, for the machine of an instance
// that other clouds' dialects call by identities.
func KubeletProviderID(text string, m Machine, identities map[string]string) (string, error) {
	parsed, err := template.New("provider ID").Option("missingkey=error").Parse(text)
	if err != nil {
		return "", err
	}
	var id strings.Builder
	err = parsed.Execute(&id, struct {
		Machine
		Identities map[string]string
	}{m, identities})
	return id.String(), err
}

// CheckProviderIDs refuses a template that fails, or gives two machines the same provider ID.
func CheckProviderIDs(text string) error {
	if text == "" {
		return nil
	}
	one, err := KubeletProviderID(
		text, Machine{ID: "i-1", Name: strings.Repeat("a", 63), Address: "127.0.0.1"}, identity.Of(1),
	)
	two, err2 := KubeletProviderID(
		text, Machine{ID: "i-2", Name: strings.Repeat("b", 63), Address: "127.0.0.2"}, identity.Of(2),
	)
	err = errors.Join(err, err2)
	if err == nil && one == two {
		err = fmt.Errorf(
			"two instances get the same, %s: it needs {{.ID}}, {{.Name}}, {{.Address}} or {{.Identities.DIALECT}}", one,
		)
	}
	if err != nil {
		return fmt.Errorf("kubelets' provider IDs %q: %w", text, err)
	}
	return nil
}

// NetworkCode returns what the ID of the cloud's network called default ends with in clouds whose IDs are OCIDs.
func NetworkCode(ctx context.Context, cloud *client.Client) (string, error) {
	networks, err := cloud.ListNetworks(ctx, client.NetworkFilter{Name: "default"})
	if err == nil && len(networks) != 1 {
		err = errors.New("the lab's cloud has no network called default")
	}
	if err != nil {
		return "", err
	}
	return identity.Code(networks[0].Serial), nil
}
