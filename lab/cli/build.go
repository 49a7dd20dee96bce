package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/lab/cluster/embedded"
	"github.com/ccmlab/ccmlab/lab/kubebuild"
	"github.com/ccmlab/ccmlab/lab/ui"
)

func newBuild() *cobra.Command {
	var src string
	cmd := &cobra.Command{
		Use:   "build",
		Short: "Build upstream Kubernetes, etcd and the hollow node, unless they are up to date",
		Long: `build compiles upstream's kube-apiserver, kube-controller-manager,
kube-scheduler, kubectl and etcd, and the lab's hollow-node, from the Go module
in lab/kube. On empty caches this takes five to ten minutes on two cores and
about 4 GB of disk in Go's caches; afterwards, seconds. LAB_KUBE_BIN names a
folder with ready binaries instead.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			bin, err := embedded.FindBinaries()
			if err != nil {
				return err
			}
			if src == "" {
				src = filepath.Join(bin.Dir, "..", "lab", "kube")
			}
			if _, err := os.Stat(filepath.Join(src, "go.mod")); errors.Is(err, fs.ErrNotExist) {
				return usagef("%s holds no Go module; run this from a clone's bin folder, or name lab/kube with --src", src)
			}
			return ui.New(os.Stderr, false).Do("build", func(note func(string)) (string, error) {
				built, err := kubebuild.Build(cmd.Context(), src, bin.Kube, note)
				if err == nil && !built {
					return "upstream Kubernetes is up to date", nil
				}
				return fmt.Sprintf("upstream Kubernetes in %s", bin.Kube), err
			})
		},
	}
	cmd.Flags().StringVar(&src, "src", "", "folder of the module lab/kube (default: beside this program's folder)")
	return cmd
}
