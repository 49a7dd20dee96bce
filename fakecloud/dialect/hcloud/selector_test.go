package hcloud

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestSelector(t *testing.T) {
	labels := map[string]string{"env": "prod", "hcloud-ccm/service-uid": "u-1", "empty": ""}
	for text, want := range map[string]bool{
		"":                               true,
		"env":                            true,
		"!env":                           false,
		"! other":                        true,
		"env=prod":                       true,
		"env == prod":                    true,
		"env!=prod":                      false,
		"other!=prod":                    true,
		"empty=":                         true,
		"env in (dev, prod)":             true,
		"env notin (dev,prod)":           false,
		"other notin (dev)":              true,
		"env in (dev),env=prod":          false,
		"env in (prod,dev), !other":      true,
		"hcloud-ccm/service-uid=u-1,env": true,
	} {
		s, err := parseSelector(text)
		require.NoError(t, err, text)
		assert.Equal(t, want, s.matches(labels), text)
	}
	for _, text := range []string{"env=a=b", "in (a)", "env in a", "env,,other", "a b"} {
		_, err := parseSelector(text)
		assert.Error(t, err, text)
	}
}
