package cli

import (
	"context"
	"io"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/fakecloud/clikit"
	"github.com/ccmlab/ccmlab/fakecloud/release"
	"github.com/ccmlab/ccmlab/lab/cluster"
)

// versionInfo is what `lab version` prints. Kubernetes and Etcd are empty if their
// programs are not installed.
type versionInfo struct {
	Lab        string `json:"lab"`
	Go         string `json:"go"`
	Platform   string `json:"platform"`
	Kubernetes string `json:"kubernetes,omitempty"`
	Etcd       string `json:"etcd,omitempty"`
}

// versionTimeout is how long Kubernetes' and etcd's programs together may take to print
// their versions.
const versionTimeout = 5 * time.Second

func newVersion(_ *globalOptions) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Print the versions of the lab, and of the Kubernetes it runs",
		Example: "  lab version -o json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			v := findVersions(cmd.Context())
			return clikit.Print(cmd, v, func(w io.Writer) error {
				return clikit.WriteTable(w, []string{"lab", v.Lab}, [][]string{
					{"go", v.Go}, {"platform", v.Platform}, {"kubernetes", v.Kubernetes}, {"etcd", v.Etcd},
				})
			})
		},
	}
	clikit.AddOutput(cmd, "table", "json", "yaml")
	return cmd
}

// findVersions asks the installed programs for their versions.
func findVersions(ctx context.Context) versionInfo {
	v := versionInfo{Lab: release.Version(), Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	bin, err := cluster.FindBinaries("", "")
	if err != nil {
		return v
	}
	ctx, cancel := context.WithTimeout(ctx, versionTimeout)
	defer cancel()
	// kube-apiserver prints only "Kubernetes v1.36.3". The first line of etcd is
	// "etcd Version: 3.6.8".
	programVersion := func(program, prefix string) string {
		out, err := exec.CommandContext(ctx, bin.Program(program), "--version").Output()
		if err != nil {
			return ""
		}
		line, _, _ := strings.Cut(string(out), "\n")
		return strings.TrimSpace(strings.TrimPrefix(line, prefix))
	}
	v.Kubernetes, v.Etcd = programVersion("kube-apiserver", "Kubernetes "), programVersion("etcd", "etcd Version: ")
	return v
}
