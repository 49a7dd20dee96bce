package cli

import (
	"log/slog"
	"os"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/lab/lifecycle"
)

// newAgent returns the hidden command `lab agent`, the lab's background process.
func newAgent() *cobra.Command {
	var (
		dir   string
		claim bool
	)
	cmd := &cobra.Command{
		Use: "agent", Hidden: true,
		Short: "The lab's background process; `lab up` starts it",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if dir == "" {
				return usagef("--dir is missing; `lab up` starts this for you")
			}
			return lifecycle.RunAgent(cmd.Context(), dir, claim, slog.New(slog.NewTextHandler(os.Stderr, nil)))
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "", "the lab's folder")
	cmd.Flags().BoolVar(&claim, "claim", false, "descriptor 3 is the lab's claim, to be held")
	return cmd
}
