package main

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestOptionsReportEveryMistake(t *testing.T) {
	env := map[string]string{"PORT": "99999", "PROXY_PROTOCOL": "maybe", "DRAIN_SECONDS": "-1"}
	var environment []string
	for key, value := range env {
		environment = append(environment, key+"="+value)
	}
	_, err := parseOptions(environment)
	for key, value := range env {
		require.ErrorContains(t, err, fmt.Sprintf("%s=%q", key, value))
	}
	o, err := parseOptions(nil)
	require.NoError(t, err)
	assert.Equal(t, uint16(8080), o.port)
	assert.Equal(t, 5*time.Second, o.drain)
	assert.False(t, o.proxy)
}

func TestShowsOnlyNamedVariables(t *testing.T) {
	o, err := parseOptions(
		[]string{"GREETING=a=b", "PASSWORD=x", "SHOW_ENV=COLOUR, MISSING", "COLOUR=blue", "NODE_NAME="},
	)
	require.NoError(t, err)
	assert.Equal(t, map[string]string{"GREETING": "a=b", "COLOUR": "blue", "NODE_NAME": ""}, o.env)
}
