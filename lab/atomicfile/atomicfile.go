// Package atomicfile replaces files as a whole: whoever reads a file finds the old content or the
// new, never a part of either. It knows neither labs nor what is in the files.
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
		err = os.Rename(tmp.Name(), file)
	}
	if err != nil {
		_ = os.Remove(tmp.Name())
	}
	return err
}
