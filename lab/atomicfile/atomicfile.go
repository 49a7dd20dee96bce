// Package atomicfile replaces files as a whole: whoever reads a file finds the old content or the
// new, never a part of either, also after the power was cut. It knows neither labs nor what is in the files.
package atomicfile

import (
	"errors"
	"os"
	"path/filepath"

	"github.com/ccmlab/ccmlab/lab/remedy"
)

// TempPrefix begins the name of a file that is being written. One that is left over after a crash
// holds nothing that anybody needs.
const TempPrefix = ".new-"

// Write replaces a file, readable by the owner alone. It makes the folder if that is missing.
func Write(file string, data []byte) error { return remedy.With(replaceFile(file, data)) }

func replaceFile(file string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(file), TempPrefix+"*") // 0600 by CreateTemp
	if err != nil {
		return err
	}
	_, err = tmp.Write(data)
	err = errors.Join(err, tmp.Close())
	if err == nil {
		err = Rename(tmp.Name(), file)
	}
	if err != nil {
		_ = os.Remove(tmp.Name())
	}
	return err
}

// Rename gives a file that was just written, and is closed, the name of the one that it replaces. Both are in one folder.
// The content goes to the disk first: file systems may write the new name before it, and a power cut then leaves an
// empty file (LWN "ext4 and data loss"). A name that is lost is no harm to readers, but who was told of success relies on it.
func Rename(from, to string) error {
	if err := syncToDisk(from); err != nil {
		return err
	}
	if err := os.Rename(from, to); err != nil {
		return err
	}
	return syncToDisk(filepath.Dir(to))
}

// syncToDisk writes to disk what the system still keeps of a file, or of the names in a folder.
func syncToDisk(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
