package cli

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/fakecloud/clikit"
	"github.com/ccmlab/ccmlab/lab/console"
	"github.com/ccmlab/ccmlab/lab/lessons"
	"github.com/ccmlab/ccmlab/lab/lessons/site"
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
				return clikit.Usagef("--dir is missing; `lab up` starts this for you")
			}
			log := slog.New(slog.NewTextHandler(os.Stderr, nil))
			return lifecycle.RunAgent(cmd.Context(), dir, claim, newLessonGuide(dir), log)
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "", "the lab's folder")
	cmd.Flags().BoolVar(&claim, "claim", false, "descriptor 3 is the lab's claim, to be held")
	return cmd
}

// guideAge is how old a guide may be that is shown: a lesson is looked at that often while pages are open.
const guideAge = 2 * time.Second

// newLessonGuide returns what tells the page of the lab in a folder the lesson that takes place in it, if one
// does.
func newLessonGuide(dir string) console.Guide {
	var mu sync.Mutex
	var made time.Time
	var guide any
	var err error
	return func(ctx context.Context) (any, error) {
		mu.Lock()
		defer mu.Unlock()
		if time.Since(made) > guideAge {
			guide, err = lessonGuide(ctx, dir)
			made = time.Now()
		}
		return guide, err
	}
}

func lessonGuide(ctx context.Context, dir string) (any, error) {
	seat, err := lessons.FindByLab(filepath.Dir(dir), filepath.Base(dir))
	if err != nil || seat == nil {
		return nil, err
	}
	st, err := seat.Glance(ctx)
	if err != nil {
		return nil, err
	}
	return site.NewGuide(st)
}
