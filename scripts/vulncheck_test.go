package scripts_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// fakeGo answers as go does in a repository of the modules "." and lab/kube, and in one that cannot be read.
const fakeGo = `#!/bin/sh
case "$1 $2 $PWD" in
"mod download"*)
  echo '{"Path": "golang.org/x/vulndb", "Version": "v0.0.1", "Dir": "/db", "Error": "no such version"}'
  test "$4" != golang.org/x/vulndb@none ;;
"tool "*) echo "$BIN/govulncheck" ;;
"list "*/broken) echo "go: errors parsing go.mod" >&2; exit 1 ;;
"list ./..."*) echo example.com/ours ;;
"list tool"*) ;;
*) exit 2 ;;
esac
`

// fakeGovulncheck finds what is in the report in lab/kube.
const fakeGovulncheck = `#!/bin/sh
test "$*" = "-db file:///db/data/osv -scan package -format json ./..." || exit 2
case "$PWD" in */lab/kube) cat "$BIN/report" ;; esac
`

const report = `
{"config": {"protocol_version": "v1.0.0"}}
{"osv": {"id": "GO-1", "summary": "a hole"}}
{"osv": {"id": "GO-2", "summary": "another hole"}}
{"finding": {"osv": "GO-1", "fixed_version": "v1.1.0", "trace": [{"module": "a.org/a", "version": "v1.0.0"}]}}
{"finding": {"osv": "GO-1", "fixed_version": "v1.1.0", "trace": [{"module": "a.org/a", "version": "v1.0.0", "package": "b"}]}}
{"finding": {"osv": "GO-1", "fixed_version": "v1.1.0", "trace": [{"module": "a.org/a", "version": "v1.0.0", "package": "c"}]}}
{"finding": {"osv": "GO-2", "trace": [{"module": "a.org/c", "version": "v2.0.0", "package": "a.org/c"}]}}
{"finding": {"osv": "GO-2", "trace": [{"module": "a.org/unused", "version": "v2.0.0"}]}}
{"finding": {"osv": "GO-1", "fixed_version": "v1.9.0", "trace": [{"module": "stdlib", "version": "v1.8.0", "package": "net"}]}}
`

// runVulncheck runs the script in a repository with these accepted vulnerabilities, and returns its output and
// whether it succeeds.
func runVulncheck(t *testing.T, module, accepted string, args ...string) (string, bool) {
	t.Helper()
	root := t.TempDir()
	script, err := os.ReadFile("vulncheck")
	require.NoError(t, err)
	for file, text := range map[string]string{
		"go.mod": "", module + "/go.mod": "", "bin/report": report, "bin/go": fakeGo, "bin/govulncheck": fakeGovulncheck,
		"scripts/vulncheck": string(script), "scripts/vulncheck.accepted": accepted,
	} {
		file = filepath.Join(root, file)
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
		require.NoError(t, os.WriteFile(file, []byte(text), 0o755))
	}
	for _, args := range [][]string{{"init", "-q"}, {"add", "go.mod", module}} {
		require.NoError(t, exec.Command("git", append([]string{"-C", root}, args...)...).Run())
	}
	bin := filepath.Join(root, "bin")
	cmd := exec.Command(filepath.Join(root, "scripts", "vulncheck"), args...)
	cmd.Env = append(os.Environ(), "BIN="+bin, "PATH="+bin+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	return string(out), err == nil
}

func TestVulncheck(t *testing.T) {
	if _, err := exec.LookPath("jq"); err != nil {
		t.Skip(err)
	}
	const all = "# Both.\n\nlab/kube a.org/a GO-1 not called\nlab/kube a.org/c GO-2 no fix\n"
	const first = "lab/kube a.org/a GO-1 v1.0.0, fixed in v1.1.0: a hole\n"
	const second = "lab/kube a.org/c GO-2 v2.0.0, no fix: another hole\n"
	for _, c := range []struct {
		name, module, accepted, version string
		ok                              bool
		says                            []string
	}{
		{"none accepted", "lab/kube", "", "", false, []string{"v1.9.0\n" + first + second + "vulncheck: fix these"}},
		{"all accepted", "lab/kube", all, "", true, []string{
			"golang.org/x/vulndb is of v0.0.1\n", "fixed in v1.9.0\n", "the 2 that are accepted"}},
		{"accepted in another module", "lab/kube", "ccm a.org/a GO-1 no fix", "", false, []string{first, second}},
		{"not found", "lab/kube", all + "lab/kube a.org/d GO-8,GO-9 no fix", "", false, []string{
			"lab/kube a.org/d GO-8 is not found, but accepted\nlab/kube a.org/d GO-9 is not found, but accepted\n"}},
		{"no reason", "lab/kube", "lab/kube a.org/a GO-1", "", false, []string{"and a reason: lab/kube a.org/a GO-1"}},
		{"no database", "lab/kube", all, "none", false, []string{"vulnerability database: no such version"}},
		{"a module that cannot be read", "broken", "", "", false, []string{"errors parsing go.mod"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var args []string
			if c.version != "" {
				args = []string{c.version}
			}
			out, ok := runVulncheck(t, c.module, c.accepted, args...)
			assert.Equal(t, c.ok, ok, out)
			for _, text := range c.says {
				assert.Contains(t, out, text)
			}
		})
	}
}
