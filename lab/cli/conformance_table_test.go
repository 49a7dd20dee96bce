package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestDescribeRun(t *testing.T) {
	cmd := &cobra.Command{Use: "conformance", Run: func(*cobra.Command, []string) {}}
	cmd.Flags().String("ccm", "", "")
	cmd.Flags().String("report-dir", "", "")
	cmd.Flags().String("cluster", "embedded", "")
	cmd.Flags().Bool("required-only", false, "")
	cmd.Flags().StringArray("ccm-env", nil, "")
	cmd.SetArgs([]string{
		"--ccm", "/opt/nebula/my-ccm", "--report-dir", "/tmp/x", "--ccm-env", "A={{.Port}}", "--ccm-env", "B=two words",
		"--required-only",
	})
	require.NoError(t, cmd.Execute())
	assert.Equal(t, "conformance --ccm ./my-ccm --ccm-env A={{.Port}} --ccm-env 'B=two words' --required-only -- -v=4",
		describeRun(cmd, []string{"-v=4"}))
}

func TestConformanceTable(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		file := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		return file
	}
	run := func(files ...string) (string, error) {
		cmd := newConformanceTable()
		var out bytes.Buffer
		cmd.SetOut(&out)
		cmd.SetErr(&out)
		cmd.SetArgs(files)
		err := cmd.Execute()
		return out.String(), err
	}
	report := write("report.yaml", "kind: ConformanceReport\nimplementation: {name: nebula-ccm}\n")
	figure := write("figure.json", `{"ccm": "nebula-ccm", "lines": [{"name": "init"}]}`)
	page, err := run(report, figure)
	require.NoError(t, err)
	assert.Contains(t, page, "## nebula-ccm")
	_, err = run()
	require.ErrorContains(t, err, "name the report.yaml")
	_, err = run(write("else.yaml", "kind: Pod\n"))
	require.ErrorContains(t, err, "neither")
	_, err = run(filepath.Join(dir, "none"))
	require.Error(t, err)
}
