package cli

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/lab/bundle"
)

func newBundle(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "bundle FILE",
		Short: "Pack all that a room without internet needs into one archive",
		Long: `bundle packs the programs, upstream's among them, and the images, the nodes'
among them, with a list of checksums. Who has the archive needs neither Go nor a
registry: lab up --bundle FILE unpacks it once into the user's cache
(XDG_CACHE_HOME, else ~/.cache), checks it, and runs from there.`,
		Example: `  make build node-image && lab bundle ccmlab.tar.gz
  tar xzf ccmlab.tar.gz lab && ./lab up --bundle ccmlab.tar.gz   # elsewhere`,
		Args: oneArgument,
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.steps().Do("bundle", func(note func(string)) (string, error) {
				n, err := bundle.Write(cmd.Context(), binDir(), args[0], note)
				if err != nil {
					return "", err
				}
				info, err := os.Stat(args[0])
				if err != nil {
					return "", err
				}
				return fmt.Sprintf("%d files in %s, %d MB", n, args[0], info.Size()>>20), nil
			})
		},
	}
}
