package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func env(vars map[string]string) func(string) string {
	return func(name string) string { return vars[name] }
}

func TestEverythingWrongIsReportedAtOnce(t *testing.T) {
	_, err := Read(strings.NewReader("url: ftp://x\ncaFile: /does/not/exist\n"), env(nil))
	for _, want := range []string{`url "ftp://x"`, "tokenFile (or FAKECLOUD_TOKEN_FILE) is missing", "project (or FAKECLOUD_PROJECT) is missing", "caFile"} {
		assert.ErrorContains(t, err, want)
	}
}

func TestUnknownFieldIsAnError(t *testing.T) {
	_, err := Read(strings.NewReader("url: http://x\ntoken: secret\n"), env(nil))
	assert.ErrorContains(t, err, `unknown field "token"`)
}

func TestEnvironmentOverrides(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(file, []byte("secret\n"), 0o600))
	c, err := Read(strings.NewReader("url: http://a:1\nproject: a\n"), env(map[string]string{
		"FAKECLOUD_URL": "http://b:2", "FAKECLOUD_TOKEN_FILE": file,
	}))
	require.NoError(t, err)
	assert.Equal(t, Config{URL: "http://b:2", TokenFile: file, Project: "a", Cache: true}, c)
}

func TestEmptyTokenFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	_, err := Read(nil, env(map[string]string{"FAKECLOUD_URL": "http://a:1", "FAKECLOUD_TOKEN_FILE": file, "FAKECLOUD_PROJECT": "a"}))
	assert.ErrorContains(t, err, "is empty")
}
