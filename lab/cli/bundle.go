package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/fakecloud/clikit"
	"github.com/ccmlab/ccmlab/lab/bundle"
	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/lessons"
	"github.com/ccmlab/ccmlab/lab/notices"
	"github.com/ccmlab/ccmlab/lab/remedy"
)

func newBundle(o *globalOptions) *cobra.Command {
	return &cobra.Command{
		Use:   "bundle FILE",
		Short: "Pack all that a room without internet needs into one archive",
		Long: `bundle packs the programs, upstream's among them, and the images, the nodes'
among them, with a list of checksums; and for lessons the CCMs that have a
mistake, and a Go with the modules that a CCM is made of. LICENSE and
THIRD_PARTY_NOTICES in it are the licences of all that, and sbom.cdx.json lists
what it is made of. Who has the archive needs
neither Go nor a registry: lab up --bundle FILE and lab lesson --bundle FILE
unpack it once into the user's cache (XDG_CACHE_HOME, else ~/.cache), check it,
and run from there. Unpacked by tar into a folder that all may read, its lab
serves everybody on a machine: nothing is written there.

It is run in a clone, and packs the Go that the clone is built with.`,
		Example: `  make build node-image && lab bundle ccmlab.tar.gz
  tar xzf ccmlab.tar.gz lab && ./lab up --bundle ccmlab.tar.gz   # elsewhere
  ./lab lesson --bundle ccmlab.tar.gz list`,
		Args: clikit.RequireArguments(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.newSteps().Do("bundle", func(note func(string)) (string, error) {
				n, err := writeBundle(cmd.Context(), args[0], note)
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

// writeBundle writes a bundle of the programs and of what lessons need into file. It
// returns the number of files in it.
func writeBundle(ctx context.Context, file string, note func(string)) (packed int, err error) {
	scratch, err := os.MkdirTemp("", "bundle")
	if err != nil {
		return 0, remedy.With(err)
	}
	defer func() { _ = os.RemoveAll(scratch) }()
	files, err := lessons.Pack(ctx, scratch, note)
	if err != nil {
		return 0, err
	}
	files[notices.LicenseFile] = filepath.Join(filepath.Dir(binDir()), notices.LicenseFile)
	return bundle.Write(ctx, binDir(), files, file, note)
}

// newLessonParts returns the hidden command `lab lesson-parts`, which the image of a
// seat is built with.
func newLessonParts(o *globalOptions) *cobra.Command {
	return &cobra.Command{
		Use: "lesson-parts FOLDER", Hidden: true, Args: clikit.RequireArguments(1, 1),
		Short: "Write what lessons need beside the programs into a new folder; make seat-image runs it",
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.newSteps().Do("lessons' parts", func(note func(string)) (string, error) {
				return args[0], writeLessonParts(cmd.Context(), args[0], note)
			})
		},
	}
}

// writeLessonParts writes what lessons need into a new folder. The folder appears only
// when it is complete.
func writeLessonParts(ctx context.Context, folder string, note func(string)) error {
	if err := os.MkdirAll(filepath.Dir(folder), 0o755); err != nil {
		return remedy.With(err)
	}
	scratch, err := os.MkdirTemp(filepath.Dir(folder), ".parts-*")
	if err != nil {
		return remedy.With(err)
	}
	defer func() { _ = os.RemoveAll(scratch) }()
	files, err := lessons.Pack(ctx, filepath.Join(scratch, "made"), note)
	if err != nil {
		return err
	}
	note("copying")
	whole := filepath.Join(scratch, "whole")
	for name, source := range files {
		if err := copyFile(filepath.Join(whole, filepath.FromSlash(name)), source); err != nil {
			return err
		}
	}
	return os.Rename(whole, folder)
}

// copyFile copies a file with its permissions. It creates the folders above, and fails
// if the file to exists.
func copyFile(to, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, info.Mode().Perm()|0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// addBundleFlag adds the flag --bundle to cmd and all its subcommands. With the flag,
// the lab in the bundle runs the same command, so that all of it uses the bundle's
// programs.
func addBundleFlag(cmd *cobra.Command, o *globalOptions) {
	var file string
	cmd.PersistentFlags().
		StringVar(&file, "bundle", "", "run from a bundle, a `FILE` that lab bundle packed, which is unpacked once")
	cmd.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error { // Replaces the root's.
		if err := o.configureLogging(); err != nil || file == "" {
			return err
		}
		var dir string
		if err := o.newSteps().Do("bundle", func(note func(string)) (_ string, err error) {
			dir, err = bundle.Unpack(cmd.Context(), file, note)
			return "unpacked in " + dir, err
		}); err != nil {
			return err
		}
		self := filepath.Join(dir, "lab")
		err := syscall.Exec(self, append([]string{self}, argsWithoutBundle(os.Args[1:])...), os.Environ())
		return fmt.Errorf(
			"%s cannot be run (%w): a bundle is for machines like the one that packed it, and XDG_CACHE_HOME must be where programs may be run",
			self, err,
		)
	}
}

// argsWithoutBundle returns args without the flag --bundle and its value.
func argsWithoutBundle(args []string) []string {
	var left []string
	for i := 0; i < len(args); i++ {
		switch {
		case args[i] == "--":
			return append(left, args[i:]...)
		case args[i] == "--bundle":
			i++ // Its value.
		case !strings.HasPrefix(args[i], "--bundle="):
			left = append(left, args[i])
		}
	}
	return left
}

// binDir returns the folder of the project's own programs, or "" if they are not found.
func binDir() string {
	bin, err := cluster.FindBinaries("", "")
	if err != nil {
		return ""
	}
	return bin.Dir
}
