package main

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestDocumentsAreUpToDate(t *testing.T) {
	for name, text := range documents {
		written, err := os.ReadFile("../" + name)
		require.NoError(t, err)
		assert.Equal(t, text(), string(written), "run make generate")
	}
}
