package image

import (
	"archive/tar"
	"context"
	"errors"
	"maps"
	"path"
	"path/filepath"
	"slices"

	"github.com/ccmlab/ccmlab/lab/notices"
)

// DocFolder is the folder in which an image has the licences.
const DocFolder = "usr/share/doc/ccmlab"

// AddNotices adds the licences that must be passed on with an image: the project's own, from the
// root of a clone, and those of third-party code in all programs that the tree has by now.
func (t Tree) AddNotices(ctx context.Context, root string) error {
	var collection notices.Collection
	for _, name := range slices.Sorted(maps.Keys(t)) {
		entry := t[name]
		if entry.Header.Typeflag != tar.TypeReg || entry.Header.Mode&0o111 == 0 || entry.Open == nil {
			continue
		}
		content, err := entry.Open()
		if err != nil {
			return err
		}
		if err := errors.Join(collection.AddProgram("/"+name, content), content.Close()); err != nil {
			return err
		}
	}
	text, err := collection.Text(ctx)
	if err != nil {
		return err
	}
	return errors.Join(
		t.File(path.Join(DocFolder, notices.LicenseFile), filepath.Join(root, notices.LicenseFile), 0o644),
		t.Text(path.Join(DocFolder, notices.ThirdPartyFile), text, 0o644))
}
