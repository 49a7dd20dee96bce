package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

const (
	before = `{"capabilities":{"bounding":["CAP_CHOWN","CAP_SYS_RESOURCE"],"effective":["CAP_SYS_RESOURCE"],"ambient":null},"limit":18446744073709551615}`
	after  = `{"capabilities":{"ambient":null,"bounding":["CAP_CHOWN"],"effective":[]},"limit":18446744073709551615}`
)

func TestDropsOneCapability(t *testing.T) {
	dir := t.TempDir()
	config, process := filepath.Join(dir, "config.json"), filepath.Join(dir, "process.json")
	for _, args := range [][]string{
		{"--root", "/run/x", "create", "--bundle", dir, "id"},
		{"run", "--bundle=" + dir, "id"},
		{"exec", "--process", process, "-d", "id"},
		{"exec", "-p", process, "id"},
	} {
		require.NoError(t, os.WriteFile(config, []byte(`{"process":`+before+`,"root":{"path":"rootfs"}}`), 0o600))
		require.NoError(t, os.WriteFile(process, []byte(before), 0o600))
		require.NoError(t, rewriteSpecs(args))
		file, want := config, `{"process":`+after+`,"root":{"path":"rootfs"}}`
		if args[0] == "exec" {
			file, want = process, after
		}
		have, err := os.ReadFile(file)
		require.NoError(t, err)
		assert.Equal(t, want, string(have), args)
	}
}

func TestOtherFilesAreUnchanged(t *testing.T) {
	dir := t.TempDir()
	config := filepath.Join(dir, "config.json")
	require.NoError(t, rewriteSpecs([]string{"create", "--bundle", dir, "id"}), "runc says what is missing")
	require.NoError(t, rewriteSpecs([]string{"delete", "--bundle"}))
	require.NoError(t, rewriteSpecs(nil))
	const text = `{ "process": {"capabilities": {"bounding": ["CAP_CHOWN"]}} }`
	require.NoError(t, os.WriteFile(config, []byte(text), 0o600))
	require.NoError(t, rewriteSpecs([]string{"create", "--bundle", dir, "id"}))
	have, err := os.ReadFile(config)
	require.NoError(t, err)
	assert.Equal(t, text, string(have))
	require.NoError(t, os.WriteFile(config, []byte("{"), 0o600))
	require.ErrorContains(t, rewriteSpecs([]string{"create", "--bundle", dir, "id"}), config)
}

// Whatever JSON is in the file, the result is JSON without the capability.
func TestAnyJSON(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "config.json")
	rapid.Check(t, func(t *rapid.T) {
		leaf := rapid.OneOf(
			rapid.Just[any](nil), rapid.Just[any](droppedCapability), rapid.Just[any]("CAP_CHOWN"),
			rapid.Map(rapid.Int(), func(i int) any { return float64(i) }),
		)
		list := rapid.Map(rapid.SliceOf(leaf), func(l []any) any { return l })
		sets := rapid.OneOf(leaf, list, rapid.Map(
			rapid.MapOf(rapid.StringN(0, 3, -1), rapid.OneOf(leaf, list)), func(m map[string]any) any { return m },
		))
		data, err := json.Marshal(map[string]any{"process": map[string]any{"capabilities": sets.Draw(t, "sets")}})
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(file, data, 0o600))
		require.NoError(t, rewriteSpecs([]string{"create", "-b", dir}))
		have, err := os.ReadFile(file)
		require.NoError(t, err)
		var spec struct {
			Process struct{ Capabilities any }
		}
		require.NoError(t, json.Unmarshal(have, &spec))
		kept, _ := spec.Process.Capabilities.(map[string]any)
		for _, set := range kept {
			assert.NotContains(t, toList(set), droppedCapability)
		}
	})
}

func toList(set any) []any {
	list, _ := set.([]any)
	return list
}
